"""Training steps in the form of the standard: TrainingInfoProto, with ai.onnx.preview.training inside.

A step that is written with --emit=training-info passes the checker, and trains to the same bits as the step model, from
the file itself and after recast-opt has read it. A model with training_info from elsewhere (Gradient, Momentum, an
initialization with random numbers) trains to the numbers that numpy computes: 1e-12 relative in f64.
"""
import json

import kit
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

EXACT = 1e-12
PREVIEW = ("ai.onnx.preview.training", "ai.onnx.preview")


# The random key is state that the forward reads.
DROPOUT = """
<ir_version: 8, opset_import: ["" : 17]>
dropout (float[4,64] x) => (float loss) <float[1] w = {1}, float ratio = {0.25}, bool yes = {1}>
{
  h = Mul (x, w)
  d = Dropout (h, ratio, yes)
  loss = ReduceMean <keepdims=0> (d)
}
"""


def train(test, model, data, steps, layout="single"):
    state, outputs = test.temp / "state.safetensors", test.temp / "out.safetensors"
    test.tool("recast-run", model, f"--data={data}", f"--data-layout={layout}", f"--steps={steps}",
              f"--state-out={state}", f"--outputs={outputs}")
    return kit.load(state), kit.load(outputs)


def same_bits(a, b):
    return sorted(a) == sorted(b) and all(a[n].dtype == b[n].dtype and a[n].tobytes() == b[n].tobytes() for n in a)


def round_trip(test, name, model, data, layout, flags):
    step, info, again = (test.temp / f"{kind}.onnx" for kind in ("step", "info", "again"))
    test.tool("recast-opt", model, *flags, "-o", step)
    test.tool("recast-opt", model, *flags, "--emit=training-info", "-o", info)
    onnx.checker.check_model(str(info), full_check=True)
    proto = kit.load_model(info)
    (entry,) = proto.training_info
    keys = [b.key for b in entry.update_binding]
    initializers = {i.name for g in (proto.graph, entry.algorithm) for i in g.initializer}
    state = json.loads(kit.metadata(kit.load_model(step))["recast.state"])
    test.check({b.key: b.value for b in entry.update_binding} == state and set(keys) <= initializers,
               f"{name}: every state is an initializer with an update_binding ({len(keys)})")
    loss = kit.metadata(proto)["recast.loss"]
    test.check([o.name for o in proto.graph.output] == [loss], f"{name}: the graph is the forward, its output the loss")
    test.check(not any(n.domain == "recast" and "grad" in n.op_type for n in proto.graph.node)
               and len(entry.algorithm.node) > 0, f"{name}: the backward is in the algorithm")
    # The standard's definition: both graphs, one after the other, are one valid graph.
    joined = onnx.ModelProto()
    joined.CopyFrom(proto)
    del joined.training_info[:]
    for field in ("input", "initializer", "node", "output", "value_info"):
        getattr(joined.graph, field).extend(getattr(entry.algorithm, field))
    onnx.checker.check_model(joined, full_check=True)
    want = train(test, step, data, 3, layout)
    got = train(test, info, data, 3, layout)
    test.check(same_bits(got[0], want[0]) and same_bits(got[1], want[1]),
               f"{name}: trains to the same bits from the file ({len(want[0])} states, {len(want[1])} outputs)")
    test.tool("recast-opt", info, "-o", again)
    onnx.checker.check_model(str(again), full_check=True)
    got = train(test, again, data, 3, layout)
    test.check(same_bits(got[0], want[0]) and same_bits(got[1], want[1]), f"{name}: and after it was read again")
    second = test.temp / "second.onnx"
    test.tool("recast-opt", info, "--emit=training-info", "-o", second)
    test.check(second.read_bytes() == info.read_bytes(), f"{name}: reading and writing it changes no byte")
    forward = test.temp / "forward.onnx"
    test.tool("recast-opt", info, "--emit=gradient", "-o", forward)
    test.check(not kit.load_model(forward).training_info, f"{name}: --emit=gradient reads the forward alone")
    lossless = test.temp / "lossless.onnx"
    test.tool("recast-opt", info, "--emit=forward", "-o", lossless)
    test.check(kit.load_model(lossless) == proto, f"{name}: --emit=forward keeps training_info as it is")


def linear(domain, initialization=None, bindings=()):
    """loss = mean((x w - y)^2), trained by Momentum: what other tools write."""
    info = lambda n, shape, kind=TensorProto.DOUBLE: helper.make_tensor_value_info(n, kind, shape)
    tensor = lambda n, v: numpy_helper.from_array(np.asarray(v), n)
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["p"])], "forward", [info("x", ["n", 4])],
                              [info("p", ["n", 3])], [tensor("w", np.zeros((4, 3)))])
    algorithm = helper.make_graph(
        [helper.make_node("Sub", ["p", "y"], ["e"]), helper.make_node("Mul", ["e", "e"], ["e2"]),
         helper.make_node("ReduceMean", ["e2"], ["loss"], keepdims=0),
         helper.make_node("Gradient", ["w", "x", "y"], ["dw"], "gradient", domain=domain, xs=["w"], zs=["x", "y"],
                          y="loss"),
         helper.make_node("Momentum", ["R", "T", "w", "dw", "v"], ["w_new", "v_new"], "update", domain=domain,
                          alpha=0.75, beta=0.5, mode="nesterov", norm_coefficient=0.0625),
         helper.make_node("Add", ["T", "one"], ["T_new"])],
        "step", [info("y", ["n", 3])], [info("loss", []), info("w_new", [4, 3]), info("v_new", [4, 3]),
                                        info("T_new", [], TensorProto.INT64)],
        [tensor("R", np.float64(0.125)), tensor("T", np.int64(0)), tensor("one", np.int64(1)),
         tensor("v", np.zeros((4, 3)))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)],
                              ir_version=8)
    entry = model.training_info.add()
    entry.algorithm.CopyFrom(algorithm)
    if initialization:
        entry.initialization.CopyFrom(initialization)
    for pairs, field in ((bindings, entry.initialization_binding),
                         ((("w", "w_new"), ("v", "v_new"), ("T", "T_new")), entry.update_binding)):
        for key, value in pairs:
            pair = field.add()
            pair.key, pair.value = key, value
    return model


def foreign(test, domain):
    start = helper.make_graph(
        [helper.make_node("RandomNormal", [], ["w0"], dtype=TensorProto.DOUBLE, shape=[4, 3], mean=2.0, scale=0.5),
         helper.make_node("Constant", [], ["shape"], value_ints=[4, 3]),
         helper.make_node("ConstantOfShape", ["shape"], ["v0"],
                          value=numpy_helper.from_array(np.array([0.25]), "fill")),
         helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.int64(0))),
         helper.make_node("Identity", ["zero"], ["T0"])],
        "initialization", [], [helper.make_tensor_value_info(n, t, s) for n, t, s in (
            ("w0", TensorProto.DOUBLE, [4, 3]), ("v0", TensorProto.DOUBLE, [4, 3]), ("T0", TensorProto.INT64, []))])
    model = linear(domain, start, (("w", "w0"), ("v", "v0"), ("T", "T0")))
    path, step, data = test.temp / "foreign.onnx", test.temp / "step.onnx", test.temp / "xy.safetensors"
    onnx.save(model, path)
    test.tool("recast-opt", path, "-o", step)
    onnx.checker.check_model(str(step), full_check=True)
    written = onnx.load(step)
    test.check({n.domain for n in written.graph.node} == {""}, f"{domain}: standard operators only")
    initial = {i.name: numpy_helper.to_array(i) for i in written.graph.initializer}
    w, v = initial["w"], initial["v"]
    # 12 draws of mean 2 and deviation 0.5: their mean is within 5 standard errors, and they are no constant.
    test.check(abs(w.mean() - 2) < 5 * 0.5 / np.sqrt(w.size) and len(np.unique(w)) == w.size and np.all(v == 0.25),
               f"{domain}: the initialization set the initial values")
    random = np.random.default_rng(3)
    x, y = random.standard_normal((8, 4)), random.standard_normal((8, 3))
    save_file({"x": x, "y": y}, data)
    state, out = train(test, step, data, 4)
    losses = []
    for t in range(4):
        e = x @ w - y
        losses.append((e ** 2).mean())
        g = 2 * x.T @ e / e.size + 0.0625 * w
        v = 0.75 * v + (0.5 if t > 0 else 1) * g
        w = w - 0.125 * (g + 0.75 * v)
    test.close(f"{domain}: losses", out["loss"].ravel(), losses, EXACT)
    test.all_close(f"{domain}: state", {"w": (state.get("w"), w), "v": (state.get("v"), v)}, EXACT)
    test.check(state["T"] == 4, f"{domain}: the count is updated")


def gradients(test):
    """Gradient where its inputs are not the tensors that it names, twice over, and of an intermediate tensor."""
    info = lambda n, shape: helper.make_tensor_value_info(n, TensorProto.DOUBLE, shape)
    domain = PREVIEW[0]
    gradient = lambda inputs, outputs, **names: helper.make_node("Gradient", inputs, outputs, domain=domain, **names)
    nodes = [helper.make_node("Mul", ["a", "a"], ["h"]), helper.make_node("Mul", ["h", "b"], ["y"]),
             gradient(["c", "b"], ["dh"], xs=["h", "b"], y="y"), gradient(["c", "b"], ["", "db"], xs=["a", "b"], y="y"),
             gradient(["a"], ["da"], xs=["a"], y="y"), gradient(["a", "b"], ["daa"], xs=["a"], zs=["b"], y="da"),
             helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "g", [info(n, [3]) for n in "abc"],
                              [info(n, [3]) for n in ("dh", "db", "da", "daa")] + [info("loss", [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)],
                              ir_version=8)
    entry = model.training_info.add()
    entry.algorithm.CopyFrom(helper.make_graph([helper.make_node("Sub", ["s", "da"], ["s_new"])], "s", [],
                                               [info("s_new", [3])], [numpy_helper.from_array(np.zeros(3), "s")]))
    pair = entry.update_binding.add()
    pair.key, pair.value = "s", "s_new"
    path, step, data = test.temp / "gradients.onnx", test.temp / "step.onnx", test.temp / "abc.safetensors"
    onnx.save(model, path)
    test.tool("recast-opt", path, "-o", step)
    onnx.checker.check_model(str(step), full_check=True)
    random = np.random.default_rng(4)
    a, b, c = (random.standard_normal(3) for _ in range(3))
    save_file({"a": a, "b": b, "c": c}, data)
    _, out = train(test, step, data, 1)
    want = {"dh": b, "db": c * c, "da": 2 * a * b, "daa": 2 * b}
    test.all_close("Gradient nodes", {n: (out[n][0] if n in out else None, v) for n, v in want.items()}, EXACT)


def refusals(test):
    def refused(name, model, *words):
        onnx.save(model, test.temp / "bad.onnx")
        done = test.tool("recast-opt", test.temp / "bad.onnx", "-o", test.temp / "bad_step.onnx", ok=False)
        test.check(done.returncode == 1 and all(w in done.stderr for w in words) and done.stderr.count("error:") == 1,
                   f"{name}: {done.stderr.strip()}")

    domain = PREVIEW[0]
    model = linear(domain)
    model.training_info[0].update_binding[0].key = "ww"
    refused("an update of nothing", model, "ww", "no initializer")
    model = linear(domain)
    model.training_info.add().CopyFrom(model.training_info[0])
    refused("two entries", model, "2 entries")
    model = linear(domain)
    model.training_info[0].algorithm.node[3].attribute[0].strings[0] = b"nothing"
    refused("a gradient with respect to nothing", model, "gradient", "nothing")
    start = helper.make_graph([helper.make_node("Bernoulli", ["w"], ["w0"], "coin")], "i", [], [])
    refused("an initialization of another kind", linear(domain, start, (("w", "w0"),)), "coin", "Bernoulli")
    start = helper.make_graph([helper.make_node("RandomUniform", [], ["w0"], "r", shape=[3, 4],
                                                dtype=TensorProto.DOUBLE)], "i", [], [])
    refused("an initial value of another shape", linear(domain, start, (("w", "w0"),)), "'w'", "shape")
    onnx.save(linear(domain), test.temp / "step_already.onnx")
    done = test.tool("recast-run", test.temp / "step_already.onnx", ok=False)
    test.check(done.returncode == 1 and "'gradient'" in done.stderr and "recast-opt" in done.stderr,
               f"a Gradient node in recast-run: {done.stderr.strip()}")
    done = test.tool("recast-opt", test.temp / "step_already.onnx", "--precision=bf16", "-o", test.temp / "x.onnx",
                     ok=False)
    test.check(done.returncode == 1 and "--precision" in done.stderr, f"a step already: {done.stderr.strip()}")


def main():
    test = kit.Test(__doc__)
    for name, flags in (("mlp", ["--precision=f16", "--clip-grad-norm=1"]), ("gpt2_tiny", ["--precision=bf16"])):
        folder = test.corpus / "torch" / name
        round_trip(test, name, folder / "model.onnx", folder / "reference.safetensors", "batches", flags)
    dropout, data = test.temp / "dropout.onnxtxt", test.temp / "x.safetensors"
    dropout.write_text(DROPOUT)
    save_file({"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)}, data)
    round_trip(test, "dropout", dropout, data, "single", ["--optimizer=sgd", "--momentum=0.9"])
    for domain in PREVIEW:
        foreign(test, domain)
    gradients(test)
    refusals(test)
    test.finish()


if __name__ == "__main__":
    main()
