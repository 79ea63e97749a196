"""Factors of learning rate and weight decay by name, parameters without decay, and frozen ones, against the formula.

AdamW in f64 with a schedule: the state after ten steps equals ten steps in numpy (the formulas of torch.optim.AdamW) to
1e-12, the bound of optimizers.py.
"""
import gradients_model
import kit
import numpy as np
from safetensors.numpy import save_file

STEPS, LR, DECAY, WARMUP = 10, 0.01, 0.1, 4
FLAGS = ["--lr-scale=body.*=0.25", "--lr-scale=*.b=0.5,head.*=2", "--no-decay=*.b", "--decay-scale=head.*=3",
         "--freeze=frozen*"]
# What the flags say: of several globs the first counts, and no decay stays none.
GROUPS = {"body.w": (0.25, 1), "body.b": (0.25, 0), "head.w": (2, 3), "head.b": (0.5, 0), "other": (1, 1)}


def adamw(p, gradients, lr_factor, decay_factor):
    m, v = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(gradients, 1):
        lr = lr_factor * LR * min(t / WARMUP, 1)
        p = p * (1 - lr * DECAY * decay_factor)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p = p - lr / (1 - 0.9 ** t) * m / (np.sqrt(v) / np.sqrt(1 - 0.999 ** t) + 1e-8)
    return p


def main():
    test = kit.Test(__doc__)
    rng = np.random.Generator(np.random.PCG64(1))
    start = {n: rng.standard_normal(s) for n, s in {**dict.fromkeys(GROUPS, (3, 2)), "frozen.w": (2,)}.items()}
    gradients = {n: rng.standard_normal((STEPS, *v.shape)) for n, v in start.items()}
    model, step, data, state = (test.temp / n for n in ("model.onnx", "step.onnx", "data.safetensors", "state"))
    gradients_model.write(model, start)
    save_file(gradients_model.batches(gradients), data)
    test.tool("recast-opt", model, f"--lr={LR}", f"--weight-decay={DECAY}", *FLAGS, "-o", step)
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={STEPS}",
              f"--warmup-steps={WARMUP}", f"--state-out={state}")
    end = kit.load(state)
    for name, factors in GROUPS.items():
        test.close(f"{name}: lr x {factors[0]:g}, decay x {factors[1]:g}", end.get(name),
                   adamw(start[name], gradients[name], *factors), 1e-12)
    test.check(not [n for n in end if n.startswith("frozen")], "a frozen parameter is no state")

    for flags in (["--no-decay=*.c"], ["--lr-scale=nothing=2"], ["--lr-scale=other=2", "--decay-scale=frozen.*=2"]):
        done = test.tool("recast-opt", model, *FLAGS, *flags, "-o", test.temp / "none.onnx", ok=False)
        glob = flags[-1].split("=")[1]
        test.check(done.returncode == 1 and f"={glob}" in done.stderr,
                   f"{flags[-1]} matches no parameter: {done.stderr.strip()}")
    for flag in ("--lr-scale=other", "--lr-scale=other=fast", "--lr-scale=other=-1", "--decay-scale==2"):
        done = test.tool("recast-opt", model, flag, "-o", test.temp / "none.onnx", ok=False)
        test.check(done.returncode == 2 and flag in done.stderr, f"{flag} is wrong usage: {done.stderr.strip()}")
    test.check(not (test.temp / "none.onnx").exists(), "nothing was written")
    test.finish()


if __name__ == "__main__":
    main()
