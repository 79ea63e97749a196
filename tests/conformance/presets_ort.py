"""The step model of every preset is valid ONNX, trains what PyTorch trained, and has the same loss on onnxruntime.

Two steps, each from the state that the bundled runtime had before it. Tolerance on the loss: one unit roundoff of the
type that holds the operands of products, as a part of the loss (2^-11 in f16 and tf32, 2^-8 in bf16, 2^-4 in E4M3;
ort_agreement.py is about f32). Both runtimes round the same operands and add in f32, in orders of their own: an operand
may come out on the other side of a rounding. Skipped steps are not compared: from one f16 operator that it has no
kernel for to the next, onnxruntime keeps f32, and does not see the overflow of what the file says is f16.

onnxruntime's CPU has no kernels of bf16 for most operators. The line of a preset that it cannot run names the operator
that it lacks; any other refusal is a failure.
"""
import json
import re

import kit
import onnx
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel
from ort_agreement import run_onnxruntime, state_pairs
from training import ROUNDOFF, Trainer, subject

STEPS = 2


def valid(test, name, step):
    try:
        onnx.checker.check_model(str(step), full_check=True)
        return test.check(True, f"{name}: passes onnx.checker with full shape inference")
    except Exception as error:  # the checker has no common base class for its errors
        return test.check(False, f"{name}: onnx.checker: {str(error)[:500]}")


def feeds(model, batches):
    """The batches as the step model's inputs take them."""
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    return [{n: batches[n][t].astype(types[n]) for n in types if n in batches} for t in range(STEPS)]


def main():
    test = kit.Test(__doc__, "MODEL")
    folder = test.subject if test.subject.is_dir() else test.subject.parent
    trainer = Trainer(subject(folder), test.tool, test.temp)
    for name, roundoff in ROUNDOFF.items():
        step, _ = trainer.rewrite(name)
        if not valid(test, name, step):
            continue
        model = kit.load_model(step)
        trained = set(json.loads(kit.metadata(model)["recast.parameters"]))
        test.check(trained == trainer.subject.trainable, f"{name}: trains the {len(trained)} parameters of the reference")
        ours = trainer.run_once(step, list(range(STEPS)))
        try:
            theirs = run_onnxruntime(step, state_pairs(model), feeds(model, trainer.subject.batches), ours)
        except NoKernel as error:
            lacks = re.search(r"implementation for (\S+) node", str(error))
            test.check(lacks is not None, f"{name}: onnxruntime has no kernel for {lacks[1] if lacks else error}")
            continue
        except Exception as error:
            test.check(False, f"{name}: onnxruntime: {str(error)[:500]}")
            continue
        for t in range(STEPS):
            test.within(f"{name}: loss of step {t}", ours["loss"][t], theirs[t]["loss"],
                        roundoff * abs(float(theirs[t]["loss"])), f"{roundoff:g} of the loss")
    test.finish()


if __name__ == "__main__":
    main()
