"""The f32 step model on onnxruntime: valid ONNX, and the same numbers as the bundled runtime over three steps.

Tolerance. Both add in f32 in their own order, which is 1e-7 to 1e-6 on a loss; 1e-5 relative is allowed. Adam divides
a gradient by its own size, so where the gradient is mostly cancelling a parameter moves by rounding noise: PyTorch's
own f32 run misses its f64 run by `fp32_gap.param_update` of the update, and ten times that part of the update is
allowed in addition. Elements whose gradient is zero but for rounding (in f64 below 1e-6 of the parameter's largest, or
the whole parameter is in `near_zero_gradients`) move by noise alone, up to 1.01 · lr a step in either direction. The
moments of the later steps see those parameters, so 1e-4 relative is allowed for them.
"""
import kit
import numpy as np
import onnx
import onnxruntime

RELATIVE, MOMENTS = 1e-5, 1e-4
NOISE_STEP = 2 * 3 * 1.01 * kit.LEARNING_RATE  # of one element, over three steps, on two sides


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


def compare_parameters(test, facts, want, before, ours, theirs):
    worst, worst_name = 0.0, ""
    for name in facts["trainable"]:
        value, gradient = theirs[name].astype(np.float64), np.abs(want[f"grad.{name}"])
        noisy = (gradient <= 1e-6 * gradient.max()) | (name in facts["near_zero_gradients"])
        bound = RELATIVE * kit.norm(value) + 10 * facts["fp32_gap"]["param_update"] * kit.norm(value - before[name])
        bound += NOISE_STEP * np.sqrt(noisy.sum())
        error = kit.norm(ours[name] - value) if name in ours else np.inf
        if not error / bound <= worst:  # keeps a NaN
            worst, worst_name = error / bound, name
    test.check(worst <= 1, f"{len(facts['trainable'])} parameters, worst at {100 * worst:.3g} % of what is allowed ({worst_name})")


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
    compare_parameters(test, facts, want, before, our_state, their_state)
    owners = {n: next((p for p in facts["trainable"] if n.startswith(p + ".")), None) for n in their_state}
    zero = {n for n, owner in owners.items() if owner in facts["near_zero_gradients"]}
    rest = {n: (our_state.get(n), v) for n, v in their_state.items() if n not in facts["trainable"] and n not in zero}
    test.all_close("moments, buffers and the other state", rest, MOMENTS)
    for name in sorted(zero):
        # Moments of rounding noise: small beside the gradient of everything, which is at most 1 after clipping.
        test.within(f"state {name}", our_state.get(name), their_state[name], 1e-5, "zero gradient, the whole one is 1")
    test.finish()


if __name__ == "__main__":
    main()
