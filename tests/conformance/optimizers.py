"""Ten steps of an optimizer in f64 against PyTorch's trace (Lion: against the published algorithm).

The subject is a name in the trace's table, whose PyTorch arguments become flags. Parameters after every step and state
at the end equal PyTorch's to 1e-12 of their norm: ten steps of some twenty roundings (1.1e-16) each, and the square
root of a second moment divides by a number that may be small. The same step on onnxruntime, where the bodies in standard
operators run, is held to the same bound.
"""
import json

import gradients_model
import kit
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

# PyTorch's names of state tensors, where ours differ.
STATE = {"momentum_buffer": "momentum"}
TOLERANCE = 1e-12


def flags(kind, arguments):
    """PyTorch's keyword arguments as recast-opt's flags: the same names in kebab case."""
    result = [f"--optimizer={(kind or 'lion').lower()}"]
    for name, value in arguments.items():
        text = ",".join(map(repr, value)) if isinstance(value, list) else str(value).lower()
        result.append(f"--{name.replace('_', '-')}={text}")
    return result


def on_onnxruntime(path, batches, steps):
    """name -> values of each step, of every output."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every state input that has a default value
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names, state, rows = [o.name for o in session.get_outputs()], {}, []
    for t in range(steps):
        rows.append(dict(zip(names, session.run(None, {k: np.asarray(v[t]) for k, v in batches.items()} | state))))
        state = {n.removesuffix(".next"): v for n, v in rows[-1].items() if n.endswith(".next")}
    return {n: np.stack([row[n] for row in rows]) for n in names}


def main():
    test = kit.Test(__doc__, "SETTING")
    folder, setting = test.corpus / "dynamics" / "optimizers", test.subject.name
    table, trace = json.loads((folder / "trace.json").read_text())["torch"], kit.load(folder / "trace.safetensors")
    kind, arguments = table[setting]
    parameters = {n.removeprefix("init."): v for n, v in trace.items() if n.startswith("init.")}
    gradients = {n: trace[f"grad.{n}"] for n in parameters}
    steps = len(next(iter(gradients.values())))

    model, step, data = (test.temp / n for n in ("model.onnx", "step.onnx", "data.safetensors"))
    gradients_model.write(model, parameters)
    save_file(gradients_model.batches(gradients), data)
    # Scalars are no parameters by default.
    test.tool("recast-opt", model, *flags(kind, arguments), f"--train={','.join(parameters)}", "-o", step)
    onnx.checker.check_model(str(step), full_check=True)
    outputs, state = test.temp / "outputs", test.temp / "state"
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={steps}",
              f"--outputs={outputs}", f"--state-out={state}")
    got, end = kit.load(outputs), kit.load(state)

    test.all_close("parameters after every step",
                   {n: (got.get(f"{n}.next"), trace[f"{setting}.{n}"]) for n in parameters}, TOLERANCE)
    pairs = {}
    for name, want in trace.items():
        if name.startswith(f"{setting}.state."):
            kind_of_state, parameter = name.removeprefix(f"{setting}.state.").split(".", 1)
            pairs[name] = (end.get(f"{parameter}.{STATE.get(kind_of_state, kind_of_state)}"), want)
    test.all_close("state at the end", pairs, TOLERANCE)
    test.check(int(end["step"]) == steps, f"step is {steps}")

    other = on_onnxruntime(step, gradients_model.batches(gradients), steps)
    test.all_close("onnxruntime: parameters after every step",
                   {n: (other.get(f"{n}.next"), trace[f"{setting}.{n}"]) for n in parameters}, TOLERANCE)

    # One step in which a gradient is not finite changes nothing, bit for bit, and is not counted.
    gradients = {n: v[:1].copy() for n, v in gradients.items()}
    next(iter(gradients.values())).flat[0] = np.nan
    save_file(gradients_model.batches(gradients), data)
    skipped = test.temp / "skipped"
    test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", "--steps=1", f"--state-in={state}",
              f"--state-out={skipped}")
    after = kit.load(skipped)
    differ = [n for n in end if after[n].tobytes() != end[n].tobytes()]
    test.check(not differ, f"a skipped step leaves {len(end)} tensors of state as they are, bit for bit {differ}")
    test.finish()


if __name__ == "__main__":
    main()
