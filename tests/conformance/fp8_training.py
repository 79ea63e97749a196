"""Fifty steps of each fp8 preset: the last loss is within 5 % of f32, and the step model is valid ONNX.

Tolerance: 5 % of the f32 loss of the same step; where that has fallen below a tenth of the first loss, a tenth of the
first loss is the measure, since a loss near zero has no relative precision to keep. E4M3 keeps 4 significant bits (2^-4
relative error an element), which averages out over the sums. The line of a preset says how many of the model's products
run in fp8; where none is eligible the model trains as in bf16.
"""
import re

import kit
import numpy as np
import onnx

STEPS, ALLOWED = 50, 0.05
PRESETS = ["fp8-delayed", "fp8-current", "fp8-row", "fp8-block", "mxfp8"]


def train(test, precision):
    """The losses of every step, whether any step was skipped, and what recast-opt said."""
    step, outputs = test.temp / f"{precision}.onnx", test.temp / "outputs.safetensors"
    said = test.tool("recast-opt", test.model, f"--precision={precision}", *kit.ADAMW, "-o", step).stderr
    if precision != "f32":
        try:
            onnx.checker.check_model(str(step), full_check=True)
        except Exception as error:  # the checker has no common base class for its errors
            test.check(False, f"{precision}: onnx.checker: {str(error)[:500]}")
    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", f"--steps={STEPS}",
              f"--outputs={outputs}")
    out = kit.load(outputs)
    return out["loss"].astype(np.float64).ravel(), bool(out["found_inf"].any()), said


def main():
    test = kit.Test(__doc__, "MODEL")
    kit.reference(test)
    want, _, _ = train(test, "f32")
    test.check(len(want) == STEPS and np.isfinite(want).all(), f"f32: {STEPS} finite losses, the last {want[-1]:.5g}")
    measure = max(abs(want[-1]), 0.1 * abs(want[0]))
    for precision in PRESETS:
        got, skipped, said = train(test, precision)
        counted = re.search(r"(\d+) of (\d+) matrix products", said)
        test.check(counted is not None and not skipped, f"{precision}: {counted and counted[0]} in fp8, no step skipped")
        error = abs(got[-1] - want[-1]) / measure
        test.check(error <= ALLOWED, f"{precision}: the last loss {got[-1]:.5g} for {want[-1]:.5g}, {error:.2%} apart, "
                   f"allowed {ALLOWED:.0%}")
    test.finish()


if __name__ == "__main__":
    main()
