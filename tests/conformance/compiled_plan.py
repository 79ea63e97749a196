"""Compiled plans: recast-exec gives the bytes that recast-run gives, in state, outputs and checkpoints.

No tolerance: both run the same kernels on the same numbers. A model that cannot be trained is compiled as it is. Plans
made from the step model and from the model itself must agree, wherever plan and model lie, and a run that stops and
resumes must end where one that does not stop ends.
"""
import shutil

import kit
import onnx

STEPS = 2  # Of three batches, all of which one step takes when it accumulates.
MODES = {"f32": [], "accumulated": ["--accumulate=3"], "bf16": ["--precision=bf16"], "f16": ["--precision=f16"],
         "fp8": ["--precision=fp8-delayed"], "checkpointed": ["--checkpoint=sqrt"]}


def sizes(model, data):
    """--dim for every symbolic dimension, as the first batch of the reference has it."""
    found = {}
    for value in kit.load_model(model).graph.input:
        if f"in.{value.name}" in data:
            shape = data[f"in.{value.name}"].shape[1:]
            found |= {d.dim_param: n for d, n in zip(value.type.tensor_type.shape.dim, shape) if d.dim_param}
    return [f"--dim={name}={size}" for name, size in found.items()]


def run(test, tool, file, name, *flags):
    """The bytes of the final state and of the outputs."""
    state, outputs = test.temp / f"{name}.state", test.temp / f"{name}.outputs"
    test.tool(tool, file, f"--data={test.data}", "--data-layout=batches", f"--steps={STEPS}", f"--outputs={outputs}",
              f"--state-out={state}", *flags)
    return state.read_bytes(), outputs.read_bytes()


def compare(test, name, got, want):
    test.check(got[0] == want[0], f"{name}: the state is recast-run's, {len(want[0])} bytes")
    test.check(got[1] == want[1], f"{name}: the outputs are recast-run's, {len(want[1])} bytes")


def check_mode(test, mode, flags, dims):
    step, plan, direct = (test.temp / f"{mode}.{ending}" for ending in ("onnx", "plan", "direct.plan"))
    flags = [*kit.ADAMW, *flags]
    test.tool("recast-opt", test.model, *flags, *dims, "-o", step)
    test.tool("recast-opt", step, "--emit=plan", "-o", plan)
    test.tool("recast-opt", test.model, *flags, *dims, "--emit=plan", "-o", direct)
    want = run(test, "recast-run", step, f"{mode}.run")
    compare(test, mode, run(test, "recast-exec", plan, f"{mode}.exec"), want)
    compare(test, f"{mode}, from the model", run(test, "recast-exec", direct, f"{mode}.direct"), want)
    return step, plan, want


def check_resume(test, plan, want):
    folder = f"--checkpoint-dir={test.temp / 'checkpoints'}"
    test.tool("recast-exec", plan, f"--data={test.data}", "--data-layout=batches", "--steps=1", "--checkpoint-every=1",
              folder)
    state, _ = run(test, "recast-exec", plan, "resumed", "--resume", folder)
    test.check(state == want[0], "a run that stops and resumes ends with the same state")


def check_elsewhere(test, step, plan, want):
    """Plan and model move together; without its model, or with another, the plan is refused."""
    folder = test.temp / "elsewhere"
    folder.mkdir()
    shutil.copy(step, folder)
    moved = shutil.copy(plan, folder)
    compare(test, "moved", run(test, "recast-exec", moved, "moved"), want)
    model = folder / step.name
    if step.name.encode() not in plan.read_bytes():
        model.unlink()
        return compare(test, "all weights are embedded", run(test, "recast-exec", moved, "embedded"), want)
    data = bytearray(model.read_bytes())
    for at in range(len(data)):  # every byte: some are of weights
        data[at] ^= 1
    model.write_bytes(data)
    refused = test.tool("recast-exec", moved, f"--data={test.data}", "--data-layout=batches", ok=False)
    test.check(refused.returncode == 1 and step.name in refused.stderr and "has changed" in refused.stderr,
               "other weights are refused")
    model.unlink()
    refused = test.tool("recast-exec", moved, f"--data={test.data}", "--data-layout=batches", ok=False)
    test.check(refused.returncode == 1 and step.name in refused.stderr, "and so are missing ones")


def check_external(test, step, want):
    """Weights beside the model: the plan refers to their file, and not to the model's."""
    folder = test.temp / "external"
    folder.mkdir()
    model = onnx.load(str(step))
    onnx.save(model, str(folder / "step.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=256)
    test.tool("recast-opt", folder / "step.onnx", "--emit=plan", "-o", folder / "step.plan")
    (folder / "step.onnx").unlink()
    compare(test, "external data", run(test, "recast-exec", folder / "step.plan", "external"), want)


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, data = kit.reference(test)
    dims = sizes(test.model, data)
    if kit.control_flow_nodes(kit.load_model(test.model)):
        plan = test.temp / "forward.plan"
        test.tool("recast-opt", test.model, *dims, "--emit=plan", "--plan-of=forward", "-o", plan)
        want = run(test, "recast-run", test.model, "run")
        compare(test, "forward", run(test, "recast-exec", plan, "exec"), want)
        test.finish()
    for mode, flags in MODES.items():
        step, plan, want = check_mode(test, mode, flags, dims)
        if mode == "f32":
            check_resume(test, plan, want)
            check_elsewhere(test, step, plan, want)
            check_external(test, step, want)
    test.finish()


if __name__ == "__main__":
    main()
