"""Fifty steps of every preset: the final loss is within 3 % of f32, for fp8 within 5 %.

The learning rate warms up over five steps and falls to zero by a cosine; the final loss is the mean over the last six
steps, two passes over the three batches. f16 starts from its default scale of 65,536: a step that overflows and is skipped gets
its batch again, so that every preset learns from the same fifty batches. Where the loss has fallen below a tenth of the
first one, a tenth of the first is the measure, since a loss near zero has no relative precision to keep. Tolerance: the
goal of the presets. One rounding is 2^-11 in f16 and tf32, 2^-8 in bf16, 2^-4 in E4M3, and averages out over the sums.
Of fp8, the line says how many products run in it; where none is eligible the model trains as in bf16.

`bench/presets` makes the table of docs/presets.md in the same way.
"""
import kit
from training import PRESETS, Comparison, Trainer, subject


def main():
    test = kit.Test(__doc__, "MODEL")
    folder = test.subject if test.subject.is_dir() else test.subject.parent
    comparison = Comparison(Trainer(subject(folder), test.tool, test.temp))
    test.check(comparison.learns, f"f32: the loss falls from {comparison.losses[0]:.5g} to {comparison.final:.5g}")
    for name, allowed in PRESETS.items():
        got = comparison.preset(name)
        line = f"{name}: final loss {got.final:.5g}, {got.error:.2%} from f32, allowed {allowed:.0%}"
        if name == "f16":
            line += f"; {got.skipped} steps skipped"
        if got.products:
            line += "; {} of {} products in fp8".format(*got.products)
        test.check(got.met, line)
        if name.startswith("fp8") or name == "mxfp8":
            test.check(got.products is not None, f"{name}: recast-opt says how many products run in fp8")
        if name != "f16":
            test.check(got.skipped == 0, f"{name}: no step skipped")
    test.finish()


if __name__ == "__main__":
    main()
