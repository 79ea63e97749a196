"""Gradient clipping in f64 against torch.nn.utils, with the numbers of the corpus.

Orders 1, 2 and infinity, a limit of 0, gradients that are tiny, zero, infinite or NaN; and orders 2.5 and 3, by torch's
formula in numpy. The clipped gradients are read from the passes of a step before its optimizer; norms and gradients
agree to 1e-12, a few roundings of sums over 17 numbers, and infinities and NaN stand where PyTorch's do. A whole step with such gradients then
moves the parameters by the clipped gradients, or not at all where a gradient is not finite.
"""
import json

import gradients_model
import kit
import numpy as np
from optimizers import on_onnxruntime
from safetensors.numpy import save_file

TOLERANCE = 1e-12


def same(got, want):
    """Equal to the tolerance in norm where finite, and the same infinities and NaN."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    return (got.shape == want.shape and np.array_equal(got[~finite], want[~finite], equal_nan=True)
            and kit.norm(got[finite] - want[finite]) <= TOLERANCE * kit.norm(want[finite]))


def by_formula(tensors):
    """Cases of other orders, in the corpus's form; their clipped gradients go into `tensors`."""
    gradients, cases = [tensors["base.0"], tensors["base.1"]], []
    for order in (2.5, 3.0):
        for limit in (0.5, 100.0):
            total = sum(float(np.sum(np.abs(g) ** order)) for g in gradients) ** (1 / order)
            name = f"formula.norm{order}.{limit}"
            tensors |= {f"{name}.{i}": g * min(1.0, limit / (total + 1e-6)) for i, g in enumerate(gradients)}
            cases.append(dict(name=name, input="base", kind="norm", limit=limit, norm_type=order, total_norm=total))
    return cases


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "dynamics" / "optimizers"
    cases, tensors = json.loads((folder / "clip.json").read_text())["cases"], kit.load(folder / "clip.safetensors")
    cases += by_formula(tensors)
    model, data = test.temp / "model.onnx", test.temp / "data.safetensors"
    for case in cases:
        name, count = case["name"], sum(n.rpartition(".")[0] == case["name"] for n in tensors)
        gradients = {f"w{i}": tensors[f"{case['input']}.{i}"] for i in range(count)}
        gradients_model.write(model, {n: np.zeros_like(v) for n, v in gradients.items()})
        batches = gradients_model.batches({n: v[None] for n, v in gradients.items()})
        save_file(batches, data)
        if case["kind"] == "norm":
            settings = [f"max-norm={case['limit']}", f"norm-type={case['norm_type']}"]
            flags = [f"--clip-grad-norm={case['limit']}", f"--clip-grad-norm-type={case['norm_type']}"]
        else:
            settings, flags = [f"max-value={case['limit']}"], [f"--clip-grad-value={case['limit']}"]

        clipped, outputs = test.temp / "clipped.onnx", test.temp / "outputs"
        test.tool("recast-opt", model, "--pass-pipeline=builtin.module(compute-gradients,unscale-gradients,"
                  f"clip-gradients{{{' '.join(settings)}}})", "-o", clipped)
        run = [f"--data={data}", "--data-layout=batches", "--steps=1", f"--outputs={outputs}"]
        test.tool("recast-run", clipped, *run)
        wants = {f"w{i}": tensors[f"{name}.{i}"] for i in range(count)}
        for label, got in (("", kit.load(outputs)), (" on onnxruntime", on_onnxruntime(clipped, batches, 1))):
            got = {n: v[0] for n, v in got.items()}
            test.check(all(same(got.get(f"grad.clipped.{n}", []), w) for n, w in wants.items()),
                       f"{name}: gradients{label}")
            if case["total_norm"] is not None:
                total = float(case["total_norm"])
                test.check(same(got["grad_norm"], total),
                           f"{name}: norm {float(got['grad_norm'])!r}, expected {total!r}{label}")

        step = test.temp / "step.onnx"
        test.tool("recast-opt", model, *flags, "--optimizer=sgd", "--lr=1", "-o", step)
        test.tool("recast-run", step, *run)
        got = {n: v[0] for n, v in kit.load(outputs).items()}
        finite = all(np.isfinite(v).all() for v in gradients.values())
        test.check(bool(got["found_inf"]) != finite, f"{name}: the step is {'taken' if finite else 'skipped'}")
        moved = {n: -w if finite else np.zeros_like(w) for n, w in wants.items()}
        test.check(all(same(got[f"{n}.next"], v) for n, v in moved.items()), f"{name}: parameters after the step")
    test.finish()


if __name__ == "__main__":
    main()
