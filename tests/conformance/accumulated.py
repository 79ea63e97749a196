"""Accumulation on every model: the same micro-batch three times is that batch once, and onnxruntime agrees.

In f64 the sum of three equal parts of a third rounds at 1e-16 where one batch does not: 1e-9 relative, as for gradients
everywhere (torch_reference.py). Running statistics see three micro-batches instead of one and are left out, and so are
parameters whose gradient is zero but for rounding, which Adam blows up. In f32 the whole step on three different
micro-batches is compared with onnxruntime on loss and gradient norm: 1e-5, as in ort_agreement.py.
"""
import kit
import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import save_file

F64, F32, COPIES = 1e-9, 1e-5, 3


def run(test, name, flags, data):
    step, state, outputs = (test.temp / f"{name}.{kind}" for kind in ("onnx", "state", "out"))
    test.tool("recast-opt", test.model, *kit.ADAMW, *flags, "-o", step)
    file = test.temp / f"{name}.safetensors"
    save_file({n: np.ascontiguousarray(v[None]) for n, v in data.items()}, file)
    test.tool("recast-run", step, f"--data={file}", "--data-layout=batches", "--steps=1", f"--state-out={state}",
              f"--outputs={outputs}")
    return step, kit.load(state), {n: v[0] for n, v in kit.load(outputs).items()}


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, want = kit.reference(test)
    batches = {n.removeprefix("in."): v for n, v in want.items() if n.startswith("in.")}
    _, one, first = run(test, "one", ["--dtype=f64"], {n: v[0] for n, v in batches.items()})
    copies = {n: np.stack([v[0]] * COPIES) for n, v in batches.items()}
    step, many, again = run(test, "many", ["--dtype=f64", f"--accumulate={COPIES}"], copies)
    print(f"      normalised by {kit.metadata(kit.load_model(step))['recast.normalize']}")
    for name in ("loss", "grad_norm"):
        test.close(f"f64: {name}", again[name], first[name], F64)
    names = [n for n in facts["trainable"] if n not in facts["near_zero_gradients"]]
    test.all_close("f64: new parameters", {n: (many.get(n), one[n]) for n in names}, F64)

    step, _, ours = run(test, "f32", [f"--accumulate={COPIES}"], {n: v[:COPIES] for n, v in batches.items()})
    try:
        onnx.checker.check_model(str(step), full_check=True)
        test.check(True, "the step model passes onnx.checker with full shape inference")
    except Exception as error:  # the checker has no common base class for its errors
        test.check(False, f"onnx.checker: {str(error)[:500]}")
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
             for i in kit.load_model(step).graph.input}
    session = onnxruntime.InferenceSession(str(step), providers=["CPUExecutionProvider"])
    theirs = dict(zip([o.name for o in session.get_outputs()],
                      session.run(None, {n: v[:COPIES].astype(types[n]) for n, v in batches.items()})))
    for name in ("loss", "grad_norm"):
        test.close(f"onnxruntime, f32: {name}", ours[name], theirs[name], F32)
    test.finish()


if __name__ == "__main__":
    main()
