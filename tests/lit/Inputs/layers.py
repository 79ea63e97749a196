"""Writes three layers of 16 by 16 after each other, at the opset of the second argument: layers.py FILE OPSET."""
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

path, opset = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
weights = [numpy_helper.from_array(rng.standard_normal((16, 16)).astype(np.float32), f"w{i}") for i in (1, 2, 3)]
axes = {"axes": [0, 1], "keepdims": 0} if opset < 18 else {"keepdims": 0}
nodes = [helper.make_node("MatMul", ["x", "w1"], ["h1"], name="first"), helper.make_node("Relu", ["h1"], ["r1"]),
         helper.make_node("MatMul", ["r1", "w2"], ["h2"], name="middle"), helper.make_node("Relu", ["h2"], ["r2"]),
         helper.make_node("MatMul", ["r2", "w3"], ["y"], name="last"), helper.make_node("Mul", ["y", "y"], ["s"]),
         helper.make_node("ReduceMean", ["s"], ["loss"], **axes)]
graph = helper.make_graph(nodes, "layers", [helper.make_tensor_value_info("x", 1, ["batch", 16])],
                          [helper.make_tensor_value_info("loss", 1, [])], weights)
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
