"""Twenty steps in bf16 and in f16: the loss stays within 2 % of f32.

Tolerance. bf16 keeps 8 bits, so a product is off by 0.4 % at most and averages out over a sum; 2 % of the f32 loss of
the same step leaves the drift of twenty steps. Where the loss has fallen below a tenth of its first value, a tenth of
the first value is the measure: a loss near zero has no relative precision to keep.
"""
import kit
import numpy as np

STEPS, ALLOWED = 20, 0.02


def losses(test, precision):
    step, outputs = test.temp / f"{precision}.onnx", test.temp / f"{precision}.safetensors"
    test.tool("recast-opt", test.model, f"--precision={precision}", *kit.ADAMW, "-o", step)
    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", f"--steps={STEPS}",
              f"--outputs={outputs}")
    out = kit.load(outputs)
    return out["loss"].astype(np.float64).ravel(), out.get("found_inf")


def main():
    test = kit.Test(__doc__, "MODEL")
    kit.reference(test)
    want, _ = losses(test, "f32")
    test.check(len(want) == STEPS and np.isfinite(want).all(), f"f32: {STEPS} finite losses, the last {want[-1]:.5g}")
    measure = np.maximum(np.abs(want), 0.1 * np.abs(want[0]))
    for precision in ("bf16", "f16"):
        got, skipped = losses(test, precision)
        error = np.abs(got - want) / measure
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        note = f", {int(np.sum(skipped))} steps skipped" if skipped is not None else ""
        test.check(bool((error <= ALLOWED).all()),
                   f"{precision}: worst step {worst}, loss {got[worst]:.5g} for {want[worst]:.5g}, "
                   f"{100 * error[worst]:.2f} % apart, allowed {100 * ALLOWED:g} %{note}")
    test.finish()


if __name__ == "__main__":
    main()
