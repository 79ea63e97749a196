"""The f32 step model on onnxruntime: valid ONNX, and the same numbers as the bundled runtime, three steps.

Each step starts onnxruntime from the state that the bundled runtime had: what is compared is one step, not how three of
them amplify rounding.
Tolerance. Both add in f32 in their own order, which is 1e-7 to 1e-6 on a loss; 1e-5 relative is allowed. Adam divides
a gradient by its own size, so where the gradient is mostly cancelling a parameter moves by rounding noise: PyTorch's
own f32 run misses its f64 run by `fp32_gap.param_update` of the update, and ten times that part of the update is
allowed in addition. Elements whose gradient is zero but for rounding (in f64 below 1e-6 of the parameter's largest, or
the whole parameter is in `near_zero_gradients`) move by noise alone, up to 1.01 · lr in either direction.
"""
import json

import kit
import numpy as np
import onnx
import onnxruntime

RELATIVE = 1e-5
STEPS = 3
NOISE_STEP = 2 * 1.01 * kit.LEARNING_RATE  # of one element, on two sides


def state_pairs(model):
    """State input -> output that is its new value."""
    outputs = {o.name for o in model.graph.output}
    recorded = json.loads(kit.metadata(model).get("recast.state", "{}"))
    return recorded or {i.name: f"{i.name}.next" for i in model.graph.input if f"{i.name}.next" in outputs}


def run_onnxruntime(path, pairs, batches, ours):
    """The outputs of each step, started from the state that `ours` (stacked over steps) had before it.

    The state is copied: onnxruntime writes the new running statistics of BatchNormalization over the old ones.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names, steps = [o.name for o in session.get_outputs()], []
    for t, batch in enumerate(batches):
        state = {source: np.array(ours[target][t - 1]) for source, target in pairs.items()} if t else {}
        steps.append(dict(zip(names, session.run(None, {**batch, **state}))))
    return steps


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
    test.check(worst <= 1, f"{len(facts['trainable'])} parameters, worst at {worst:.2%} of the allowed ({worst_name})")


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, want = kit.reference(test)
    step, outputs = (test.temp / n for n in ("step.onnx", "outputs.safetensors"))
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
    feeds = [{n: want[f"in.{n}"][t].astype(types[n]) for n in types if f"in.{n}" in want} for t in range(STEPS)]
    test.tool("recast-run", step, f"--data={test.data}", "--data-layout=batches", f"--steps={STEPS}",
              f"--outputs={outputs}")
    ours = kit.load(outputs)
    try:
        theirs = run_onnxruntime(step, pairs, feeds, ours)
    except Exception as error:
        test.stop(f"onnxruntime: {str(error)[:500]}")
    for name in ("loss", "grad_norm"):
        test.close(f"{name} of {STEPS} steps", ours.get(name), [float(s[name]) for s in theirs], RELATIVE)

    before = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name in pairs}
    owners = {n: next((p for p in facts["trainable"] if n.startswith(p + ".")), None) for n in pairs}
    zero = {n for n, owner in owners.items() if owner in facts["near_zero_gradients"]}
    for t in range(STEPS):
        our_state = {source: ours[target][t] for source, target in pairs.items()}
        their_state = {source: theirs[t][target] for source, target in pairs.items()}
        compare_parameters(test, facts, want, before, our_state, their_state)
        rest = {n: (our_state[n], v) for n, v in their_state.items() if n not in facts["trainable"] and n not in zero}
        test.all_close(f"step {t}: moments, buffers and the other state", rest, RELATIVE)
        for name in sorted(zero):
            # Moments of rounding noise: small beside the gradient of everything, which is at most 1 after clipping.
            test.within(f"step {t}: state {name}", our_state[name], their_state[name], 1e-5,
                        "zero gradient, the whole one is 1")
        before = our_state
    test.finish()


if __name__ == "__main__":
    main()
