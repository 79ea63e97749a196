"""Delayed scaling: the corpus's amax sequences give its scales exactly, and a step model follows the same rule.

The operator `recast.update_amax` runs natively in the bundled runtime, and by its body on onnxruntime; both must give
every scale and the history at the end exactly (f32, NaN matches NaN). End to end, a model trains in fp8-delayed: the newest
entry of a history is the amax of the tensor in that step, the scale follows from the history, and a step that overflows
leaves both bit for bit as they were.
"""
import json

import kit
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

FORMATS = {"e4m3fn": TensorProto.FLOAT8E4M3FN, "e5m2": TensorProto.FLOAT8E5M2}
LARGEST = {number: np.float32(ml_dtypes.finfo(dtype).max)
           for number, dtype in ((TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
                                 (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2))}
STATE = {"amax_history": "amax_history.next", "scale": "scale.next"}


def build(case):
    """One call of update_amax; history and scale are state."""
    length = case["history_length"]
    node = helper.make_node("update_amax", ["skip", "amax_history", "scale", "amax"], list(STATE.values()),
                            domain="recast", to=FORMATS[case["format"]], algorithm=case["algorithm"],
                            margin=case["margin"], nan=case["nan_in_max"])
    shapes = {"skip": [], "amax_history": [length], "scale": [], "amax": []}
    inputs = [helper.make_tensor_value_info(n, TensorProto.BOOL if n == "skip" else TensorProto.FLOAT, shape)
              for n, shape in shapes.items()]
    outputs = [helper.make_tensor_value_info(STATE[n], TensorProto.FLOAT, shapes[n]) for n in STATE]
    initial = [onnx.numpy_helper.from_array(np.zeros(length, np.float32), "amax_history"),
               onnx.numpy_helper.from_array(np.ones((), np.float32), "scale")]
    model = helper.make_model(helper.make_graph([node], "delayed", inputs, outputs, initial), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("recast", 1)])
    helper.set_model_props(model, {"recast.state": json.dumps(STATE)})
    return model


def run_native(test, path, amax, skip):
    data, outputs = test.temp / "amax.safetensors", test.temp / "outputs.safetensors"
    kit.save(data, {"amax": amax, "skip": skip})
    test.tool("recast-run", path, f"--data={data}", "--data-layout=batches", f"--steps={len(amax)}",
              f"--outputs={outputs}")
    got = kit.load(outputs)
    return got["scale.next"].ravel(), got["amax_history.next"]


def run_onnxruntime(path, amax, skip):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names, state, scales, histories = [o.name for o in session.get_outputs()], {}, [], []
    for value, skipped in zip(amax, skip):
        got = dict(zip(names, session.run(None, {"amax": np.array(value), "skip": np.array(skipped), **state})))
        state = {source: got[target] for source, target in STATE.items()}
        scales.append(got["scale.next"])
        histories.append(got["amax_history.next"])
    return np.array(scales, np.float32), np.array(histories)


def compare(test, label, case, got, skip):
    scales, histories = got
    want = np.array([float.fromhex(text) for text in case["scale_after_hex"]], np.float32)
    end = np.array([float(v) for v in case["history_end"]], np.float32)
    taken = ~skip
    holds = np.array_equal(scales[taken], want) and np.array_equal(histories[-1], end, equal_nan=True)
    # A skipped step keeps what was before it.
    for t in np.flatnonzero(skip):
        before = scales[t - 1] if t else np.float32(1)
        holds &= scales[t] == before and (t == 0 or np.array_equal(histories[t], histories[t - 1], equal_nan=True))
    test.check(bool(holds), label)


def check_traces(test):
    for case in json.loads((test.corpus / "dynamics" / "fp8" / "delayed.json").read_text())["cases"]:
        amax = np.array([float(v) for v in case["amax"]], np.float32)
        none = np.zeros(len(amax), np.bool_)
        # Every third step is a skipped one with an amax that must not count.
        skip = np.arange(len(amax) * 3 // 2) % 3 == 1
        mixed = np.full(len(skip), 1e3, np.float32)
        mixed[~skip] = amax
        calls, complete = test.temp / "calls.onnx", test.temp / "complete.onnx"
        onnx.save(build(case), str(calls))
        test.tool("recast-opt", calls, "--emit=forward", "-o", complete)
        onnx.checker.check_model(str(complete), full_check=True)
        compare(test, case["name"], case, run_native(test, complete, amax, none), none)
        compare(test, f"{case['name']} with skipped steps", case, run_native(test, complete, mixed, skip), skip)
        compare(test, f"{case['name']} on onnxruntime", case, run_onnxruntime(complete, mixed, skip), skip)


def next_scale(history, scale, number, margin):
    """The rule, for histories without NaN and infinities."""
    peak = history.max()
    return np.float32(LARGEST[number] / peak / np.float32(2.0 ** margin)) if peak > 0 else scale


def check_training(test):
    model, steps, length, margin, bad = test.corpus / "torch/mlp/model.onnx", 9, 4, 1, 5
    batches = kit.load(test.corpus / "torch/mlp/reference.safetensors")
    step, data, outputs = (test.temp / n for n in ("step.onnx", "batches.safetensors", "outputs.safetensors"))
    test.tool("recast-opt", model, "--precision=fp8-delayed", f"--fp8-history={length}", f"--fp8-margin={margin}",
              *kit.ADAMW, "-o", step)
    state = json.loads(kit.metadata(kit.load_model(step))["recast.state"])
    histories = [name for name in state if name.endswith(".amax_history")]
    test.check(len(histories) == 3, f"input, weight and gradient of one product have a history: {histories}")
    inputs = {n.removeprefix("in."): v for n, v in batches.items() if n.startswith("in.")}
    repeated = {n: np.concatenate([v] * 3)[:steps].copy() for n, v in inputs.items()}
    floats = next(n for n, v in repeated.items() if v.dtype.kind == "f")
    repeated[floats] = repeated[floats].astype(np.float32)
    repeated[floats][bad].flat[0] = np.inf
    kit.save(data, repeated)
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={steps}",
              f"--outputs={outputs}")
    out = kit.load(outputs)
    skipped = out["found_inf"].ravel()
    test.check(np.array_equal(np.flatnonzero(skipped), [bad]), f"only step {bad}, with an infinite input, is skipped")
    formats = {n.input[1]: next(a.i for a in n.attribute if a.name == "to")
               for n in kit.load_model(step).graph.node if n.op_type == "update_amax"}
    initial = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(str(step)).graph.initializer}
    for name in histories:
        tensor = name.removesuffix(".amax_history")
        history, scale = out[state[name]], out[state[f"{tensor}.fp8_scale"]].ravel()
        kept = np.array_equal(history[bad], history[bad - 1]) and scale[bad] == scale[bad - 1]
        test.check(kept, f"{tensor}: the skipped step changes neither history nor scale")
        rule, before = True, np.float32(1)
        for t in range(steps):
            if not skipped[t]:
                rule &= bool(history[t][0] == 0 and history[t][-1] > 0)
                # The entry that leaves when a step is added still counts in that step.
                earlier = history[t - 1] if t else np.zeros(length, np.float32)
                seen = np.append(earlier[1:], history[t][-1])
                rule &= bool(scale[t] == next_scale(seen, before, formats[name], margin))
            before = scale[t]
        test.check(rule, f"{tensor}: the scale of every step follows from the amax history")
        if tensor in state:
            values = np.concatenate([initial[tensor][None], out[state[tensor]][:-1]])
            amax = np.abs(values).reshape(steps, -1).max(1)
            got = history[~skipped, -1]
            test.check(np.array_equal(got, amax[~skipped]), f"{tensor}: the newest entry is the parameter's amax")
    inference = test.temp / "inference.onnx"
    test.tool("recast-opt", model, "--precision=fp8-delayed", "--emit=inference", "-o", inference)
    names = [v.name for v in (*kit.load_model(inference).graph.input, *kit.load_model(inference).graph.output)]
    test.check(not any("amax" in n or "fp8" in n for n in names), "evaluation has no amax state")


def check_accumulation(test):
    """The amax of a step is the largest over its micro-batches; a learning rate of 0 keeps the parameters as they are."""
    model, batches = test.corpus / "torch/mlp/model.onnx", kit.load(test.corpus / "torch/mlp/reference.safetensors")
    stacked = {n: v[None] for n, v in batches.items() if n.startswith("in.")}
    newest = {}
    for count, data in ((1, {n: v[0] for n, v in stacked.items()}), (3, stacked)):
        step, file, outputs = (test.temp / n for n in ("window.onnx", "window.safetensors", "outputs.safetensors"))
        test.tool("recast-opt", model, "--precision=fp8-delayed", "--optimizer=sgd", "--lr=0", f"--accumulate={count}",
                  "-o", step)
        onnx.checker.check_model(str(step), full_check=True)
        kit.save(file, data)
        test.tool("recast-run", step, f"--data={file}", "--data-layout=batches", f"--steps={3 // count}",
                  f"--outputs={outputs}")
        newest[count] = {n: v[:, -1] for n, v in kit.load(outputs).items() if n.endswith(".amax_history.next")}
    # The gradient of a window has another denominator than that of one batch.
    for name in ("relu.amax_history.next", "fc2.weight.amax_history.next"):
        single, window = newest[1][name], newest[3][name]
        test.check(window.shape == (1,) and window[0] == single.max(),
                   f"{name.split('.amax')[0]}: the amax of a window is {window} for {single}")
    test.check(len(newest[3]) == 3 and all(v[0] > 0 for v in newest[3].values()), "every history got an amax")


def main():
    test = kit.Test(__doc__)
    with np.errstate(all="ignore"):
        check_traces(test)
    check_training(test)
    check_accumulation(test)
    test.finish()


if __name__ == "__main__":
    main()
