"""Dynamic loss scaling over 60 steps with seven overflowing batches, against PyTorch's GradScaler.

Scales and skips are equal exactly. f16 rounds in another order than PyTorch, which moves the last digits: losses agree
within 1e-2 · max(1, |want|) each and parameters at the end within 2e-2 (max|got - want| / max(1, max|want|)), as the
corpus says of its traces.
The same model in f32 agrees to 1e-4: sums of at most 32 products, 60 steps, and inputs of 4e5 in seven of them.
"""
import json

import kit
import numpy as np


def train(test, folder, trace, precision, *flags):
    step, outputs, state = (test.temp / f"{precision}.{n}" for n in ("onnx", "outputs", "state"))
    test.tool("recast-opt", folder / "model.onnx", f"--precision={precision}", "--optimizer=sgd",
              f"--lr={trace['optimizer']['lr']}", f"--momentum={trace['optimizer']['momentum']}",
              f"--clip-grad-norm={trace['max_norm']}", *flags, "-o", step)
    test.tool("recast-run", step, f"--data={folder / 'trace.safetensors'}", "--data-layout=batches", "--steps=60",
              f"--outputs={outputs}", f"--state-out={state}")
    return kit.load(outputs), kit.load(state)


def numbers(rows, key):
    return np.array([float(row[key]) for row in rows])


def compare(test, run, got, state, rows, want, loss_tolerance, end_tolerance):
    expected, loss = numbers(rows, "loss"), got["loss"].astype(np.float64).ravel()
    finite = np.isfinite(expected)
    test.check(not np.isfinite(loss[~finite]).any(), f"{run}: the loss is not finite where PyTorch's is not")
    scale = np.maximum(1, np.abs(expected[finite]))
    error = float(np.max(np.abs(loss[finite] - expected[finite]) / scale))
    test.check(error <= loss_tolerance, f"{run}: losses, error {error:.3g}, allowed {loss_tolerance:g}")
    for kind, suffix in (("end", ""), ("momentum", ".momentum")):
        names = [n.removeprefix(f"{run}.{kind}.") for n in want if n.startswith(f"{run}.{kind}.")]
        errors = {n: kit.mixed_error(state.get(n + suffix, []), want[f"{run}.{kind}.{n}"]) for n in names}
        worst = max(errors, key=errors.get)
        test.check(errors[worst] <= end_tolerance,
                   f"{run}: {kind} of {len(names)} parameters, worst {errors[worst]:.3g} ({worst}), "
                   f"allowed {end_tolerance:g}")


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "dynamics" / "loss_scale"
    trace, want = json.loads((folder / "trace.json").read_text()), kit.load(folder / "trace.safetensors")
    scaler, rows = trace["scaler"], trace["runs"]["fp16_scaled"]
    got, state = train(test, folder, trace, "f16", "--loss-scale=dynamic",
                       f"--loss-scale-init={scaler['init_scale']:g}",
                       f"--loss-scale-growth={scaler['growth_factor']:g}",
                       f"--loss-scale-backoff={scaler['backoff_factor']:g}",
                       f"--loss-scale-interval={scaler['growth_interval']}")
    for output, key in (("loss_scale.next", "scale_after"), ("found_inf", "skipped")):
        if output not in got:
            test.check(False, f"fp16_scaled: the step model has no output {output}")
            continue
        values, expected = got[output].ravel().astype(np.float64), numbers(rows, key)
        differ = np.flatnonzero(values != expected)
        test.check(not differ.size, f"fp16_scaled: {key} of 60 steps, exactly"
                   + (f"; first difference at step {differ[0]}: {values[differ[0]]:g} for {expected[differ[0]]:g}"
                      if differ.size else ""))
    compare(test, "fp16_scaled", got, state, rows, want, 1e-2, 2e-2)

    got, state = train(test, folder, trace, "f32")
    compare(test, "fp32", got, state, trace["runs"]["fp32"], want, 1e-4, 1e-4)
    test.finish()


if __name__ == "__main__":
    main()
