"""Generated steps against the reference evaluator, over whole training steps of a torch model.

One f32 step with every operator generated that can be, the gradient of the same model, and a bf16 step with
accumulation. The bound is what the order of sums alone may do: the two evaluators round each operator once, so a
difference starts in the last place and grows like that of another order of summation.
"""
import sys

import kit
import numpy as np

STEPS = 3
# f32: gradients of the corpus differ by up to 1e-5 relative between PyTorch and onnxruntime, which sum in other orders.
BOUNDS = {"f32": 1e-5, "bf16": 2.0 ** -7}


def run(test, step, data, kernels, *flags):
    out = test.temp / f"{kernels}.safetensors"
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={STEPS}", f"--kernels={kernels}",
              f"--outputs={out}", *flags)
    return kit.load(out)


def main():
    test = kit.Test(__doc__, "MODEL")
    tensors = kit.load(test.subject / "reference.safetensors")
    batches = {n[3:]: v for n, v in tensors.items() if n.startswith("in.")}
    data = test.temp / "data.safetensors"
    kit.save(data, batches)
    for precision, extra in (("f32", []), ("bf16", ["--accumulate=3"])):
        step = test.temp / "step.onnx"
        test.tool("recast-opt", test.subject / "model.onnx", *kit.ADAMW, f"--precision={precision}", *extra, "-o", step)
        plan = test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", "--kernels=generated",
                         "--explain").stdout
        generated = sum(" generated " in line for line in plan.splitlines())
        test.check(generated > 0, f"{precision}: {generated} generated steps")
        got, want = run(test, step, data, "generated"), run(test, step, data, "reference")
        losses = {n for n in want if np.asarray(want[n]).ndim == 1 and not n.endswith(".next")}
        floats = {n for n in want if np.issubdtype(np.asarray(want[n]).dtype, np.floating) or
                  want[n].dtype.name == "bfloat16"}
        bound = BOUNDS[precision]
        # Only the first step: AdamW divides a gradient by its own size, which makes much of a small difference.
        test.all_close(f"{precision}: metrics", {n: (got[n][:1], want[n][:1]) for n in losses & floats}, bound)
        # All gradients as one: some are zero but for rounding, like those of a bias before a norm.
        moments = sorted(n for n in floats if ".exp_avg" in n)
        for kind in ("exp_avg.next", "exp_avg_sq.next"):
            joined = [np.concatenate([np.asarray(t[n][0], np.float64).ravel() for n in moments if n.endswith(kind)])
                      for t in (got, want)]
            test.close(f"{precision}: all of {kind}", *joined, bound)
        one = run(test, step, data, "generated", "--threads=1")
        same = all(np.asarray(one[n]).tobytes() == np.asarray(got[n]).tobytes() for n in got)
        products = sum(" onednn " in line for line in plan.splitlines())
        test.check(same or products, f"{precision}: one thread gives the same bits")
    test.finish()


if __name__ == "__main__":
    sys.exit(main())
