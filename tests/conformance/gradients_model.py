"""A model with any gradients: loss = sum over p of sum(p * grad.p), where the batch holds grad.p. Used by the scripts
that follow an optimizer, a clip or a loss scale step by step.
"""
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save


def write(path, parameters, dtype=TensorProto.DOUBLE, opset=17, products=False):
    """parameters: name -> initial value. Each becomes an initializer, and `grad.<name>` a graph input of its shape.
    With `products` there are outputs `product.<name>`, which stay where the loss is cut off."""
    as_type = {TensorProto.DOUBLE: np.float64, TensorProto.FLOAT: np.float32}[dtype]
    nodes, inputs, initializers, sums = [], [], [], []
    for name, value in parameters.items():
        value = np.asarray(value, as_type)
        inputs.append(helper.make_tensor_value_info(f"grad.{name}", dtype, value.shape))
        initializers.append(numpy_helper.from_array(value.reshape(value.shape), name))
        nodes.append(helper.make_node("Mul", [name, f"grad.{name}"], [f"product.{name}"]))
        # A tensor without dimensions is its own sum.
        nodes.append(helper.make_node("ReduceSum", [f"product.{name}"], [f"sum.{name}"], keepdims=0) if value.ndim else
                     helper.make_node("Identity", [f"product.{name}"], [f"sum.{name}"]))
        sums.append(f"sum.{name}")
    nodes.append(helper.make_node("Sum", sums, ["loss"]))
    loss = helper.make_tensor_value_info("loss", dtype, [])
    others = [helper.make_tensor_value_info(f"product.{n}", dtype, np.shape(v)) for n, v in parameters.items()]
    graph = helper.make_graph(nodes, "gradients", inputs, [loss] + others * products, initializers)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), str(path))


def batches(gradients):
    """name -> [step, ...] as the tensors of a data file with --data-layout=batches."""
    return {f"grad.{name}": np.ascontiguousarray(value) for name, value in gradients.items()}
