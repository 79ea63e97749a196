"""Twenty steps in tf32, bf16 and f16: the loss of every step stays within 2 % of f32.

Tolerance. A unit roundoff is 2^-8 in bf16 and 2^-11 in f16 and tf32, and averages out over a sum; 2 % of the f32 loss of the
same step leaves the drift of twenty steps. Where the loss has fallen below a tenth of its first value, a tenth of the
first value is the measure: a loss near zero has no relative precision to keep. f16 starts from a scale of 1,024, at
which no step of these models overflows; preset_training.py starts from the default, loss_scale.py tests skips.

A model can amplify any small change by more than that: then f32 is no measure of 2 %, since f32 itself moves by more
when its parameters are rounded once more. 2 % may be exceeded only where sixteen runs in f32, from parameters changed by
up to one unit roundoff of f32, do so; and no further than four runs from parameters changed by one of the low type. At a
tenth of the learning rate, where AdamW's first steps do not throw the model about, the 2 % must hold. The lines of the
checks say so.
"""
import kit
import numpy as np
from training import ROUNDOFF, Trainer, subject

STEPS, ALLOWED = 20, 0.02
F32_ROUNDOFF, F32_RUNS = 2.0 ** -24, 16
FLAGS = {"tf32": [], "bf16": [], "f16": ["--loss-scale-init=1024"]}


class Reference:
    """The f32 losses of a model with some flags of its step."""

    def __init__(self, trainer, *flags):
        self.trainer, self.flags = trainer, flags
        self.step, _ = trainer.rewrite("f32", *flags)
        self.losses, _ = trainer.run(self.step)
        self.measure = np.maximum(np.abs(self.losses), 0.1 * np.abs(self.losses[0]))

    def compare(self, precision):
        """(the largest difference of a step, as a part of the measure; a line that says so; the steps skipped)."""
        step, _ = self.trainer.rewrite(precision, *FLAGS[precision], *self.flags)
        got, skipped = self.trainer.run(step)
        error = np.nan_to_num(np.abs(got - self.losses) / self.measure, nan=np.inf)
        worst = int(np.argmax(error))
        line = f"worst step {worst}, loss {got[worst]:.5g} for {self.losses[worst]:.5g}, {error[worst]:.2%} apart"
        return float(error[worst]), " ".join([precision, *self.flags]) + ": " + line, skipped

    def spread(self, roundoff, *runs):
        """The largest change that parameters changed by `roundoff` make of an f32 loss."""
        return max(float(np.max(np.abs(losses - self.losses) / self.measure))
                   for losses in self.trainer.perturbed(self.step, roundoff, *runs))


def main():
    test = kit.Test(__doc__, "MODEL")
    folder = test.subject if test.subject.is_dir() else test.subject.parent
    trainer = Trainer(subject(folder), test.tool, test.temp, STEPS)
    full, gentle, own = Reference(trainer), None, None
    test.check(len(full.losses) == STEPS and np.isfinite(full.losses).all(),
               f"f32: {STEPS} finite losses, the last {full.losses[-1]:.5g}")
    for precision in FLAGS:
        error, line, skipped = full.compare(precision)
        test.check(skipped == 0, f"{precision}: {skipped} steps skipped")
        if error <= ALLOWED or not np.isfinite(error):
            test.check(error <= ALLOWED, f"{line}, allowed {ALLOWED:.0%}")
            continue
        own = own or full.spread(F32_ROUNDOFF, F32_RUNS)
        test.check(own > ALLOWED, f"f32 from parameters changed by {F32_ROUNDOFF:.2g} moves {own:.2%}, more than "
                   f"{ALLOWED:.0%}: no measure of {precision}")
        allowed = full.spread(ROUNDOFF[precision])
        test.check(error <= allowed, f"{line}; over {ALLOWED:.0%}, and f32 from parameters changed by "
                   f"{ROUNDOFF[precision]:.2g} moves {allowed:.2%}")
        gentle = gentle or Reference(trainer, f"--lr={trainer.subject.learning_rate / 10:g}")
        error, line, _ = gentle.compare(precision)
        test.check(error <= ALLOWED, f"{line}, allowed {ALLOWED:.0%}")
    test.finish()


if __name__ == "__main__":
    main()
