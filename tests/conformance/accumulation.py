"""Gradient accumulation: four micro-batches give the numbers of one batch, whatever they count.

The trace has micro-batches with 0 to 16 kept labels. PyTorch computed it in double, as one batch. Tolerance in f64: both
sides round at 1e-16, and Adam divides by gradients that may be small: 1e-10 relative. In f32, 1e-4. The mean of means,
which is wrong, is in the trace too and must not be met: its gradients differ by up to 0.8.
"""
import json

import kit
import numpy as np
import onnx
from safetensors.numpy import save_file

F64, F32 = 1e-10, 1e-4


def flags(trace):
    o = trace["optimizer"]
    return [f"--optimizer={o['kind']}", f"--lr={o['lr']}", "--betas=" + ",".join(map(str, o["betas"])),
            f"--eps={o['eps']}", f"--weight-decay={o['weight_decay']}", f"--clip-grad-norm={trace['max_norm']}",
            f"--accumulate={trace['micro_batches']}"]


def train(test, model, arguments, data, *run_flags):
    step, state, outputs = test.temp / "step.onnx", test.temp / "state.safetensors", test.temp / "out.safetensors"
    done = test.tool("recast-opt", model, *arguments, "-o", step)
    onnx.checker.check_model(str(step), full_check=True)
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--state-out={state}",
              f"--outputs={outputs}", *run_flags)
    out = kit.load(outputs)
    # The model has an input called tokens already: the metric has a suffix, and metadata tells the truth.
    names = json.loads(kit.metadata(kit.load_model(step))["recast.metrics"])
    out["tokens"] = out[next(n for n in names if n.startswith("tokens"))] if any(
        n.startswith("tokens") for n in names) else None
    return kit.load(state), out, done.stderr


def check_run(test, name, rows, end, state, out, tolerance):
    for key, column in (("loss", "loss"), ("grad_norm", "grad_norm")):
        test.close(f"{name}: {key}", out[key].ravel(), np.array([row[column] for row in rows]), tolerance)
    test.check([int(t) for t in out["tokens"].ravel()] == [row["tokens"] for row in rows],
               f"{name}: tokens {out['tokens'].ravel()}")
    test.all_close(f"{name}: parameters at the end", {n: (state.get(n), v) for n, v in end.items()}, tolerance)


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "dynamics" / "accumulation"
    trace = json.loads((folder / "trace.json").read_text())
    tensors = kit.load(folder / "trace.safetensors")
    model, data = folder / "model.onnx", test.temp / "data.safetensors"
    save_file({n: np.ascontiguousarray(tensors[n]) for n in ("tokens", "labels")}, data)

    def end(run):
        prefix = run + ".end."
        return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}

    right = trace["runs"]["token_mean"]
    for dtype, tolerance in (("f64", F64), ("f32", F32)):
        state, out, _ = train(test, model, [f"--dtype={dtype}", *flags(trace)], data)
        check_run(test, f"{dtype}, tokens", right, end("token_mean"), state, out, tolerance)
        test.check(int(state["step"]) == len(right), f"{dtype}: {int(state['step'])} steps counted")

    state, out, said = train(test, model, ["--dtype=f64", "--normalize=samples", *flags(trace)], data)
    test.check("mean of these means" in said, "f64, samples: a warning says that it is a mean of means")
    means = np.array([row["loss"] for row in right])
    test.check(np.abs(np.nan_to_num(out["loss"].ravel(), nan=1e9) - means).max() > 1e-2,
               "f64, samples: the loss is not the one of one batch")

    # A step with all labels ignored: there is nothing to learn from.
    empty = {"tokens": tensors["tokens"][:2], "labels": np.array(tensors["labels"][:2])}
    empty["labels"][1] = trace["ignore_index"]
    save_file({n: np.ascontiguousarray(v) for n, v in empty.items()}, data)
    for precision in ("f32", "f16"):
        arguments = [f"--precision={precision}", *flags(trace)]
        one, _, _ = train(test, model, arguments, data, "--steps=1")
        two, out, _ = train(test, model, arguments, data, "--steps=2")
        changed = [n for n in one if n != "rng_key" and one[n].tobytes() != two[n].tobytes()]
        test.check(not changed, f"{precision}: a step without tokens changes nothing {changed[:4]}")
        test.check(out["tokens"].ravel()[1] == 0 and out["loss"].ravel()[1] == 0 and not out["found_inf"].ravel()[1],
                   f"{precision}: its loss is 0 and no gradient is non-finite")
    test.finish()


if __name__ == "__main__":
    main()
