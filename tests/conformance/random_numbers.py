"""Noise in a training step: RandomNormal, RandomUniform, their forms with Like and Bernoulli draw from the state's key.

The loss is the sum of parameters times what is drawn: parameters that start at zero are minus the draws after a step of
plain descent at rate 1. Uniform numbers are compared bit for bit with the generator of docs/random.md, written
here again, on the fused, the reference and the checking device's kernels and on onnxruntime. Normal ones go through Log,
Sqrt and Cos, of which runtimes differ by a few units in the last place: 8 of them, 2^-20 relative to the largest normal,
are allowed. Moments lie within 5 standard errors of theirs, which chance exceeds once in two million.
"""
import kit
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

F32, SHAPE, COUNT = TensorProto.FLOAT, [64, 128], 64 * 128  # large enough for generated code
KEYS, DRAWS, MASK = (7, 8, 9), "unrmb", (1 << 64) - 1
LOWEST, HIGHEST, MEAN, SCALE, RATE = -0.5, 1.5, 0.25, 0.5, 0.3
CLOSE = 2.0 ** -20 * 6


def squares(key, offset, count):
    """squares32 of docs/random.md at the places 0 to count - 1, as integers."""
    z = (key + 0x9e3779b97f4a7c15) & MASK
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9 & MASK
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb & MASK
    odd = np.uint64((z ^ (z >> 31)) | 1)
    swap = lambda x: (x >> np.uint64(32)) | (x << np.uint64(32))
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(offset << 40)) * odd
        y, z = x, x + odd
        for addend in (y, z, y):
            x = swap(x * x + addend)
        return (x * x + z) >> np.uint64(32)


def uniform(key, offset):
    return ((squares(key, offset, COUNT) >> np.uint64(8)).astype(np.float32) * np.float32(2.0 ** -24)).reshape(SHAPE)


def build(path):
    """The loss is the sum over the draws u, n, r, m and b of `draw.p` times the draw."""
    node = helper.make_node
    nodes = [node("RandomUniformLike", ["x"], ["u"], low=LOWEST, high=HIGHEST),
             node("RandomNormalLike", ["x"], ["n"], mean=MEAN, scale=SCALE),
             node("RandomUniform", [], ["r"], shape=SHAPE),
             node("RandomNormal", [], ["half"], shape=SHAPE, dtype=TensorProto.FLOAT16),
             node("Cast", ["half"], ["m"], to=F32),
             node("Bernoulli", ["rate"], ["b"])]
    parameters = [onnx.numpy_helper.from_array(np.full(SHAPE, RATE, np.float32), "rate")]
    for draw in DRAWS:
        parameters.append(onnx.numpy_helper.from_array(np.zeros(SHAPE, np.float32), f"{draw}.p"))
        nodes += [node("Mul", [f"{draw}.p", draw], [f"{draw}.t"]), node("ReduceSum", [f"{draw}.t"], [f"{draw}.s"],
                                                                        keepdims=0)]
    nodes.append(node("Sum", [f"{draw}.s" for draw in DRAWS], ["loss"]))
    graph = helper.make_graph(nodes, "noise", [helper.make_tensor_value_info("x", F32, SHAPE)],
                              [helper.make_tensor_value_info("loss", F32, [])], parameters)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), str(path))


def close(test, name, got, want):
    error = float(np.max(np.abs(got.astype(np.float64) - want.astype(np.float64))))
    test.check(error <= CLOSE, f"{name}: within {CLOSE:.2g}, {error:.2g} apart at most")


def check_moments(test, name, values, mean, variance, fourth):
    """`fourth` is the fourth central moment: that of a sum of squares tells how far the variance may be off."""
    values = values.astype(np.float64).ravel()
    for what, got, want, spread in (
            ("mean", values.mean(), mean, variance), ("variance", values.var(), variance, fourth - variance ** 2)):
        allowed = 5 * np.sqrt(spread / values.size)
        test.check(abs(got - want) <= allowed, f"{name}: {what} {got:.4f} for {want:.4f}, allowed {allowed:.2g}")


def check_values(test, out):
    third = (HIGHEST - LOWEST) ** 2
    check_moments(test, "RandomUniformLike", out["u"], (LOWEST + HIGHEST) / 2, third / 12, third ** 2 / 80)
    check_moments(test, "RandomNormalLike", out["n"], MEAN, SCALE ** 2, 3 * SCALE ** 4)
    check_moments(test, "RandomUniform", out["r"], 0.5, 1 / 12, 1 / 80)
    check_moments(test, "RandomNormal", out["m"], 0, 1, 3)
    kept = RATE * (1 - RATE)
    check_moments(test, "Bernoulli", out["b"], RATE, kept, kept * (1 - 3 * kept))
    test.check(np.array_equal(out["m"], out["m"].astype(np.float16)), "RandomNormal: f16, as its dtype says")
    test.check(out["u"].min() >= LOWEST and out["u"].max() <= HIGHEST, "RandomUniformLike: between low and high")
    for i, key in enumerate(KEYS):
        # Offsets count draws in the order of the graph; a normal takes two.
        test.check(np.array_equal(out["r"][i], uniform(key, 3)), f"key {key}: the numbers of docs/random.md")
        test.check(np.array_equal(out["b"][i], uniform(key, 6) < np.float32(RATE)),
                   f"key {key}: Bernoulli is a comparison with them")
    flat = [((name, i), out[name][i].astype(np.float64).ravel()) for name in DRAWS for i in range(len(KEYS))]
    correlations = [abs(np.corrcoef(a, b)[0, 1]) for i, (_, a) in enumerate(flat) for _, b in flat[:i]]
    allowed = 5 / np.sqrt(COUNT)
    test.check(max(correlations) <= allowed,
               f"{len(correlations)} pairs of draws: correlation {max(correlations):.3f} at most, allowed {allowed:.3f}")


def main():
    test = kit.Test(__doc__)
    model, data, step = test.temp / "noise.onnx", test.temp / "data.safetensors", test.temp / "step.onnx"
    build(model)
    x = np.zeros(SHAPE, np.float32)
    kit.save(data, {"x": np.stack([x] * 4)})

    def rewrite(key, *flags):
        test.tool("recast-opt", model, f"--seed={key}", "--optimizer=sgd", "--lr=1", *flags, "-o", step)

    def run(*flags, steps=1):
        """What was drawn, from the parameters after `steps` steps; and the other outputs."""
        out = test.temp / "out.safetensors"
        test.tool("recast-run", step, f"--data={data}", "--data-layout=batches", f"--steps={steps}", f"--outputs={out}",
                  *flags)
        got = kit.load(out)
        return {draw: -got[f"{draw}.p.next"][-1] for draw in DRAWS}, got

    draws = []
    for key in KEYS:
        rewrite(key)
        one, rest = run()
        draws.append(one)
        test.check(rest["rng_key.next"].ravel().tolist() == [key + 1], f"key {key}: the next step's is one more")
    out = {draw: np.stack([one[draw] for one in draws]) for draw in DRAWS}
    onnx.checker.check_model(str(step), full_check=True)
    check_values(test, out)

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    names = [f"{draw}.p.next" for draw in DRAWS]
    others = {"onnxruntime": dict(zip(DRAWS, (-value for value in session.run(names, {"x": x}))))}
    for flag in ("--kernels=reference", "--device=check", "--threads=1"):
        others[flag] = run(flag)[0]
    rewrite(KEYS[-1], "--checkpoint=every-1")
    others["--checkpoint=every-1"] = run()[0]
    for who, other in others.items():
        for draw in "urb":
            test.check(np.array_equal(other[draw], draws[-1][draw]), f"{who}: {draw} bit for bit")
        close(test, f"{who}: n", other["n"], draws[-1]["n"])

    # Two micro-batches are two steps of one key each; gradients are the mean of both.
    rewrite(KEYS[0], "--accumulate=2")
    mean = (draws[0]["r"] + draws[1]["r"].astype(np.float64)) / 2
    close(test, "--accumulate=2: micro-batches draw numbers of their own, r", run()[0]["r"], mean)
    rewrite(KEYS[0], "--dtype=f64")
    test.check(np.array_equal(run()[0]["r"], draws[0]["r"]), "--dtype=f64: the same numbers")
    rewrite(KEYS[0], "--precision=bf16")
    test.check(np.array_equal(run()[0]["r"], draws[0]["r"].astype(ml_dtypes.bfloat16).astype(np.float32))
               or np.array_equal(run()[0]["r"], draws[0]["r"]), "--precision=bf16: the same numbers, or in bf16")
    test.finish()


if __name__ == "__main__":
    main()
