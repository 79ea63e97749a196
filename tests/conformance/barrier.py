"""recast.barrier on onnxruntime: its body passes every type and shape as it is, and keeps runs of an operator apart.

The bodies come from recast-opt, which writes one for each signature. Values are compared bit for bit. With the body in
place, onnxruntime's optimisers (all of them) must keep both runs of an operator, and shapes must stay known.
"""
import kit
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

F32 = TensorProto.FLOAT
TYPES = {TensorProto.FLOAT: np.float32, TensorProto.DOUBLE: np.float64, TensorProto.FLOAT16: np.float16,
         TensorProto.BFLOAT16: ml_dtypes.bfloat16, TensorProto.INT64: np.int64, TensorProto.INT32: np.int32,
         TensorProto.BOOL: np.bool_, TensorProto.UINT8: np.uint8}
SHAPES = [(3, 4), (), (0, 2), (1,), (2, 1, 3)]
OPSETS = [13, 17, 21]


def barrier(inputs, outputs):
    return helper.make_node("barrier", inputs, outputs, domain="recast")


def model(nodes, inputs, outputs, opset):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(*i) for i in inputs],
                              [helper.make_tensor_value_info(*o) for o in outputs])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset),
                                                                  helper.make_opsetid("recast", 1)])


def with_bodies(test, built):
    """The model as recast-opt writes it: with a function for each signature."""
    source, target = test.temp / "source.onnx", test.temp / "target.onnx"
    onnx.save(built, str(source))
    test.tool("recast-opt", source, "--emit=forward", "-o", target)
    onnx.checker.check_model(str(target), full_check=True)
    return target


def session(path, optimised=None):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    if optimised:
        options.optimized_model_filepath = str(optimised)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def values(dtype, shape, random):
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return random.integers(0, 100, shape).astype(dtype)
    data = random.standard_normal(shape).astype(dtype)
    if data.size > 2:  # -0.0, infinities and NaN must pass too
        data.reshape(-1)[:3] = np.array([-0.0, np.inf, np.nan], dtype)
    return data


def passing(element, shape, after, opset):
    """A model in which x, of `element`, and z pass a barrier that waits for `after`, and the values that go in."""
    inputs, nodes = [("x", element, shape), ("z", F32, (2, 2)), ("after", *after)], []
    outputs = [("y", element, shape), ("w", F32, (2, 2))]
    if element == TensorProto.BFLOAT16:  # NumPy has none: it comes from float, and goes back
        inputs[0], outputs[0] = ("x", F32, shape), ("y", F32, shape)
        nodes = [helper.make_node("Cast", ["x"], ["low"], to=element), barrier(["low", "z", "after"], ["passed", "w"]),
                 helper.make_node("Cast", ["passed"], ["y"], to=F32)]
    else:
        nodes = [barrier(["x", "z", "after"], ["y", "w"])]
    return model(nodes, inputs, outputs, opset), inputs


def check_values(test):
    random = np.random.default_rng(0)
    others = [t for t in TYPES if t != TensorProto.BFLOAT16]
    for opset in OPSETS:
        bad, count = [], 0
        for element, dtype in TYPES.items():
            for shape in SHAPES:
                after = int(random.choice(others)), SHAPES[random.integers(len(SHAPES))]
                built, inputs = passing(element, shape, after, opset)
                feeds = {n: values(TYPES[t], s, random) for n, t, s in inputs}
                feeds["x"] = values(dtype, shape, random).astype(TYPES[inputs[0][1]])
                got = session(with_bodies(test, built)).run(None, feeds)
                count += 1
                if any(g.shape != feeds[n].shape or g.tobytes() != feeds[n].tobytes() for g, n in zip(got, ("x", "z"))):
                    bad.append((opset, dtype.__name__, shape))
        test.check(not bad and count, f"opset {opset}: {count} signatures pass bit for bit {bad[:4] or ''}")


def check_optimisers(test):
    """Both runs stay, the second behind its barrier, in the main graph and in a body."""
    shape = (8, 8)
    for nodes, name in (([helper.make_node("Softmax", ["x"], ["a"]), helper.make_node("Mul", ["a", "g"], ["b"]),
                          barrier(["x", "b"], ["x2"]), helper.make_node("Softmax", ["x2"], ["a2"]),
                          helper.make_node("Mul", ["a2", "b"], ["y"])], "with something to wait for"),
                        ([helper.make_node("Softmax", ["x"], ["a"]), barrier(["x"], ["x2"]),
                          helper.make_node("Softmax", ["x2"], ["a2"]), helper.make_node("Mul", ["a", "a2"], ["b"]),
                          helper.make_node("Mul", ["b", "g"], ["y"])], "with nothing to wait for")):
        path = with_bodies(test, model(nodes, [("x", F32, shape), ("g", F32, shape)], [("y", F32, shape)], 17))
        optimised = test.temp / "optimised.onnx"
        session(path, optimised)
        ops = [n.op_type for n in onnx.load(str(optimised)).graph.node]
        test.check(ops.count("Softmax") == 2, f"{name}: onnxruntime runs Softmax {ops.count('Softmax')} times of 2")
        shapes = onnx.shape_inference.infer_shapes(onnx.load(str(path)), strict_mode=True, data_prop=True)
        types = {v.name: v.type.tensor_type for v in shapes.graph.value_info}
        known = [n for n in ("x2", "a2") if [d.dim_value for d in types[n].shape.dim] == list(shape)]
        test.check(known == ["x2", "a2"], f"{name}: shapes behind the barrier are known: {known}")


def main():
    test = kit.Test(__doc__)
    check_values(test)
    check_optimisers(test)
    test.finish()


if __name__ == "__main__":
    main()
