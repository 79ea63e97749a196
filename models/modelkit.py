"""What the scripts beside it share: initialisation, and writing a checked model."""
import argparse
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Parameters:
    """Initializers under their names. Uniform draws only: they are exact bits times a bound, so that a model comes out
    the same on every machine (a normal draw goes through the machine's own logarithm)."""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.tensors = []

    def add(self, name, value):
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(value), name))

    def uniform(self, name, shape, bound):
        draws = self.rng.random(shape, dtype=np.float32)
        self.add(name, ((draws * 2 - 1) * np.float32(bound)).astype(np.float32))

    def he(self, name, shape):
        """He et al. 2015 (https://arxiv.org/abs/1502.01852), uniform: variance 2 / fan-in. Axis 0 is the output."""
        self.uniform(name, shape, (6.0 / np.prod(shape[1:])) ** 0.5)

    def ones(self, name, size):
        self.add(name, np.ones(size, np.float32))

    def zeros(self, name, size):
        self.add(name, np.zeros(size, np.float32))


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def write_model(path, name, nodes, inputs, outputs, parameters, opset=22):
    graph = helper.make_graph(nodes, name, inputs, outputs, parameters.tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10,
                              producer_name="recast-models")
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def output_folder(script, description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, default=Path(script).parent, help="default: the folder of the script")
    return parser.parse_args().out
