"""Twenty steps in tf32, bf16 and f16: the loss of every step stays within 2 % of f32.

Tolerance. A unit roundoff is 2^-8 in bf16 and 2^-11 in f16 and tf32, and averages out over a sum; 2 % of the f32 loss of the
same step leaves the drift of twenty steps. Where the loss has fallen below a tenth of its first value, a tenth of the
first value is the measure: a loss near zero has no relative precision to keep. f16 starts from a scale of 1,024, at
which no step of these models overflows; preset_training.py starts from the default, loss_scale.py tests skips.

A model can amplify any small change by more than that. Where 2 % are exceeded, the model is trained in f32 from
parameters perturbed by one unit roundoff, four times; the low precision must stay within the largest change that this
alone makes, and the line of the check says so.
"""
import kit
import numpy as np
from training import PRESETS, Trainer, subject

STEPS, ALLOWED = 20, 0.02
FLAGS = {"tf32": [], "bf16": [], "f16": ["--loss-scale-init=1024"]}


def main():
    test = kit.Test(__doc__, "MODEL")
    folder = test.subject if test.subject.is_dir() else test.subject.parent
    trainer = Trainer(subject(folder), test.tool, test.temp, STEPS)
    f32, _ = trainer.rewrite("f32")
    want, _ = trainer.run(f32)
    test.check(len(want) == STEPS and np.isfinite(want).all(), f"f32: {STEPS} finite losses, the last {want[-1]:.5g}")
    measure = np.maximum(np.abs(want), 0.1 * np.abs(want[0]))
    for precision, flags in FLAGS.items():
        got, skipped = trainer.run(trainer.rewrite(precision, *flags)[0])
        test.check(skipped == 0, f"{precision}: {skipped} steps skipped")
        error, roundoff = np.abs(got - want) / measure, PRESETS[precision].roundoff
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        line = f"{precision}: worst step {worst}, loss {got[worst]:.5g} for {want[worst]:.5g}, {error[worst]:.2%} apart"
        if np.isfinite(error).all() and error[worst] > ALLOWED:
            allowed = max(float(np.max(np.abs(losses - want) / measure)) for losses in trainer.perturbed(f32, roundoff))
            test.check(error[worst] <= allowed, f"{line}; over {ALLOWED:.0%}, and f32 from parameters changed by "
                       f"{roundoff:.2g} moves {allowed:.2%}")
        else:
            test.check(bool((error <= ALLOWED).all()), f"{line}, allowed {ALLOWED:.0%}")
    test.finish()


if __name__ == "__main__":
    main()
