"""Learning rates of a run, step by step, and what a skipped step does to them.

A schedule counts the steps that were tried: PyTorch's loop calls scheduler.step() after scaler.step() in every
iteration, whether the scaler skipped the update or not. The optimizer's own count, on which Adam's bias correction depends, leaves
skipped steps out. Rates are those of torch.optim.lr_scheduler (LinearLR from lr/W for the warm-up, then LinearLR or
CosineAnnealingLR) in closed form, equal to 1e-15; the rate is what SGD with a gradient of -1 adds to a parameter.
"""
import json
import math

import gradients_model
import kit
import numpy as np
from safetensors.numpy import save_file

STEPS, LR, LEAST, SKIPPED = 20, 0.5, 0.02, (0, 3, 11)


def rate(kind, warmup, t):
    if t < warmup:
        return LR * (t + 1) / warmup
    part = (t - warmup) / (STEPS - warmup)
    return {"constant": LR, "linear": LR + (LEAST - LR) * part,
            "cosine": LEAST + (LR - LEAST) * (1 + math.cos(math.pi * part)) / 2}[kind]


def main():
    test = kit.Test(__doc__)
    model, step, data, outputs = (test.temp / n for n in ("model.onnx", "step.onnx", "data.safetensors", "outputs"))
    gradients_model.write(model, {"w": np.zeros(2)})
    gradients = -np.ones((STEPS, 2))
    gradients[list(SKIPPED)] = np.nan
    save_file(gradients_model.batches({"w": gradients}), data)
    test.tool("recast-opt", model, "--optimizer=sgd", f"--lr={LR}", "-o", step)
    run = ["recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={STEPS}", f"--outputs={outputs}"]
    taken = [t not in SKIPPED for t in range(STEPS)]
    file = test.temp / "rates.txt"
    file.write_text("".join(f"{0.1 / (t + 1)!r}\n" for t in range(STEPS)))
    for kind in ("constant", "linear", "cosine", str(file)):
        for warmup in (0, 5) if kind != str(file) else (0,):
            wants = [0.1 / (t + 1) if kind == str(file) else rate(kind, warmup, t) for t in range(STEPS)]
            metrics, label = test.temp / "metrics.jsonl", f"{kind.rpartition('/')[2]}, warm-up {warmup}"
            least = [f"--min-lr={LEAST}"] if kind in ("linear", "cosine") else []
            test.tool(*run, f"--lr-schedule={kind}", *least, f"--warmup-steps={warmup}", f"--metrics={metrics}")
            rows = [json.loads(line) for line in metrics.read_text().splitlines()]
            test.close(f"{label}: rates of {STEPS} steps", [row["lr"] for row in rows], wants, 1e-15)
            test.check([not row["found_inf"] for row in rows] == taken, f"{label}: steps {SKIPPED} are skipped")
            got = kit.load(outputs)
            # Sums of 17 rates, each rounded once.
            test.close(f"{label}: the parameter moves by them", got["w.next"][:, 0],
                       np.cumsum(np.where(taken, wants, 0)), 1e-14)
            test.check(np.array_equal(got["step.next"].ravel(), np.cumsum(taken)),
                       f"{label}: step counts what was taken")
    for flags in (["--min-lr=0.1"], ["--lr-schedule=cosine", "--min-lr=-1"], ["--warmup-steps=-1"]):
        done = test.tool(*run, *flags, ok=False)
        test.check(done.returncode == 2 and flags[-1].split("=")[0] in done.stderr, f"{flags}: {done.stderr.strip()}")
    test.finish()


if __name__ == "__main__":
    main()
