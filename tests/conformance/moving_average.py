"""The moving average of the parameters: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).

The first step copies the parameters, later ones move the average by (1 - decay) of the difference; a skipped step
keeps it bit for bit. In f64, over twelve steps of which three are skipped, to 1e-14: a dozen roundings of 1.1e-16.
"""
import gradients_model
import kit
import numpy as np
from optimizers import on_onnxruntime
from safetensors.numpy import save_file

STEPS, SKIPPED = 12, (1, 5, 6)


def averages(parameters, decay):
    """parameters: values after every step."""
    average, result, taken = None, [], 0
    for t, p in enumerate(parameters):
        if t not in SKIPPED:
            average = p if taken == 0 else average + (1 - decay) * (p - average)
            taken += 1
        result.append(average)
    return np.stack(result)


def main():
    test = kit.Test(__doc__)
    rng = np.random.Generator(np.random.PCG64(2))
    start = {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(4)}
    gradients = {n: rng.standard_normal((STEPS, *v.shape)) for n, v in start.items()}
    gradients["b"][list(SKIPPED), 1] = np.inf
    model, step, data, outputs, state = (
        test.temp / n for n in ("model.onnx", "step.onnx", "data.safetensors", "outputs", "state"))
    gradients_model.write(model, start, products=True)
    batches = gradients_model.batches(gradients)
    save_file(batches, data)
    for decay in (0.9, 0.25, 0.0, 1.0):
        test.tool("recast-opt", model, "--optimizer=adam", "--lr=0.1", "--loss=loss", f"--ema={decay}", "-o", step)
        test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={STEPS}",
                  f"--outputs={outputs}", f"--state-out={state}")
        for label, got in (("recast", kit.load(outputs)), ("onnxruntime", on_onnxruntime(step, batches, STEPS))):
            test.all_close(f"{label}: decay {decay}",
                           {n: (got.get(f"{n}.ema.next"), averages(got[f"{n}.next"], decay)) for n in start}, 1e-14)
            kept = all(got[f"{n}.ema.next"][t].tobytes() == got[f"{n}.ema.next"][t - 1].tobytes()
                       for n in start for t in SKIPPED)
            test.check(kept, f"{label}: a skipped step keeps every bit of the average")
    end = kit.load(state)

    # The averages in the place of the parameters: the product with ones shows them.
    one = {f"grad.{n}": np.ones((1, *v.shape)) for n, v in start.items()}
    save_file(one, data)
    trained = test.temp / "trained.onnx"
    for flags, suffix in (([], ""), (["--weights=parameters"], ""), (["--weights=ema"], ".ema")):
        test.tool("recast-opt", model, "--emit=inference", "--loss=loss", f"--state-in={state}", *flags, "-o", trained)
        test.tool("recast-run", trained, f"--data={data}", "--data-layout=batches", "--steps=1", f"--outputs={outputs}")
        got = kit.load(outputs)
        test.check(all(np.array_equal(got[f"product.{n}"][0], end[f"{n}{suffix}"]) for n in start),
                   f"inference {' '.join(flags)} holds the tensors <parameter>{suffix}")
    plain = test.temp / "plain"
    save_file({n: v for n, v in end.items() if not n.endswith(".ema")}, plain)
    done = test.tool("recast-opt", model, "--emit=inference", "--loss=loss", f"--state-in={plain}", "--weights=ema",
                     "-o", test.temp / "none.onnx", ok=False)
    test.check(done.returncode == 1 and "--ema=DECAY" in done.stderr, f"no averages: {done.stderr.strip()}")
    test.finish()


if __name__ == "__main__":
    main()
