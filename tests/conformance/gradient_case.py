"""The gradient of a small model that public tools get wrong, in double against PyTorch.

Tolerance: 1e-9 as max|got - want| / max(1, max|want|); inputs are exact f32 values, so only the order of sums differs.
A case with an If belongs to a later part of the project: its refusal is checked instead.
"""
import json

import kit
import numpy as np
from control_flow_refusal import check_refusal
from safetensors.numpy import save_file

F64 = 1e-9


def main():
    test = kit.Test(__doc__, "CASE")
    case = json.loads((test.subject / "case.json").read_text())
    source = test.subject / "model.onnx"
    flags = ["--emit=gradient", "--dtype=f64", f"--train={','.join(case['wrt'])}"]
    if kit.control_flow_nodes(kit.load_model(source)):
        print("      control flow: differentiated in a later part; here the refusal is checked")
        check_refusal(test, source, *flags)
        test.finish()

    gradient = test.temp / "gradient.onnx"
    test.tool("recast-opt", source, *flags, "-o", gradient)
    model = kit.load_model(gradient)
    test.check([i.name for i in model.graph.input] == [i.name for i in kit.load_model(source).graph.input],
               "the graph inputs keep their names and order")
    if "expected" in case:
        compare(test, case, gradient, model)
    for check in case["checks"]:
        if check["check"] == "gradient_is":
            check_formula(test, check, gradient, model)
    test.finish()


def gradient_name(model, name):
    """`grad.<name>`, or what metadata_props says that it is called."""
    return kit.metadata(model).get(f"recast.gradient.{name}", f"grad.{name}")


def run(test, gradient, data, name):
    outputs = test.temp / name
    test.tool("recast-run", gradient, f"--data={data}", "--data-layout=single", "--steps=1", f"--outputs={outputs}")
    return {n: value[0] for n, value in kit.load(outputs).items()}


def compare(test, case, gradient, model):
    data = test.subject / case["expected"]
    want, got = kit.load(data), run(test, gradient, data, "outputs.safetensors")
    pairs = {"loss": ("loss", want["loss"])}
    pairs |= {f"grad.{n}": (gradient_name(model, n), want[f"grad.{n}"]) for n in case["wrt"]}
    for label, (name, expected) in pairs.items():
        if name not in got:
            test.check(False, f"{label}: the gradient model has no output {name}")
        elif np.isnan(expected).any() or label != "loss" and np.isnan(want["loss"]).any():
            # 0/0: no label is kept. The loss is NaN; a gradient of 0 and one of NaN are both right.
            value = got[name]
            right = np.isnan(value) if label == "loss" else np.isnan(value) | (value == 0)
            test.check(value.shape == expected.shape and right.all(), f"{label}: NaN" + (" or 0" * (label != "loss")))
        else:
            error = kit.mixed_error(got[name], expected)
            test.check(error <= F64, f"{label}: error {error:.3g}, allowed {F64:g}")


def check_formula(test, check, gradient, model):
    """The gradient equals a formula in outputs of the same run, and a second run repeats it bit for bit."""
    rng = np.random.Generator(np.random.PCG64(0))
    data = test.temp / "inputs.safetensors"
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    save_file({name: rng.random(shape) for name, shape in shapes.items()}, data)
    first, second = run(test, gradient, data, "first.safetensors"), run(test, gradient, data, "second.safetensors")
    name = gradient_name(model, check["of"])
    try:
        expected = eval(check["equals"], {"__builtins__": {}}, {n: v.astype(np.float64) for n, v in first.items()})
    except NameError as error:
        test.check(False, f"{check['equals']}: {error}; the gradient model has outputs {', '.join(first)}")
        return
    error = kit.mixed_error(first[name], expected)
    test.check(error <= F64, f"{name} = {check['equals']}: error {error:.3g}, allowed {F64:g}")
    same = all(np.array_equal(first[n], second[n], equal_nan=True) for n in first)
    test.check(same, "two runs give the same bits")


if __name__ == "__main__":
    main()
