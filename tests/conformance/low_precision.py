"""Twenty steps in tf32, bf16 and f16: the loss stays within 2 % of f32.

Tolerance. A unit roundoff is 2^-8 in bf16 and 2^-11 in f16 and tf32, and averages out over a sum; 2 % of the f32 loss of the
same step leaves the drift of twenty steps. Where the loss has fallen below a tenth of its first value, a tenth of the
first value is the measure: a loss near zero has no relative precision to keep. f16 starts from a scale of 1,024, at
which no step of these models overflows: a skipped step shifts the whole curve, and loss_scale.py tests skips.

A model can amplify any small change by more than that. Where 2 % are exceeded, the model is trained in f32 from
parameters perturbed by one unit roundoff, four times; the low precision must stay within the largest change that this
alone makes, and the line of the check says so.
"""
import kit
import numpy as np
import onnx
from safetensors.numpy import save_file

STEPS, ALLOWED, PERTURBED_RUNS = 20, 0.02, 4
PRESETS = {"tf32": (2.0 ** -11, []), "bf16": (2.0 ** -8, []), "f16": (2.0 ** -11, ["--loss-scale-init=1024"])}


def rewrite(test, precision, flags=()):
    step = test.temp / f"{precision}.onnx"
    test.tool("recast-opt", test.model, f"--precision={precision}", *flags, *kit.ADAMW, "-o", step)
    return step


def losses(test, step, *flags):
    outputs = test.temp / "outputs.safetensors"
    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", f"--steps={STEPS}",
              f"--outputs={outputs}", *flags)
    out = kit.load(outputs)
    return out["loss"].astype(np.float64).ravel(), out.get("found_inf")


def sensitivity(test, facts, step, want, measure, roundoff):
    """The largest change of the f32 losses that a relative change of the parameters by `roundoff` makes."""
    model, worst, state = kit.load_model(step), 0.0, test.temp / "perturbed.safetensors"
    inputs = {i.name for i in model.graph.input}
    initial = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name in inputs}
    for seed in range(PERTURBED_RUNS):
        rng = np.random.Generator(np.random.PCG64(seed))
        changed = {n: (v * (1 + roundoff * rng.uniform(-1, 1, v.shape))).astype(v.dtype).reshape(v.shape)
                   if n in facts["trainable"] else np.asarray(v, order="C") for n, v in initial.items()}
        save_file(changed, state)
        got, _ = losses(test, step, f"--state-in={state}")
        worst = max(worst, float(np.max(np.abs(got - want) / measure)))
    return worst


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, _ = kit.reference(test)
    f32 = rewrite(test, "f32")
    want, _ = losses(test, f32)
    test.check(len(want) == STEPS and np.isfinite(want).all(), f"f32: {STEPS} finite losses, the last {want[-1]:.5g}")
    measure = np.maximum(np.abs(want), 0.1 * np.abs(want[0]))
    for precision, (roundoff, flags) in PRESETS.items():
        got, skipped = losses(test, rewrite(test, precision, flags))
        error = np.abs(got - want) / measure
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        if skipped is not None:
            test.check(not skipped.any(), f"{precision}: {int(np.sum(skipped))} steps skipped")
        line = f"{precision}: worst step {worst}, loss {got[worst]:.5g} for {want[worst]:.5g}, {error[worst]:.2%} apart"
        if np.isfinite(error).all() and error[worst] > ALLOWED:
            allowed = sensitivity(test, facts, f32, want, measure, roundoff)
            test.check(error[worst] <= allowed, f"{line}; over {ALLOWED:.0%}, and f32 from parameters changed by "
                       f"{roundoff:.2g} moves {allowed:.2%}")
        else:
            test.check(bool((error <= ALLOWED).all()), f"{line}, allowed {ALLOWED:.0%}")
    test.finish()


if __name__ == "__main__":
    main()
