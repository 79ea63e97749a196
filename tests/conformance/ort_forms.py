"""Training graphs as ONNX Runtime Training writes them become step models, with our own backward.

The artifacts (training_model.onnx, adamw.onnx) describe a two-layer classifier, whose loss, gradients and AdamW step are
computed here in numpy in double: 1e-12 relative (both sides round at 1e-16). The loss in f32 equals what onnxruntime
computes from eval_model.onnx: 1e-6, a few f32 roundings of a sum over 784. The Bloom graph of ORTModule is checked as it
is, and trained with all its sizes divided: its gradients, in f64, against central differences along random directions
(1e-9: four points
leave a truncation of h^4, and h = 1e-5 a rounding of 1e-16 / h = 1e-11, of a loss of a few units).
Each operator of com.microsoft that onnxruntime runs on a CPU is compared with it: 2e-6, f32 rounding in another order.
"""
import json

import kit
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

EXACT, F32, DIFFERENCE, STEP = 1e-12, 2e-6, 1e-9, 1e-5
ORT_DOMAINS = ("com.microsoft", "org.pytorch.aten")
PARAMETERS = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]


def session(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def value_info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def check_file(test, name, path):
    onnx.checker.check_model(str(path), full_check=True)
    model = kit.load_model(path)
    foreign = sorted({n.op_type for n in kit.walk_nodes(model.graph) if n.domain in ORT_DOMAINS})
    test.check(not foreign, f"{name}: passes the checker, no operators of onnxruntime left {foreign}")
    return model


def classifier(p, x, labels):
    """(loss, gradients) in double."""
    p = {k: v.astype(np.float64) for k, v in p.items()}
    x = x.astype(np.float64)
    before = x @ p["fc1.weight"].T + p["fc1.bias"]
    hidden = np.maximum(before, 0)
    scores = hidden @ p["fc2.weight"].T + p["fc2.bias"]
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    rows = np.arange(len(labels))
    dscores = np.exp(logs)
    dscores[rows, labels] -= 1
    dscores /= len(labels)
    dhidden = dscores @ p["fc2.weight"] * (before > 0)
    return -logs[rows, labels].mean(), {"fc1.weight": dhidden.T @ x, "fc1.bias": dhidden.sum(0),
                                        "fc2.weight": dscores.T @ hidden, "fc2.bias": dscores.sum(0)}


def adamw(test, attributes, start, x, labels, steps, lr=0.01):
    """The parameters after some steps, by the formulas of ONNX Runtime's AdamWOptimizer (mode 1: those of the library
    transformers), in double."""
    # In f64, recast takes the attributes for the decimals that they were: 1e-6 and not its nearest float.
    alpha, beta, eps, decay = (float(f"{attributes[n]:.6g}") for n in ("alpha", "beta", "epsilon", "weight_decay"))
    p = {n: v.astype(np.float64) for n, v in start.items()}
    m, v = ({n: np.zeros_like(a) for n, a in p.items()} for _ in range(2))
    for t in range(1, steps + 1):
        c1, c2 = (1 - alpha ** t, 1 - beta ** t) if attributes["correct_bias"] else (1, 1)
        for n, g in classifier(p, x, labels)[1].items():
            m[n] = alpha * m[n] + (1 - alpha) * g
            v[n] = beta * v[n] + (1 - beta) * g * g
            if attributes["adam_mode"] == 0:
                p[n] = p[n] * (1 - lr * decay) - lr / c1 * m[n] / (np.sqrt(v[n] / c2) + eps)
            else:
                p[n] = p[n] - lr * np.sqrt(c2) / c1 * m[n] / (np.sqrt(v[n]) + eps)
                p[n] = p[n] - lr * decay * p[n]
    return p


def artifacts(test):
    folder = test.corpus / "ort"
    model, optimizer = folder / "training_model.onnx", folder / "adamw.onnx"
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in kit.load_model(model).graph.input}
    random = np.random.default_rng(5)
    start = {n: (random.standard_normal(shapes[n]) * 0.05).astype(np.float32) for n in PARAMETERS}
    x = random.standard_normal((16, 784)).astype(np.float32)
    labels = random.integers(0, 10, 16).astype(np.int32)
    state, data = test.temp / "start.safetensors", test.temp / "data.safetensors"
    save_file(start, state)
    save_file({"input-0": x, "labels": labels}, data)
    loss, gradients = classifier(start, x, labels)

    gradient, outputs = test.temp / "gradient.onnx", test.temp / "gradient.safetensors"
    test.tool("recast-opt", model, "--emit=gradient", "--dtype=f64", f"--state-in={state}", "-o", gradient)
    test.tool("recast-run", gradient, f"--data={data}", "--data-layout=single", f"--outputs={outputs}")
    got = kit.load(outputs)
    test.all_close("artifacts: gradients", {n: (got.get(f"grad.{n}", np.zeros(0))[0], gradients[n]) for n in PARAMETERS},
                   EXACT)

    step, after, outputs = test.temp / "step.onnx", test.temp / "after.safetensors", test.temp / "out.safetensors"
    flags = [f"--state-in={state}", f"--optimizer-model={optimizer}", "--lr=0.01"]
    done = test.tool("recast-opt", model, *flags, "--dtype=f64", "-o", step)
    test.check("start as zeros" not in done.stderr, "artifacts: every parameter has a value from --state-in")
    check_file(test, "artifacts: f64 step", step)
    test.tool("recast-run", step, f"--data={data}", "--data-layout=single", "--steps=1", f"--state-out={after}")
    got = kit.load(after)
    attributes = {a.name: helper.get_attribute_value(a) for a in kit.load_model(optimizer).graph.node[0].attribute}
    want = adamw(test, attributes, start, x, labels, steps=1)
    test.all_close("artifacts: AdamW with the numbers of the optimizer model", {n: (got.get(n), want[n]) for n in want},
                   EXACT)
    changed = onnx.load(optimizer)
    for mode, correct, decay in ((0, 1, 0.1), (1, 1, 0.1), (1, 0, 0.1)):
        for attribute in changed.graph.node[0].attribute:
            if attribute.name in ("adam_mode", "correct_bias"):
                attribute.i = mode if attribute.name == "adam_mode" else correct
            elif attribute.name == "weight_decay":
                attribute.f = decay
        onnx.save(changed, test.temp / "changed.onnx")
        test.tool("recast-opt", model, flags[0], f"--optimizer-model={test.temp / 'changed.onnx'}", "--lr=0.01",
                  "--dtype=f64", "-o", step)
        test.tool("recast-run", step, f"--data={data}", "--data-layout=single", "--steps=3", f"--state-out={after}")
        got = kit.load(after)
        want = adamw(test, {a.name: helper.get_attribute_value(a) for a in changed.graph.node[0].attribute}, start, x,
                     labels, steps=3)
        # Adam divides by gradients that may be small, which magnifies their rounding.
        test.all_close(f"artifacts: AdamW in mode {mode}, correct_bias {correct}, three steps",
                       {n: (got.get(n), want[n]) for n in want}, 1e-10)

    decayed = test.temp / "decayed.onnx"
    test.tool("recast-opt", model, *flags, "--optimizer=sgd", "--weight-decay=0.5", "--dtype=f64", "-o", decayed)
    test.tool("recast-run", decayed, f"--data={data}", "--data-layout=single", "--steps=1", f"--state-out={after}")
    want = {n: start[n] - 0.01 * (gradients[n] + 0.5 * start[n]) for n in PARAMETERS}
    test.all_close("artifacts: flags win over the optimizer model",
                   {n: (kit.load(after).get(n), want[n]) for n in want}, EXACT)

    test.tool("recast-opt", model, *flags, "-o", step)
    written = check_file(test, "artifacts: f32 step", step)
    test.check(json.loads(kit.metadata(written)["recast.parameters"]) == PARAMETERS, "artifacts: the parameters")
    test.tool("recast-run", step, f"--data={data}", "--data-layout=single", "--steps=20", f"--outputs={outputs}")
    losses = kit.load(outputs)[kit.metadata(written)["recast.loss"]].ravel()
    evaluated = session(str(folder / "eval_model.onnx")).run(None, {"input-0": x, "labels": labels, **start})[0]
    test.close("artifacts: f32 loss beside eval_model.onnx on onnxruntime", losses[0], evaluated, F32)
    test.close("artifacts: f32 loss beside numpy", losses[0], loss, F32)
    test.check(losses[-1] < 0.2 * losses[0], f"artifacts: the loss falls, {losses[0]:.4f} to {losses[-1]:.4f}")

    done = test.tool("recast-opt", model, "-o", step)
    test.check("4 of 4 parameters" in done.stderr and "--state-in" in done.stderr,
               "artifacts: without values the parameters are zeros, and a warning says so")
    check_file(test, "artifacts: step without values", step)
    listed = json.loads(test.tool("recast-inspect", model, "--trainable", "--json=-").stdout)
    test.check([t["name"] for t in listed["trainable"]] == PARAMETERS, "artifacts: recast-inspect lists the parameters")
    strange = onnx.load(model)
    next(n for n in strange.graph.node if n.op_type == "Relu").CopyFrom(
        helper.make_node("Mystery", ["/fc1/Gemm_output_0"], ["/relu/Relu_output_0"], "riddle", domain="com.microsoft"))
    onnx.save(strange, test.temp / "strange.onnx")
    done = test.tool("recast-opt", test.temp / "strange.onnx", "-o", step, ok=False)
    test.check(done.returncode == 1 and "riddle" in done.stderr and done.stderr.count("error:") == 1,
               f"artifacts: an unknown operator is named: {done.stderr.strip()}")
    done = test.tool("recast-opt", model, f"--optimizer-model={folder / 'eval_model.onnx'}", "-o", step, ok=False)
    test.check(done.returncode == 1 and "AdamWOptimizer" in done.stderr,
               f"artifacts: a model without an optimizer is refused: {done.stderr.strip()}")


def operators(test):
    """Each operator between a parameter and the loss, in the form that marks a training graph."""
    random = np.random.default_rng(7)
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)
    cases = {
        "FastGelu": ([array(3, 5)], {}),
        "FastGelu with a bias": ([array(3, 5), array(5)], {}),
        "Gelu": ([array(3, 5)], {}),
        "BiasGelu": ([array(3, 5), array(5)], {}),
        "QuickGelu": ([array(3, 5)], {"alpha": 1.5}),
        "FusedMatMul": ([array(2, 3, 4), array(2, 4, 5)], {"alpha": 0.25}),
        "FusedMatMul transposed": ([array(2, 4, 3), array(2, 5, 4)], {"transA": 1, "transB": 1, "alpha": -2.0}),
    }
    for name, (arrays, attributes) in cases.items():
        node = helper.make_node(name.split()[0], [f"x{i}" for i in range(len(arrays))], ["y"], "op",
                                domain="com.microsoft", **attributes)
        inputs = [value_info(f"x{i}", a) for i, a in enumerate(arrays)]
        weights = numpy_helper.from_array(random.standard_normal(64).astype(np.float32)[:5], "c")
        tail = [helper.make_node("Mul", ["y", "c"], ["z"]), helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0)]
        loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        forward = helper.make_model(helper.make_graph([node, *tail], "g", inputs, [loss], [weights]),
                                    opset_imports=opsets, ir_version=8)
        backward = helper.make_node("ReluGrad", ["x0", "x0"], ["x0_grad"], domain="com.microsoft")
        training = helper.make_model(
            helper.make_graph([node, *tail, backward], "g", inputs, [loss, value_info("x0_grad", arrays[0])], [weights]),
            opset_imports=opsets, ir_version=8)
        onnx.save(training, test.temp / "op.onnx")
        save_file({"x0": arrays[0]}, test.temp / "x0.safetensors")
        data = {f"x{i}": a for i, a in enumerate(arrays) if i} or {"x0": arrays[0]}
        gradient, outputs = test.temp / "op_gradient.onnx", test.temp / "op.safetensors"
        test.tool("recast-opt", test.temp / "op.onnx", "--emit=gradient", f"--state-in={test.temp / 'x0.safetensors'}",
                  "-o", gradient)
        check_file(test, name, gradient)
        save_file(data, test.temp / "op_data.safetensors")
        given = [f"--data={test.temp / 'op_data.safetensors'}", "--data-layout=single"] if "x1" in data else []
        test.tool("recast-run", gradient, *given, f"--outputs={outputs}")
        want = session(forward.SerializeToString()).run(None, {f"x{i}": a for i, a in enumerate(arrays)})[0]
        size = np.abs(want) + 1
        test.within(name, kit.load(outputs)["loss"].ravel()[0], want, F32 * size, "f32 rounding of the sum")


def counterparts(test):
    """The operators that onnxruntime's own package does not run, against numpy: exact sums of a few f32 numbers."""
    random = np.random.default_rng(9)
    array = lambda *shape: random.standard_normal(shape).astype(np.float32)
    ints = lambda *values: np.array(values, np.int64)
    x, b, r = array(2, 5), array(5), array(2, 5)
    table, rows = array(4, 3), np.array([[1, 2, 1], [0, 3, 3]])
    scores, labels = array(6, 4), np.array([0, 3, -7, 1, -7, 2])
    logs = scores - np.log(np.exp(scores.astype(np.float64)).sum(1, keepdims=True))
    kept = labels >= 0
    off, on = np.float32(0), np.array(True)
    cases = {  # operator, domain, attributes -> inputs (the first is the parameter), number of outputs, result
        ("ConcatTraining", "axis=1"): ([x, r], 2, np.concatenate([x, r], 1)),
        ("ReduceSumTraining", "keepdims=0"): ([x, ints(1)], 1, x.sum(1)),
        ("SplitTraining", "axis=1"): ([x, ints(2, 3)], 2, x[:, :2]),
        ("BitmaskDropout", ""): ([x, off, on], 2, x),
        ("BiasDropout", ""): ([x, b, r, off, on], 2, x + b + r),
        ("BitmaskBiasDropout", ""): ([x, b, None, off, on], 2, x + b),
        ("ATen", "operator=embedding"): ([table, rows, np.int64(1), np.array(False), np.array(False)], 1, table[rows]),
        ("SoftmaxCrossEntropyLossInternal", "reduction=sum"): (
            [scores, labels, None, np.int64(-7)], 2, -logs[np.arange(6)[kept], labels[kept]].sum()),
    }
    for (kind, attribute), (inputs, count, want) in cases.items():
        key, _, value = attribute.partition("=")
        attributes = {key: int(value) if value.isdigit() else value} if key else {}
        domain = "org.pytorch.aten" if kind == "ATen" else "com.microsoft"
        names = [f"x{i}" if v is not None else "" for i, v in enumerate(inputs)]
        weights = np.asarray(random.standard_normal(np.shape(want)), np.float32)
        constants = [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names[1:], inputs[1:]) if n]
        graph = helper.make_graph(
            [helper.make_node(kind, names, [f"y{i}" for i in range(count)], "op", domain=domain, **attributes),
             helper.make_node("Mul", ["y0", "c"], ["z"]), helper.make_node("ReduceSum", ["z"], ["loss"], keepdims=0),
             helper.make_node("ReluGrad", ["x0", "x0"], ["x0_grad"], domain="com.microsoft")], "g",
            [value_info("x0", inputs[0])],
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []), value_info("x0_grad", inputs[0])],
            [*constants, numpy_helper.from_array(weights, "c")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)],
                                    ir_version=8), test.temp / "op.onnx")
        save_file({"x0": inputs[0]}, test.temp / "x0.safetensors")
        gradient, outputs = test.temp / "op_gradient.onnx", test.temp / "op.safetensors"
        test.tool("recast-opt", test.temp / "op.onnx", "--emit=gradient", f"--state-in={test.temp / 'x0.safetensors'}",
                  "-o", gradient)
        check_file(test, kind, gradient)
        test.tool("recast-run", gradient, f"--outputs={outputs}")
        got = kit.load(outputs)
        products = np.asarray(want, np.float64) * weights
        test.within(kind, got["loss"].ravel()[0], products.sum(), F32 * np.abs(products).sum(), "f32 rounding of the sum")
        if kind == "ATen":
            expected = np.zeros(table.shape)
            np.add.at(expected, rows.ravel(), weights.reshape(-1, 3))
            expected[1] = 0  # padding_idx: look-ups of that row give it no gradient
            test.close("ATen: the padding row has no gradient", got["grad.x0"][0], expected, F32)


def old_opsets(test):
    """LayerNormalization in opset 12, where Softmax means something else than in 17."""
    x = np.zeros((2, 3), np.float32)
    graph = helper.make_graph(
        [helper.make_node("LayerNormalization", ["x", "s", "b"], ["n", "mean", "deviation"], "norm"),
         helper.make_node("Softmax", ["n"], ["p"], "soft"),
         helper.make_node("ReduceMean", ["p"], ["loss"], keepdims=0),
         helper.make_node("ReluGrad", ["s", "s"], ["s_grad"], domain="com.microsoft")], "g",
        [value_info("x", x), value_info("s", x[0]), value_info("b", x[0])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, []), value_info("s_grad", x[0])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12), helper.make_opsetid("com.microsoft", 1)],
                              ir_version=7)
    onnx.save(model, test.temp / "old.onnx")
    done = test.tool("recast-opt", test.temp / "old.onnx", "-o", test.temp / "new.onnx", ok=False)
    test.check(done.returncode == 1 and "'soft'" in done.stderr and done.stderr.count("error:") == 1,
               f"an opset that cannot be raised is refused: {done.stderr.strip()}")


def shrunk(source, target):
    """The Bloom graph with hidden size 32 (16 heads of 2) and a vocabulary of 61 in f32: the numbers that are sizes."""
    sizes = {1024: 32, 64: 2, 4096: 128, 3072: 96, 250880: 61}
    model = onnx.load(source)
    for info in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value in sizes:
                dim.dim_value = sizes[dim.dim_value]
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.INT64:
            values = numpy_helper.to_array(tensor)
            changed = np.array([sizes.get(int(v), int(v)) for v in values.ravel()], np.int64).reshape(values.shape)
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    onnx.save(model, target)
    return {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input[3:]}


def bloom(test):
    source = test.corpus / "ort" / "bloom3_training.onnx"
    dims = ["--dim=inputs_input_ids_dim0=2", "--dim=inputs_attention_mask_dim0=2", "--dim=inputs_labels_dim0=2",
            "--dim=inputs_attention_mask_dim1=6", "--dim=inputs_labels_dim1=6"]
    # The embedding alone has 257 million elements: the file holds it once, and nothing for its gradient.
    step = test.temp / "bloom.onnx"
    test.tool("recast-opt", source, *dims, "--emit=gradient", "--freeze=*word_embeddings.weight", "-o", step)
    onnx.checker.check_model(str(step))
    model = kit.load_model(step)
    del model.graph.initializer[:]
    names = [o.name.removeprefix("grad.") for o in model.graph.output if o.name.startswith("grad.")]
    inputs = [i.name for i in kit.load_model(source).graph.input[3:]]
    test.check(names == [n for n in inputs if not n.endswith("word_embeddings.weight")],
               f"bloom: passes the checker, {len(names)} parameters")
    test.check({n.domain for n in model.graph.node} == {"", "recast"}, "bloom: standard operators and recast's own")
    step.unlink()
    # It is f16 throughout: a step of it would have no fp32 master weights.
    refused = test.tool("recast-opt", source, *dims, "-o", step, ok=False)
    test.check(refused.returncode == 1 and "is f16: without fp32 master weights" in refused.stderr
               and not step.exists(), "bloom: f16 parameters are refused by name, and nothing is written")

    small = test.temp / "small.onnx"
    shapes = shrunk(source, small)
    test.tool("recast-opt", small, *dims, "--dtype=f32", "--precision=bf16", "-o", step)
    onnx.checker.check_model(str(step))
    test.check(len(json.loads(kit.metadata(kit.load_model(step))["recast.parameters"])) == len(shapes),
               "bloom, small: with --dtype=f32 there is a step for all parameters")
    random = np.random.default_rng(11)
    start = {n: random.standard_normal(s) * 0.3 + ("norm" in n and n.endswith("weight")) for n, s in shapes.items()}
    ids, mask = random.integers(0, 61, (2, 6)), np.array([[1] * 6, [0, 0, 1, 1, 1, 1]])
    labels = np.where(mask > 0, ids, -100)
    data, state, outputs = test.temp / "ids.safetensors", test.temp / "p.safetensors", test.temp / "o.safetensors"
    save_file({"inputs_input_ids": ids, "inputs_attention_mask": mask, "inputs_labels": labels}, data)

    def gradient(values):
        save_file({n: v.astype(np.float64) for n, v in values.items()}, state)
        test.tool("recast-opt", small, *dims, "--dtype=f64", "--emit=gradient", f"--state-in={state}", "-o", step)
        test.tool("recast-run", step, f"--data={data}", "--data-layout=single", f"--outputs={outputs}")
        return kit.load(outputs)

    start = {n: v.astype(np.float16).astype(np.float64) for n, v in start.items()} # what the file's type can hold
    base = gradient(start)
    loss = base["output-0"].ravel()[0]
    test.check(1 < loss < 30, f"bloom, small: loss {loss:.4f}")
    for trial in range(3):
        direction = {n: random.standard_normal(v.shape) for n, v in start.items()}
        # --state-in keeps the file's type, f16: the points beside it go into the f64 gradient model itself.
        at = lambda distance: run_moved(test, step, start, direction, distance * STEP, data, outputs)
        difference = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * STEP)
        along = sum(float((base[f"grad.{n}"][0] * d).sum()) for n, d in direction.items())
        test.close(f"bloom, small: derivative along direction {trial}", along, difference, DIFFERENCE)


def run_moved(test, step, start, direction, distance, data, outputs):
    model = onnx.load(step)
    for tensor in model.graph.initializer:
        if tensor.name in start:
            tensor.CopyFrom(numpy_helper.from_array(start[tensor.name] + distance * direction[tensor.name], tensor.name))
    path = test.temp / "moved.onnx"
    onnx.save(model, path)
    test.tool("recast-run", path, f"--data={data}", "--data-layout=single", f"--outputs={outputs}")
    return float(kit.load(outputs)["output-0"].ravel()[0])


def main():
    test = kit.Test(__doc__)
    artifacts(test)
    operators(test)
    counterparts(test)
    old_opsets(test)
    bloom(test)
    test.finish()


if __name__ == "__main__":
    main()
