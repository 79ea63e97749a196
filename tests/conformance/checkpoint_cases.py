"""Kinds of bugs that checkpointing tools had in public, one case each; the subject is the case's name.

Values are compared bit for bit with the same model without recomputing.
"""
import json

import kit
import numpy as np
import onnx
import onnxruntime
from checkpoint_kit import arena_of, recomputed, report_of, rewrite
from onnx import TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


class Net:
    """A forward graph with a loss, layer by layer."""

    def __init__(self, rows=16, width=32):
        self.rows, self.width, self.random = rows, width, np.random.default_rng(0)
        self.nodes, self.initializers, self.inputs, self.count = [], [], {}, 0

    def __call__(self, op, *inputs, outputs=1, name=None, **attributes):
        self.count += 1
        name = name or f"n{self.count}_{op}"
        results = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), results, name=name, **attributes))
        return results[0] if outputs == 1 else results

    def input(self, name, shape, data=None):
        self.inputs[name] = (shape, self.random.standard_normal(shape).astype(np.float32) if data is None else data)
        return name

    def parameter(self, name, shape, scale=None):
        value = self.random.standard_normal(shape) * (scale or 1 / np.sqrt(shape[0]))
        return self.constant(name, value.astype(np.float32))

    def constant(self, name, value):
        self.initializers.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def linear(self, x, name, width=None):
        width = width or self.width
        return self("MatMul", x, self.parameter(f"{name}.weight", (self.width, width)), name=name)

    def loss(self, x):
        self("ReduceMean", self("Mul", x, x), name="loss", keepdims=0)

    def save(self, test, opset=17):
        types = {np.dtype(np.float32): F32, np.dtype(np.int64): I64}
        inputs = [helper.make_tensor_value_info(n, types[d.dtype], s) for n, (s, d) in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "net", inputs, [helper.make_tensor_value_info("loss", F32, [])],
                                  self.initializers)
        model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
        onnx.checker.check_model(model, full_check=True)
        test.model = test.temp / "net.onnx"
        onnx.save(model, str(test.model))
        test.data = test.temp / "data.safetensors"
        kit.save(test.data, {n: d for n, (s, d) in self.inputs.items()})
        return test.model


def train(test, step, data=None):
    outputs, flags = test.temp / "outputs.safetensors", [f"--data={data or test.data}", "--data-layout=single"]
    planned, used = arena_of(test.tool("recast-run", step, *flags, "--steps=1", "--explain"))
    test.tool("recast-run", step, *flags, "--steps=3", f"--outputs={outputs}")
    test.check(planned == used, f"{step.stem}: {planned} bytes planned, {used} used")
    return planned, kit.load(outputs)


def same(test, name, got, want):
    wrong = [n for n in want if n not in got or got[n].tobytes() != want[n].tobytes()]
    return test.check(not wrong and len(got) == len(want), f"{name}: {len(want)} outputs equal bit for bit {wrong[:4]}")


def compare(test, policies, *flags, data=None, allowed=1.0):
    """Trains with each policy and without; returns the models with recomputation by policy."""
    plain, _ = rewrite(test, "plain", *flags, "--checkpoint=none")
    size, want = train(test, plain, data)
    models = {}
    for policy in policies:
        name = policy.strip("-").replace("=", "_").replace("%", "").replace("*", "all")
        step, _ = rewrite(test, name, *flags, policy)
        arena, got = train(test, step, data)
        same(test, name, got, want)
        test.check(arena <= size * allowed, f"{name}: {arena} bytes, {size} without")
        onnx.checker.check_model(str(step), full_check=True)
        models[policy] = onnx.load(str(step))
    return onnx.load(str(plain)), models


def count(model, op):
    return sum(n.op_type == op for n in kit.walk_nodes(model.graph))


def residual_mlp(layers=32, rows=256, width=32):
    """Rows enough that activations outweigh the gradients of parameters, which all live until their norm is known."""
    net = Net(rows, width)
    x = net.input("x", (rows, width))
    for i in range(layers):
        x = net("Add", x, net.linear(net("Relu", net.linear(x, f"up{i}")), f"down{i}"), name=f"block{i}")
    net.loss(x)
    return net


def monotone(test):
    """A smaller budget gives no larger arena and costs no less; no budget is exceeded."""
    residual_mlp().save(test)
    plain, _ = rewrite(test, "plain", "--checkpoint=none")
    size, want = train(test, plain)
    last, last_work, reached = size, 0.0, 0
    for percent in range(97, 20, -6):
        report = test.temp / "report.json"
        step, done = rewrite(test, f"at{percent}", f"--memory-budget={percent}%", f"--report={report}", ok=False)
        if done.returncode:
            break
        arena, got = train(test, step)
        work = report_of(report)["more_time_percent"]
        same(test, f"{percent}%", got, want)
        test.check(arena <= size * percent // 100, f"{percent}%: {arena} bytes of {size * percent // 100}")
        test.check(arena <= last and work >= last_work,
                   f"{percent}%: arena {arena} after {last}, {work:.2f} % more time after {last_work:.2f} %")
        last, last_work, reached = arena, work, reached + 1
    test.check(reached >= 8, f"{reached} budgets were reached, the least of {last / size:.0%}")


def unreachable(test):
    """An error with the floor and what sets it; nothing is written."""
    residual_mlp(4).save(test)
    step, done = rewrite(test, "step", "--memory-budget=1KiB", ok=False)
    test.check(done.returncode == 1 and not step.exists(), f"exit status {done.returncode}, no file")
    lines = done.stderr.strip().splitlines()
    test.check(sum(": error:" in line for line in lines) == 1, "one error")
    for text in ("the least that was found is", "No schedule needs less than", "1.00 KiB (1024 bytes)"):
        test.check(text in done.stderr, f"the error says '{text}'")


def wrong_budgets(test):
    """NaN, negative and other nonsense is wrong usage."""
    residual_mlp(1).save(test)
    for flag in ("--memory-budget=nan", "--memory-budget=-1", "--memory-budget=0", "--memory-budget=inf",
                 "--memory-budget=nan%", "--memory-budget=-5%", "--memory-budget=0%", "--memory-budget=200%",
                 "--memory-budget=1e400", "--memory-budget=", "--memory-budget=much", "--checkpoint=auto",
                 "--checkpoint=every-0", "--checkpoint=every--1", "--checkpoint=every-x", "--checkpoint=",
                 "--solve-time=0", "--solve-time=nan", "--solve-time=-1"):
        step, done = rewrite(test, "step", flag, ok=False)
        test.check(done.returncode == 2 and not step.exists() and "error: " + flag.split("=")[0] in done.stderr,
                   f"{flag}: exit status {done.returncode}: {done.stderr.strip()[:120]}")


def min_cut(test):
    """((a * c) * x + b * y + ((a * b) * c) * z: products of a, b and c are computed again from these."""
    net = Net(64, 32)
    kept = {n: net.linear(net.input(f"in_{n}", (64, 32)), n) for n in "abc"}
    weights = {n: net.parameter(n, (64, 32)) for n in "xyz"}
    a, b, c = kept.values()
    ab = net("Mul", a, b, name="ab")
    terms = [net("Mul", net("Mul", a, c, name="ac"), weights["x"], name="acx"),
             net("Mul", b, weights["y"], name="by"),
             net("Mul", net("Mul", ab, c, name="abc"), weights["z"], name="abcz")]
    x = net("Add", net("Add", terms[0], terms[1]), terms[2])
    for i in range(6):
        x = net.linear(net("Relu", x), f"head{i}")
    net.loss(x)
    net.save(test)
    _, models = compare(test, ["--checkpoint=selective"])
    again = {o for n in kit.walk_nodes(models["--checkpoint=selective"].graph) for o in n.output if ".recompute" in o}
    test.check({"ac.recompute", "abc.recompute"} <= again, f"recomputed: {sorted(again)}")
    test.check(not {"a.recompute", "b.recompute", "c.recompute"} & again, "a, b and c are kept")


def autocast_dtype(test):
    """Under autocast the second run has the types of the first."""
    residual_mlp(8).save(test)
    for precision in ("bf16", "f16"):
        _, models = compare(test, ["--checkpoint=sqrt", "--memory-budget=min"], f"--precision={precision}")
        for policy, model in models.items():
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
            types = {v.name: v.type.tensor_type.elem_type for v in inferred.graph.value_info}
            pairs = [(o, o.split(".recompute")[0]) for n in model.graph.node for o in n.output if ".recompute" in o]
            wrong = [again for again, first in pairs if types[again] != types[first]]
            test.check(pairs and not wrong, f"{precision} {policy}: {len(pairs)} values have their types {wrong[:3]}")


def random_mask(test):
    """Dropout draws the mask again from the same key and offset."""
    net = Net(64, 32)
    ratio, yes = net.constant("ratio", np.float32(0.4)), net.constant("yes", np.bool_(True))
    x = net.input("x", (64, 32))
    for i in range(10):
        x = net("Dropout", net("Relu", net.linear(x, f"layer{i}")), ratio, yes, name=f"drop{i}")
    net.loss(x)
    net.save(test)
    _, models = compare(test, ["--checkpoint=selective", "--checkpoint=every-4", "--memory-budget=min"])
    for policy, model in models.items():
        masks = [n for n in model.graph.node if n.op_type == "dropout_mask"]
        attributes = {n.output[0]: n.attribute[0].i for n in masks}
        again = [o for o in attributes if ".recompute" in o]
        wrong = [o for o in again if attributes[o] != attributes[o.split(".recompute")[0]]]
        # A budget may be met without drawing masks again: they are the smallest tensors.
        test.check((again or "budget" in policy) and not wrong,
                   f"{policy}: {len(again)} masks again, with their offsets {wrong}")


def routing(test):
    """What TopK chose is kept: another rounding in a second run would route elsewhere."""
    net = Net(64, 32)
    x = net.input("x", (64, 32))
    for i in range(6):
        k = net.constant(f"k{i}", np.array([8], np.int64))
        best, _ = net("TopK", net("Tanh", net.linear(x, f"gate{i}")), k, outputs=2, name=f"top{i}")
        wide = net("MatMul", best, net.parameter(f"expert{i}", (8, 32)), name=f"expert{i}.out")
        x = net("Add", x, wide)
    net.loss(x)
    net.save(test)
    _, models = compare(test, ["--checkpoint=every-5", "--checkpoint=sqrt", "--memory-budget=min"])
    for policy, model in models.items():
        again = recomputed(model)
        test.check(again and not again["TopK"], f"{policy}: runs again: {dict(again)}")


def statistics_twice(test):
    """Running statistics of BatchNormalization and amax histories of fp8 take in a batch once."""
    net = Net(8)
    x = net.input("x", (8, 4, 12, 12))
    for i in range(6):
        x = net("Conv", x, net.parameter(f"conv{i}", (4, 4, 3, 3), 0.2), pads=[1, 1, 1, 1], name=f"conv{i}.out")
        state = [net.constant(f"bn{i}.{n}", np.full(4, v, np.float32)) for n, v in
                 (("scale", 1), ("bias", 0), ("mean", 0), ("var", 1))]
        x, _, _ = net("BatchNormalization", x, *state, outputs=3, name=f"bn{i}", training_mode=1)
        x = net("Relu", x)
    net.loss(x)
    net.save(test)
    plain, models = compare(test, ["--checkpoint=sqrt", "--checkpoint=every-3", "--memory-budget=min"])
    for policy, model in models.items():
        test.check(recomputed(model)["BatchNormalization"] > 0, f"{policy}: runs again: {dict(recomputed(model))}")
        test.check(count(model, "keep_if") == count(plain, "keep_if"), f"{policy}: statistics are updated once")

    residual_mlp(6).save(test, opset=21)
    plain, models = compare(test, ["--checkpoint=sqrt", "--memory-budget=min"], "--precision=fp8-delayed")
    for policy, model in models.items():
        for op in ("update_amax",):
            test.check(count(model, op) == count(plain, op) > 0, f"{policy}: {count(model, op)} nodes {op}")


def effects_twice(test):
    """Random operators without a key run once, in their order: Multinomial, where the others draw from the step's."""
    net = residual_mlp(2)
    x = net.nodes[-3].output[0]
    del net.nodes[-2:]
    for i in range(6):
        drawn = net("Multinomial", x, name=f"noise{i}", sample_size=32, seed=float(i))
        noise = net("Cast", drawn, to=TensorProto.FLOAT)
        x = net("Relu", net.linear(net("Add", x, noise), f"noisy{i}"))
    net.loss(x)
    net.save(test)
    step, _ = rewrite(test, "plain")
    for passes in ("insert-recomputation{policy=every-2}", "insert-recomputation{budget=80%}", "order-for-memory"):
        again = test.temp / "again.onnx"
        test.tool("recast-opt", step, f"--pass-pipeline=builtin.module({passes})", "-o", again)
        model = onnx.load(str(again))
        names = [n.name for n in model.graph.node if n.op_type == "Multinomial"]
        test.check(names == [f"noise{i}" for i in range(6)], f"{passes}: {names}")


def skips(test):
    """A U-Net's skips never make the arena larger than without recomputing."""
    test.model, data = test.corpus / "torch/unet_tiny/model.onnx", test.temp / "data.safetensors"
    want = kit.load(test.corpus / "torch/unet_tiny/reference.safetensors")
    kit.save(data, {n.removeprefix("in."): v[0] for n, v in want.items() if n.startswith("in.")})
    compare(test, [f"--checkpoint={p}" for p in ("sqrt", "selective", "every-1", "every-3", "every-10", "*Relu*")],
            data=data)


def frozen_first(test):
    """Frozen first layers have no backward that would need them: nothing of them runs again."""
    residual_mlp(16).save(test)
    freeze = "--freeze=" + ",".join(f"{n}{i}.weight" for i in range(8) for n in ("up", "down"))
    _, models = compare(test, ["--checkpoint=sqrt", "--checkpoint=every-7", "--memory-budget=60%"], freeze)
    for policy, model in models.items():
        early = [o for n in model.graph.node for o in n.output
                 if ".recompute" in o and any(f"{k}{i}." in o for i in range(7) for k in ("up", "down", "block"))]
        test.check(recomputed(model) and not early, f"{policy}: of the frozen layers run again: {early}")


def just_in_time(test):
    """onnxruntime too recomputes a stretch after the backward of the one behind it, not ahead of all."""
    residual_mlp(16).save(test)
    step, _ = rewrite(test, "sqrt", "--checkpoint=sqrt", "--optimizer=sgd")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(test.temp / "profile")
    session = onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    session.run(["loss", "grad_norm"], {"x": kit.load(test.data)["x"]})
    events = json.loads(open(session.end_profiling()).read())
    order = [e["name"].removesuffix("_kernel_time") for e in events if e["name"].endswith("_kernel_time")]
    model = onnx.load(str(step))
    ours = [n.name for n in model.graph.node if any(".recompute" in o for o in n.output) and n.name in order]
    gradients = [n for n in order if n.startswith("grad/") and "down" in n]
    test.check(len(ours) > 4 and gradients, f"{len(ours)} operators run again, {len(gradients)} gradients")
    place = {name: i for i, name in enumerate(order)}
    first, last = min(place[n] for n in ours), max(place[n] for n in ours)
    between = [n for n in gradients if first < place[n] < last]
    test.check(len(between) * 4 > len(gradients), f"{len(between)} of {len(gradients)} gradients lie between them")


def later_passes(test):
    """CSE, canonicalisation, another run of recast-opt and a trip through text keep every second run."""
    residual_mlp(8).save(test)
    step, _ = rewrite(test, "sqrt", "--checkpoint=sqrt")
    arena, want = train(test, step)
    clones = recomputed(onnx.load(str(step)))
    for name, flags, target in (("again", [], "onnx"), ("cse", ["--pass-pipeline=builtin.module(cse,canonicalize,cse)"], "onnx"),
                                ("text", ["--emit=mlir"], "mlir")):
        later = test.temp / f"{name}.{target}"
        test.tool("recast-opt", step, *flags, "-o", later)
        if target == "mlir":
            test.tool("recast-opt", later, "-o", test.temp / "back.onnx")
        left = recomputed(onnx.load(str(test.temp / "back.onnx" if target == "mlir" else later)))
        test.check(left == clones and clones, f"{name}: {sum(left.values())} of {sum(clones.values())} runs are left")
        size, got = train(test, later)
        same(test, name, got, want)
        test.check(size == arena, f"{name}: {size} bytes, {arena} before")
    optimised = test.temp / "optimised.onnx"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(optimised)
    onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    products = ("MatMul", "FusedMatMul", "Gemm", "FusedGemm")
    before, after = onnx.load(str(step)), onnx.load(str(optimised))
    numbers = [sum(count(m, p) for p in products) for m in (before, after)]
    test.check(numbers[0] == numbers[1], f"onnxruntime keeps {numbers[1]} of {numbers[0]} matrix products")


def loop_body(test):
    """With accumulation the second runs are in the body of the Scan."""
    residual_mlp(12).save(test)
    stacked = test.temp / "stacked.safetensors"
    x = kit.load(test.data)["x"]
    kit.save(stacked, {"x": np.stack([x, 2 * x, -x])})
    _, models = compare(test, ["--checkpoint=sqrt", "--checkpoint=every-4", "--memory-budget=80%"], "--accumulate=3",
                        data=stacked)
    for policy, model in models.items():
        outside = [n.name for n in model.graph.node if any(".recompute" in o for o in n.output)]
        test.check(recomputed(model) and not outside, f"{policy}: {sum(recomputed(model).values())} in the body, "
                   f"{len(outside)} outside")


CASES = {f.__name__: f for f in (monotone, unreachable, wrong_budgets, min_cut, autocast_dtype, random_mask, routing,
                                 statistics_twice, effects_twice, skips, frozen_first, just_in_time, later_passes,
                                 loop_body)}


def main():
    test = kit.Test(__doc__, "CASE")
    CASES[test.options.subject](test)
    test.finish()


if __name__ == "__main__":
    main()
