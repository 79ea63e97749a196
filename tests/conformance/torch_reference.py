"""Gradients, losses, gradient norms and parameters over three AdamW steps, against PyTorch in double.

Tolerances. In f64 both sides round at 1e-16; the worst conditioned model of the corpus loses about four digits, so
1e-9 relative leaves room for the order of sums and none for a wrong formula. In f32 PyTorch itself is `fp32_gap` away
from its own f64 run; ten times that is allowed, and no gap counts as smaller than one f32 rounding (6e-8).
"""
import json

import kit
import numpy as np

F64 = 1e-9
ROUNDING = 6e-8

def named(what, names):
    return f", {what}: {', '.join(sorted(names)[:8])}" if names else ""


def check_trainable(test, facts):
    report = test.temp / "trainable.json"
    test.tool("recast-inspect", test.model, "--trainable", f"--json={report}")
    found = json.loads(report.read_text())
    names = {entry["name"] for entry in found["trainable"]}
    wanted = set(facts["trainable"])
    test.check(names == wanted, f"trainable: {len(names)} of {len(wanted)} parameters"
               + named("missing", wanted - names) + named("too many", names - wanted))
    unexplained = [e["name"] for e in found["trainable"] + found["frozen"] if not e.get("reason")]
    test.check(not unexplained, f"trainable: every choice has a reason {unexplained[:5] or ''}")


def gradients(test, facts, dtype):
    """Outputs of the gradient model on the first batch."""
    model, outputs = test.temp / f"gradient_{dtype}.onnx", test.temp / f"gradient_{dtype}.safetensors"
    test.tool("recast-opt", test.model, "--emit=gradient", f"--dtype={dtype}", "-o", model)
    test.tool("recast-run", model, f"--data={test.data}", "--data-layout=batches", "--steps=1", f"--outputs={outputs}")
    return {name: value[0] for name, value in kit.load(outputs).items()}


def check_gradients(test, facts, want, dtype, tolerances):
    got = gradients(test, facts, dtype)
    names = facts["trainable"]
    small = set(facts["near_zero_gradients"])
    test.close(f"{dtype} gradient model: loss", got.get("loss"), want["loss"][0], tolerances["loss"])
    found = {n.removeprefix("grad.") for n in got if n.startswith("grad.")}
    test.check(found == set(names), f"{dtype} gradient model: outputs for {len(found)} of {len(names)} parameters"
               + named("missing", set(names) - found) + named("too many", found - set(names)))
    pairs = {n: (got.get(f"grad.{n}"), want[f"grad.{n}"]) for n in names}
    test.all_close(f"{dtype} gradients", {n: p for n, p in pairs.items() if n not in small}, tolerances["parameter"])
    if any(g is None for g, _ in pairs.values()):
        return
    flat = [np.concatenate([np.ravel(p[i]).astype(np.float64) for p in pairs.values()]) for i in (0, 1)]
    test.close(f"{dtype} gradients, all in one vector", flat[0], flat[1], tolerances["all"])
    total = kit.norm(flat[1])
    for name in sorted(small):
        # Mathematically zero or nearly: what is left is rounding, of the size of one rounding of the whole gradient.
        test.within(f"{dtype} gradient of {name}", *pairs[name], 10 * tolerances["all"] * total,
                    "10 roundings of the whole gradient")
    for name, value in want.items():
        if dtype == "f64" and name.startswith("out.") and name[4:] in got:
            test.close(f"{dtype} output {name[4:]}", got[name[4:]], value, F64)


def check_steps(test, facts, want):
    step, outputs, state = (test.temp / n for n in ("step.onnx", "outputs.safetensors", "state.safetensors"))
    test.tool("recast-opt", test.model, "--dtype=f64", *kit.ADAMW, "-o", step)
    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", "--steps=3", f"--outputs={outputs}",
              f"--state-out={state}")
    got, state = kit.load(outputs), kit.load(state)
    for name in ("loss", "grad_norm"):
        test.close(f"f64 {name} of 3 steps", got.get(name), want[name], F64)
    small = set(facts["near_zero_gradients"])
    pairs = {n: (state.get(n), want[f"param.{n}"]) for n in facts["trainable"]}
    test.all_close("f64 parameters after 3 steps", {n: p for n, p in pairs.items() if n not in small}, F64)
    for name in sorted(small):
        # What is left of the gradient is 1e-15 or less; against Adam's eps of 1e-8 it moves an element by 1e-7 · lr a
        # step. The bound leaves a hundred times that.
        bound = 1e-5 * kit.LEARNING_RATE * np.sqrt(want[f"param.{name}"].size)
        test.within(f"f64 parameter {name} after 3 steps", *pairs[name], bound, "zero gradient: 1e-5 · lr an element")
    buffers = {n: (state.get(n), want[f"buffer_onnx.{n}"]) for n in facts["buffers"]}
    if buffers:
        test.all_close("f64 buffers after 3 steps", buffers, F64)


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, want = kit.reference(test)
    check_trainable(test, facts)
    check_gradients(test, facts, want, "f64", {"loss": F64, "parameter": F64, "all": F64})
    check_steps(test, facts, want)
    gap = {k: 10 * max(v, ROUNDING) for k, v in facts["fp32_gap"].items()}
    check_gradients(test, facts, want, "f32",
                    {"loss": gap["loss"], "parameter": gap["grad_worst_param"], "all": gap["grad_all"]})
    test.finish()


if __name__ == "__main__":
    main()
