"""The f32 step model on onnxruntime: valid ONNX, and the same numbers as the bundled runtime over three steps.

Tolerance. Both add in f32 in their own order, which is 1e-7 to 1e-6 on a loss; 1e-5 relative is allowed. Adam divides
a gradient by its own size, so elements whose gradient is mostly cancelling move by rounding noise: PyTorch's own f32
run misses its f64 run by `fp32_gap.param_update` of the update, and ten times that part of the update is allowed in
addition. Parameters whose gradient is zero (`near_zero_gradients`) move by noise alone, up to 1.01 · lr a step.
"""
import kit
import numpy as np
import onnx
import onnxruntime

RELATIVE = 1e-5


def state_pairs(model):
    """State input -> output that is its new value."""
    outputs = {o.name for o in model.graph.output}
    recorded = {k.removeprefix("recast.state."): v for k, v in kit.metadata(model).items()
                if k.startswith("recast.state.")}
    if recorded:
        return recorded
    return {i.name: f"{i.name}.next" for i in model.graph.input if f"{i.name}.next" in outputs}


def run_onnxruntime(path, pairs, batches):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    state, steps = {}, []
    for batch in batches:
        out = dict(zip(names, session.run(None, {**batch, **state})))
        state = {source: out[target] for source, target in pairs.items()}
        steps.append(out)
    return steps, state


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, want = kit.reference(test)
    step, outputs, state_file = (test.temp / n for n in ("step.onnx", "outputs.safetensors", "state.safetensors"))
    test.tool("recast-opt", test.model, *kit.ADAMW, "-o", step)
    model = kit.load_model(step)
    try:
        onnx.checker.check_model(str(step), full_check=True)
        test.check(True, "the step model passes onnx.checker with full shape inference")
    except Exception as error:  # the checker has no common base class for its errors
        test.check(False, f"onnx.checker: {str(error)[:500]}")
    pairs = state_pairs(model)
    test.check(set(facts["trainable"]) <= set(pairs), f"{len(pairs)} state inputs, all trainable parameters among them")

    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in model.graph.input}
    feeds = [{n: want[f"in.{n}"][t].astype(types[n]) for n in types if f"in.{n}" in want} for t in range(3)]
    try:
        theirs, their_state = run_onnxruntime(step, pairs, feeds)
    except Exception as error:
        test.stop(f"onnxruntime: {str(error)[:500]}")

    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", "--steps=3", f"--outputs={outputs}",
              f"--state-out={state_file}")
    ours, our_state = kit.load(outputs), kit.load(state_file)
    for name in ("loss", "grad_norm"):
        test.close(f"{name} of 3 steps", ours.get(name), [float(s[name]) for s in theirs], RELATIVE)

    before = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name in pairs}
    small, bounded, noise = {}, {}, 10 * facts["fp32_gap"]["param_update"]
    for name, value in their_state.items():
        parameter = next((p for p in facts["trainable"] if name == p or name.startswith(p + ".")), None)
        if parameter in facts["near_zero_gradients"]:
            small[name] = value
        elif name == parameter:
            bounded[name] = RELATIVE * kit.norm(value) + noise * kit.norm(value - before[name])
    for name, bound in bounded.items():
        value = their_state[name]
        if not kit.norm(np.asarray(our_state.get(name, np.nan), np.float64) - value) <= bound:
            test.within(f"parameter {name}", our_state.get(name), value, bound, "1e-5 and noise of the update")
    test.check(True, f"{len(bounded)} parameters compared")
    rest = {n: (our_state.get(n), v) for n, v in their_state.items() if n not in small and n not in bounded}
    test.all_close("moments, buffers and the other state", rest, RELATIVE)
    for name, value in small.items():
        bound = 2 * 3 * 1.01 * kit.LEARNING_RATE * np.sqrt(value.size)
        test.within(f"state {name}", our_state.get(name), value, bound, "zero gradient: 2 · 3 · 1.01 · lr")
    test.finish()


if __name__ == "__main__":
    main()
