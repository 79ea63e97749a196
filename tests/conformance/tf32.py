"""--precision=tf32: factors of products are rounded to 10 mantissa bits, to nearest even, in the body and the kernel.

Exact: onnxruntime runs the function's body, recast-run its kernel, and both give the numbers that integer arithmetic
gives, for random bit patterns and for ties, subnormal, infinite and NaN numbers; the kernel with the sign of zero,
which the body does not keep. In a step every factor of a product is rounded, once a value, and a second run changes
nothing.
"""
import kit
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

COUNT = 1 << 16


def rounded(x):
    """Integer arithmetic on the bits."""
    bits = x.view(np.uint32).astype(np.uint64)
    up = (bits + 0xfff + ((bits >> 13) & 1)) & ~np.uint64(0x1fff)
    finite = (bits & 0x7f800000) != 0x7f800000
    return np.where(finite, up, bits).astype(np.uint32).view(np.float32)


def numbers():
    rng = np.random.Generator(np.random.PCG64(0))
    random = rng.integers(0, 2 ** 32, COUNT, dtype=np.uint64).astype(np.uint32)
    upper = (rng.integers(0, 2 ** 19, COUNT, dtype=np.uint64) << 13).astype(np.uint32)
    ties, near = upper | np.uint32(0x1000), upper | np.uint32(0xfff)
    subnormal = random & np.uint32(0x807fffff)
    special = np.array([0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0xff7fffff, 0x7f7fefff,
                        0x007fffff, 0x00800000, 1, 0xfff, 0x1000, 0x1001, 0x3000], np.uint32)
    return np.concatenate([random, ties, near, subnormal, special]).view(np.float32)


def same(got, want):
    """As numbers: zeros are equal, and a NaN is a NaN."""
    return np.array_equal(got, want, equal_nan=True)


def same_bits(got, want):
    nan = np.isnan(want)
    return same(got, want) and np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32))


def check_rounding(test, opset):
    """One product; of the rewritten model, the rounding of x alone."""
    x = numbers()
    info = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "g",
                              [info("x", TensorProto.FLOAT, [1, x.size])], [info("y", TensorProto.FLOAT, [1, 2])],
                              [numpy_helper.from_array(np.ones((x.size, 2), np.float32), "w")])
    source, rewritten = test.temp / "product.onnx", test.temp / "tf32.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7), str(source))
    test.tool("recast-opt", source, "--emit=forward", "--precision=tf32", "-o", rewritten)
    model = onnx.load(str(rewritten))
    onnx.checker.check_model(model, full_check=True)
    node = next(n for n in model.graph.node if n.op_type == "round_tf32" and n.input[0] == "x")
    del model.graph.node[:], model.graph.output[:], model.graph.initializer[:]
    model.graph.node.append(node)
    model.graph.output.append(info(node.output[0], TensorProto.FLOAT, [1, x.size]))
    alone, data, outputs = test.temp / "alone.onnx", test.temp / "x.safetensors", test.temp / "y.safetensors"
    onnx.save(model, str(alone))
    save_file({"x": x.reshape(1, -1)}, data)
    session = onnxruntime.InferenceSession(str(alone), providers=["CPUExecutionProvider"])
    test.check(same(session.run(None, {"x": x.reshape(1, -1)})[0].ravel(), rounded(x)),
               f"opset {opset}: the body on onnxruntime rounds {x.size} numbers exactly")
    test.tool("recast-run", alone, f"--data={data}", "--data-layout=single", "--steps=1", f"--outputs={outputs}")
    test.check(same_bits(kit.load(outputs)[node.output[0]].ravel(), rounded(x)),
               f"opset {opset}: the kernel rounds {x.size} numbers exactly")


def check_step(test):
    """Every factor of a product in a whole step comes from a rounding, forward and backward."""
    source, step, again = test.corpus / "torch/lenet/model.onnx", test.temp / "step.onnx", test.temp / "again.onnx"
    test.tool("recast-opt", source, "--precision=tf32", "-o", step)
    model = onnx.load(str(step))
    onnx.checker.check_model(model, full_check=True)
    makers = {name: n for n in model.graph.node for name in n.output}
    products = [n for n in model.graph.node
                if n.op_type in ("MatMul", "Gemm", "Conv", "conv_grad_input", "conv_grad_weight")]
    bare = [f"{n.name}: {name}" for n in products for name in n.input[:2]
            if name not in makers or makers[name].op_type != "round_tf32"]
    kinds = {n.op_type for n in products}
    test.check(not bare and {"conv_grad_weight", "Conv"} <= kinds,
               f"{len(products)} products ({', '.join(sorted(kinds))}) read rounded factors {bare[:4]}")
    rounded_values = [n.input[0] for n in model.graph.node if n.op_type == "round_tf32"]
    test.check(len(rounded_values) == len(set(rounded_values)), f"{len(rounded_values)} values are rounded once each")
    test.tool("recast-opt", step, "--emit=forward", "--precision=tf32", "-o", again)
    test.check(step.read_bytes() == again.read_bytes(), "a second run gives the same bytes")


def main():
    test = kit.Test(__doc__)
    for opset in (9, 13, 20):
        check_rounding(test, opset)
    check_step(test)
    test.finish()


if __name__ == "__main__":
    main()
