"""Recomputation on every model that trains: within the budget to the byte, and not a bit of the numbers changes.

At 90, 70, 50 and 40 % of the arena without recomputing, and at the least: the arena that the run allocates is the one
planned and fits the budget; losses, metrics, gradients (through the new moments) and the whole new state of two steps
equal those without recomputing bit for bit, in f32 with dropout on. A budget that cannot be reached is an error that
names a floor which `min` does reach. The step passes onnx.checker with full inference, and onnxruntime agrees with
itself without recomputing: 1e-5 relative on loss and gradient norm, as in ort_agreement.py.
"""
import re

import kit
from checkpoint_kit import batch_dims, check_step, onnxruntime_metrics, rewrite, train

BUDGETS = (90, 70, 50, 40)


def main():
    test = kit.Test(__doc__, "MODEL")
    _, test.want = kit.reference(test)
    flags = [*kit.ADAMW, *batch_dims(test)]
    plain, _ = rewrite(test, "plain", *flags, "--checkpoint=none")
    size, used, base = train(test, plain, "plain")
    test.check(size == used > 0, f"plain: {size} bytes planned, {used} used")
    reference = onnxruntime_metrics(plain, test.want)
    least, _ = rewrite(test, "min", *flags, "--memory-budget=min")
    floor = check_step(test, "min", least, size, base, reference)
    for percent in BUDGETS:
        budget = size * percent // 100
        step, done = rewrite(test, f"{percent}", *flags, f"--memory-budget={percent}%", ok=False)
        if done.returncode == 0:
            check_step(test, f"{percent}%", step, budget, base, reference)
            continue
        named = re.search(r"the least that was found is .*?\((\d+) bytes\)", done.stderr)
        test.check(done.returncode == 1 and named and not step.exists(), f"{percent}%: refused, with a floor")
        test.check(named and int(named[1]) > budget and floor <= int(named[1]),
                   f"{percent}%: floor {named and named[1]} is above {budget}, and min reaches {floor}")
    test.finish()


if __name__ == "__main__":
    main()
