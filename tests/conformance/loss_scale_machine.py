"""The dynamic loss scale's rule, driven through a step model by gradients that are finite or not.

The subject is a case of dynamics/loss_scale/state_machine.json: settings, a sequence of overflows, and the scale and
the counter of good steps after each. All are equal exactly. A step that overflows leaves parameters, moments and step count
bit for bit as they were. The body in standard operators gives the same on onnxruntime.
"""
import json

import gradients_model
import kit
import numpy as np
from optimizers import on_onnxruntime
from safetensors.numpy import save_file
from onnx import TensorProto

FLAGS = {"init": "init", "growth": "growth", "backoff": "backoff", "interval": "interval", "min_scale": "min",
         "max_scale": "max", "hysteresis": "hysteresis"}


def number(text):
    """Non-finite numbers are strings in the corpus; no bound is an empty flag."""
    value = float(text)
    return "" if np.isinf(value) else f"{value:g}" if value != int(value) else str(int(value))


def compare(test, label, got, case):
    for output, key in (("loss_scale.next", "scale_after"), ("loss_scale.good_steps.next", "tracker_after")):
        values, want = got[output].astype(np.float64).ravel(), np.array(case[key], np.float64)
        wrong = np.flatnonzero(values != want)
        test.check(not wrong.size, f"{label}: {key} of {len(want)} steps, exactly"
                   + (f"; first difference at step {wrong[0]}: {values[wrong[0]]!r} for {want[wrong[0]]!r}"
                      if wrong.size else ""))


def main():
    test = kit.Test(__doc__, "CASE")
    machine = json.loads((test.corpus / "dynamics" / "loss_scale" / "state_machine.json").read_text())
    case = next(c for c in machine["cases"] if c["name"] == test.subject.name)
    found = np.array(case["found_inf"], bool)
    # Below any scale's reach: the product with the scale stays finite up to 2^127, and 0 where the scale is 0.
    gradient = np.where(found, np.inf, 0).astype(np.float32)[:, None] * np.ones(3, np.float32)
    gradient[~found] = 2.0 ** -30
    model, step, data = (test.temp / n for n in ("model.onnx", "step.onnx", "data.safetensors"))
    gradients_model.write(model, {"w": [1, 2, 3]}, TensorProto.FLOAT)
    batches = gradients_model.batches({"w": gradient})
    save_file(batches, data)
    test.tool("recast-opt", model, "--loss-scale=dynamic", "--optimizer=adam", "--lr=0.01",
              *(f"--loss-scale-{FLAGS[k]}={number(v)}" for k, v in case["settings"].items()), "-o", step)
    outputs = test.temp / "outputs"
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={len(found)}",
              f"--outputs={outputs}")
    got = kit.load(outputs)
    compare(test, "recast", got, case)
    test.check(np.array_equal(got["found_inf"].ravel().astype(bool), found), "found_inf of every step")

    before = {n: v.tobytes() for n, v in zip(("w.next", "w.exp_avg.next", "w.exp_avg_sq.next", "step.next"),
                                             (np.array([1, 2, 3], np.float32), np.zeros(3, np.float32),
                                              np.zeros(3, np.float32), np.int64(0)))}
    changed, kept = [], []
    for t, skipped in enumerate(found):
        after = {n: got[n][t].tobytes() for n in before}
        if skipped and after != before:
            changed.append(t)
        if not skipped and after["step.next"] == before["step.next"]:
            kept.append(t)
        before = after
    test.check(not changed, f"{int(found.sum())} skipped steps change no bit {changed[:5]}")
    test.check(not kept, f"{int((~found).sum())} other steps are counted {kept[:5]}")
    compare(test, "onnxruntime", on_onnxruntime(step, batches, len(found)), case)
    test.finish()


if __name__ == "__main__":
    main()
