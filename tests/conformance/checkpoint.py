"""Recomputation on every model that trains: within the budget to the byte, and not a bit of the numbers changes.

At 90, 70, 50 and 40 % of the arena without recomputing, and at the least: the arena that the run allocates is the one
planned and fits the budget; losses, metrics, gradients (through the new moments) and the whole new state of two steps
equal those without recomputing bit for bit, in f32 with dropout on. A budget that cannot be reached is an error that
names a floor which `min` does reach. The step passes onnx.checker with full inference, and onnxruntime agrees with
itself without recomputing: 1e-5 relative on loss and gradient norm, as in ort_agreement.py.
"""
import re

import kit
import onnx
import onnxruntime
from checkpoint_kit import arena_of, batch_dims, rewrite

BUDGETS = (90, 70, 50, 40)
STEPS = 2
RELATIVE = 1e-5


def train(test, step, name):
    """(planned bytes, used bytes, outputs of all steps)."""
    outputs, flags = test.temp / f"{name}.safetensors", [f"--data={test.data}", "--data-layout=batches"]
    planned, used = arena_of(test.tool("recast-run", step, *flags, "--steps=1", "--explain"))
    test.tool("recast-run", step, *flags, f"--steps={STEPS}", f"--outputs={outputs}")
    return planned, used, kit.load(outputs)


def different(got, want):
    return [n for n in want if n not in got or got[n].tobytes() != want[n].tobytes()] + [n for n in got if n not in want]


def onnxruntime_metrics(step, want):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
             for i in kit.load_model(step).graph.input}
    feeds = {n: want[f"in.{n}"][0].astype(types[n]) for n in types if f"in.{n}" in want}
    return dict(zip(("loss", "grad_norm"), session.run(["loss", "grad_norm"], feeds)))


def check_step(test, name, step, budget, base, reference):
    planned, used, outputs = train(test, step, name)
    test.check(planned == used <= budget, f"{name}: {planned} bytes planned, {used} used, {budget} allowed")
    wrong = different(outputs, base)
    test.check(not wrong, f"{name}: {len(base)} outputs of {STEPS} steps equal bit for bit {wrong[:4] or ''}")
    try:
        onnx.checker.check_model(str(step), full_check=True)
    except Exception as error:  # the checker has no common base class for its errors
        test.check(False, f"{name}: onnx.checker: {str(error)[:500]}")
    got = onnxruntime_metrics(step, test.want)
    test.all_close(f"{name}: onnxruntime", {n: (got[n], reference[n]) for n in reference}, RELATIVE)
    return planned


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
