"""Models, batches and outputs that are wrong in one place each end in one error that says which, and change nothing.

Most of the models pass onnx.checker, or its inference only in part: what it does not look at is checked by recast. The
expected words are the name of the node or tensor at fault and what is wrong with it.
"""
import os
import resource
import signal
import subprocess

import kit
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SECONDS, ADDRESS_SPACE = 60, 4 << 30
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
BEFORE = b"what was there before"
node, info = helper.make_node, helper.make_tensor_value_info


def model(nodes, x=(4, 3), w=(3, 3), inputs=(), constants=None, functions=()):
    """loss of x and w, with `h` as the value before the mean."""
    values = {"w": np.ones(w, np.float32), **{n: np.asarray(v) for n, v in (constants or {}).items()}}
    if not any("loss" in n.output for n in nodes):
        nodes = [*nodes, node("ReduceMean", ["h"], ["loss"], "mean", keepdims=0)]
    graph = helper.make_graph(nodes, "wrong", [info("x", FLOAT, x), *inputs], [info("loss", FLOAT, [])],
                              [numpy_helper.from_array(v, n) for n, v in values.items()])
    opsets = [helper.make_opsetid("", 17)] + [helper.make_opsetid("local", 1)] * bool(functions)
    return helper.make_model(graph, ir_version=8, opset_imports=opsets, functions=functions)


def twice(built):
    built.graph.node[0].attribute.add().CopyFrom(helper.make_attribute("axis", 0))
    return built


def calls(count, times):
    """`count` functions, of which each calls the one before `times` times."""
    made = []
    for i in range(count):
        body = [node(f"F{i - 1}", ["a" if k == 0 else f"t{k}"], [f"t{k + 1}"], domain="local") for k in range(times)]
        body = body if i else [node("Tanh", ["a"], [f"t{times}"])]
        made.append(helper.make_function("local", f"F{i}", ["a"], [f"t{times}"], body,
                                         [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]))
    return model([node("MatMul", ["x", "w"], ["p"], "product"),
                  node(f"F{count - 1}", ["p"], ["h"], "call", domain="local")], functions=made)


def wrong_models():
    """name -> (model, words of the error)."""
    product = node("MatMul", ["x", "w"], ["p"], "product")
    conv = {"x": (1, 4, 5, 5), "w": (6, 4, 3, 3)}
    labels = [info("y", INT64, [5])]
    return {
        "inputs too many": (model([product, node("Relu", ["p", "x"], ["h"], "relu")]), ["relu", "input size 2"]),
        "inputs too few": (model([node("MatMul", ["x"], ["h"], "product")]), ["product", "input size 1"]),
        "attribute unknown": (model([node("MatMul", ["x", "w"], ["h"], "product", sharp=1)]), ["product", "sharp"]),
        "attribute of another type": (model([node("Gemm", ["x", "w"], ["h"], "product", transB=1.0)]),
                                      ["product", "transB"]),
        "attribute twice": (twice(model([node("Softmax", ["x"], ["s"], "soft", axis=1),
                                         node("MatMul", ["s", "w"], ["h"], "product")])), ["soft", "axis"]),
        "types mixed": (model([product, node("Mul", ["p", "i"], ["h"], "scaled")], constants={"i": np.arange(3)}),
                        ["scaled", "i", "i64"]),
        "groups none": (model([node("Conv", ["x", "w"], ["h"], "conv", group=0)], **conv), ["conv", "group", "0"]),
        "groups too many": (model([node("Conv", ["x", "w"], ["h"], "conv", group=3)], **conv), ["conv", "4", "12"]),
        "kernel beyond the image": (model([node("Conv", ["x", "w"], ["h"], "conv")], x=(1, 4, 1, 1), w=(6, 4, 3, 3)),
                                    ["conv", "-1"]),
        "pool beyond all sizes": (model([node("Conv", ["x", "w"], ["c"], "conv"),
                                         node("AveragePool", ["c"], ["h"], "pool", kernel_shape=[2 ** 62, 2])], **conv),
                                  ["pool"]),
        "labels of another batch": (model([product, node("SoftmaxCrossEntropyLoss", ["p", "y"], ["loss"], "ce")],
                                          inputs=labels), ["ce", "tensor<5xi64>", "tensor<4x3xf32>"]),
        "reduction unknown": (model([product, node("SoftmaxCrossEntropyLoss", ["p", "y"], ["loss"], "ce",
                                                   reduction="median")], x=(5, 3), inputs=labels), ["ce", "median"]),
        "axis out of range": (model([product, node("Softmax", ["p"], ["h"], "soft", axis=7)]), ["soft", "7"]),
        "calls of calls": (calls(40, 2), ["more than 10000000 nodes"]),
        "calls too deep": (calls(300, 1), ["more than 100 others"]),
        "larger than memory": (model([node("MatMul", ["x", "w"], ["h"], "product")], x=(2 ** 62, 3)), ["x", "memory"]),
        "blocks beyond an int": (model([node("MatMul", ["x", "w"], ["h"], "product")], x=(2 ** 40, 3)), ["memory"]),
    }


def refused(test, what, tool, arguments, words, code=1, outputs=(), prepare=None):
    """One error with all words, the exit code, and outputs as they were."""
    for output in outputs:
        output.write_bytes(BEFORE)
    before = sorted(p.name for p in test.temp.iterdir())

    def limits():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        if prepare:
            prepare()
    try:
        done = subprocess.run([str(test.bin / tool), *map(str, arguments)], capture_output=True, text=True,
                              errors="replace", timeout=SECONDS, cwd=test.temp, preexec_fn=limits)
    except subprocess.TimeoutExpired:
        return test.check(False, f"{what}: still running after {SECONDS} s")
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    missing = [word for word in words if not any(kit.mentions(line, word) for line in errors)]
    test.check(done.returncode == code and len(errors) == 1 and not missing,
               f"{what}: {done.returncode} {errors or done.stderr[-300:]} {f'without {missing}' if missing else ''}")
    left = sorted(set(p.name for p in test.temp.iterdir()) ^ set(before))
    kept = all(output.read_bytes() == BEFORE for output in outputs)
    return test.check(kept and not left, f"{what}: outputs are as they were {left}")


def check_names(test):
    """Bytes that are no text where a tensor is named: reports, states and logs could not hold it."""
    file, out = test.temp / "input.onnx", test.temp / "out.onnx"
    built = model([node("MatMul", ["x", "w"], ["hidden"], "product"),
                   node("ReduceMean", ["hidden"], ["loss"], "mean", keepdims=0)])
    file.write_bytes(built.SerializeToString().replace(b"hidden", b"h\xff\xfe\x80\xc0\xc1"))
    refused(test, "a name that is no UTF-8", "recast-opt", [file, "-o", out], ["input.onnx", "tensor", "UTF"],
            outputs=[out])


def check_models(test):
    out = test.temp / "out.onnx"
    for what, (built, words) in wrong_models().items():
        file = test.temp / "input.onnx"
        onnx.save(built, str(file))
        if "memory" in words:
            test.tool("recast-opt", file, "-o", test.temp / "step.onnx")
            refused(test, what, "recast-run", [test.temp / "step.onnx", "--explain"], words)
            continue
        refused(test, what, "recast-opt", [file, "-o", out], words, outputs=[out])


def check_batches(test, step):
    random, file, state = np.random.default_rng(0), test.temp / "data.safetensors", test.temp / "state"
    x, y = random.standard_normal((2, 4, 20)).astype(np.float32), random.integers(0, 5, (2, 4))
    for what, tensors, words in [
            ("a width that the model has not", {"x": x[..., :7], "labels": y}, ["x", "7"]),
            ("an axis too many", {"x": x[..., None], "labels": y}, ["x", "1"]),
            ("integers for numbers", {"x": y, "labels": y}, ["x", "i64"]),
            ("numbers for labels", {"x": x, "labels": y.astype(np.float32)}, ["labels", "f32"]),
            ("labels beyond the classes", {"x": x, "labels": y + 100}, ["node_cross_entropy_loss"]),
            ("no labels", {"x": x}, ["labels", "data.safetensors"]),
            ("fewer batches of labels", {"x": x, "labels": y[:1]}, ["labels"]),
            ("fewer labels than rows", {"x": x, "labels": y[:, :3]}, ["labels", "batch"]),
            ("no batch at all", {"x": x[:0], "labels": y[:0]}, ["data.safetensors"]),
            ("a scalar", {"x": np.float32(3), "labels": y}, ["x", "scalar"])]:
        kit.save(file, tensors)
        run = [step, f"--data={file}", "--data-layout=batches", f"--state-out={state}"]
        refused(test, what, "recast-run", run, words, outputs=[state])
    kit.save(file, {"x": x, "labels": y})
    return file


def no_longer_than(size):
    """Files of this process end at `size` bytes, as on a full disk."""
    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return prepare


def check_outputs(test, source, step, data):
    out, other = test.temp / "out.onnx", test.temp / "other"
    run = [step, f"--data={data}", "--data-layout=batches"]
    for size in (0, 1000):
        full = no_longer_than(size)
        refused(test, f"a disk with {size} bytes: model", "recast-opt", [source, "-o", out], [out.name], outputs=[out],
                prepare=full)
        refused(test, f"a disk with {size} bytes: plan", "recast-opt",
                [step, "--dim=batch=4", "--emit=plan", "-o", out], [out.name], outputs=[out], prepare=full)
        refused(test, f"a disk with {size} bytes: state", "recast-run", [*run, f"--state-out={out}"], [out.name],
                outputs=[out], prepare=full)
        refused(test, f"a disk with {size} bytes: outputs, and a state", "recast-run",
                [*run, f"--outputs={other}", f"--state-out={out}"], [], outputs=[out, other], prepare=full)
    missing = test.temp / "nowhere" / "out"
    refused(test, "no such folder: model", "recast-opt", [source, "-o", missing], [str(missing)])
    refused(test, "no such folder: state", "recast-run", [*run, f"--state-out={missing}"], [str(missing)])
    # What is no file is written to, and stays what it is.
    pipe = test.temp / "pipe"
    os.mkfifo(pipe)
    for tool, arguments in (("recast-opt", [source, "-o", pipe]), ("recast-run", [*run, f"--state-out={pipe}"])):
        with subprocess.Popen([str(test.bin / tool), *map(str, arguments)], stderr=subprocess.DEVNULL) as process:
            sent = pipe.read_bytes()
        test.check(process.returncode == 0 and sent and pipe.is_fifo(), f"{tool}: {len(sent)} bytes through a pipe")


def main():
    test = kit.Test(__doc__)
    check_models(test)
    check_names(test)
    source, step = test.corpus / "torch/mlp/model.onnx", test.temp / "mlp.onnx"
    test.tool("recast-opt", source, "-o", step)
    data = check_batches(test, step)
    check_outputs(test, source, step, data)
    test.finish()


if __name__ == "__main__":
    main()
