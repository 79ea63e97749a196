"""Training steps written by hand in standard ONNX operators, whole or broken in one place.

`step(...)` builds a step of a two-layer perceptron: forward, backward, loss scale, finite check, unscale, clip and
update, with nothing that says what is what: values are called by numbers. Every flag breaks one thing or chooses
another way to write the same.
"""
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

F32, F16, BF16, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL


class Graph:
    """Nodes in order; values have numbers for names unless they are given one."""

    def __init__(self, outer=None):
        self.nodes, self.initializers, self.inputs, self.outputs = [], [], [], []
        self.counter = outer.counter if outer else [0]
        self.root = outer.root if outer else self

    def fresh(self):
        self.counter[0] += 1
        return f"t{self.counter[0]}"

    def __call__(self, op, *inputs, outputs=1, name=None, **attributes):
        results = [name or self.fresh()] if outputs == 1 else [self.fresh() for _ in range(outputs)]
        domain = attributes.pop("domain", "")
        self.nodes.append(helper.make_node(op, list(inputs), results, name=f"n{len(self.nodes)}_{op}", domain=domain,
                                           **attributes))
        return results[0] if outputs == 1 else results

    def const(self, value, dtype=np.float32):
        name = self.fresh()
        self.root.initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def input(self, name, shape, element=F32, value=None):
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        if value is not None:
            array = np.full(shape, value, np.float32)
            self.initializers.append(helper.make_tensor(name, element, shape, array.ravel().tolist()))
        return name

    def output(self, value, shape, element=F32):
        self.outputs.append(helper.make_tensor_value_info(value, element, shape))

    def model(self, opset=17, check=True):
        graph = helper.make_graph(self.nodes, "step", self.inputs, self.outputs, self.initializers)
        domains = {n.domain for n in self.nodes} - {""}
        model = helper.make_model(graph, ir_version=9, opset_imports=[
            helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))])
        if check:
            checker.check_model(model, full_check=True)
        return model


# Ways to find numbers that are not finite.
TESTS = ["zero-product", "self-difference", "both", "either", "largest", "inside", "norm", "sum", "counts", "concat"]


def finite(g, gradients, test="zero-product"):
    """A boolean that is true where some gradient is not finite."""
    zero, largest = g.const(0.0), g.const(np.finfo(np.float32).max)
    if test == "norm":  # Of all of them together.
        norm = norm_of(g, gradients)
        return g("Or", g("IsNaN", norm), g("IsInf", norm))
    if test == "counts":  # How many, over all of them.
        counts = [g("ReduceSum", g("Cast", g("Or", g("IsInf", x), g("IsNaN", x)), to=F32), keepdims=0)
                  for x in gradients]
        return g("Greater", g("Sum", *counts), zero)
    if test == "concat":
        flat = g("Concat", *[g("Reshape", x, g.const([-1], np.int64)) for x in gradients], axis=0)
        return g("Cast", g("ReduceMax", g("Cast", g("Or", g("IsNaN", flat), g("IsInf", flat)), to=F32), keepdims=0),
                 to=BOOL)
    found = None
    for gradient in gradients:
        if test == "zero-product":
            total = g("ReduceSum", g("Mul", gradient, zero), keepdims=0)
            bad = g("Not", g("Less", total, g.const(1.0)))
        elif test == "self-difference":
            bad = any_of(g, g("Not", g("Equal", g("Sub", gradient, gradient), zero)))
        elif test == "is-nan":
            bad = any_of(g, g("IsNaN", gradient))
        elif test == "is-inf":
            bad = any_of(g, g("IsInf", gradient))
        elif test == "both":
            bad = any_of(g, g("Or", g("IsNaN", gradient), g("IsInf", gradient)))
        elif test == "either":
            bad = g("Or", any_of(g, g("IsInf", gradient)), any_of(g, g("Not", g("Equal", gradient, gradient))))
        elif test == "largest":
            bad = g("Not", g("LessOrEqual", g("ReduceMax", g("Abs", gradient), keepdims=0), largest))
        elif test == "inside":
            inside = g("Cast", g("Less", g("Abs", gradient), largest), to=F32)
            bad = g("Not", g("Cast", g("ReduceMin", inside, keepdims=0), to=BOOL))
        elif test == "sum":
            total = g("ReduceSum", gradient, keepdims=0)
            bad = g("Or", g("IsInf", total), g("IsNaN", total))
        found = g("Or", found, bad) if found else bad
    return found


def any_of(g, booleans):
    count = g("ReduceSum", g("Cast", booleans, to=F32), keepdims=0)
    return g("Greater", count, g.const(0.0))


def sum_of(g, values):
    total = values[0]
    for value in values[1:]:
        total = g("Add", total, value)
    return total


def norm_of(g, gradients):
    return g("Sqrt", sum_of(g, [g("ReduceSumSquare", x, keepdims=0) for x in gradients]))


def clip(g, gradients, how, bound=1.0):
    if how == "value":
        return [g("Clip", x, g.const(-bound), g.const(bound)) for x in gradients]
    norm = norm_of(g, gradients)
    if how == "where":
        ratio = g("Div", g.const(bound), norm)
        factor = g("Where", g("Greater", norm, g.const(bound)), ratio, g.const(1.0))
    else:
        factor = g("Min", g.const(1.0), g("Div", g.const(bound), g("Add", norm, g.const(1e-6))))
    return [g("Mul", x, factor) for x in gradients]


def step(scale="input", scale_loss=1, unscale=1, clip_how="norm", clip_first=False, check=("w1", "b1", "w2", "b2"),
         test="zero-product", skip="where", skipped=("w1", "b1", "w2", "b2"), optimizer="adam", master=F32, moments=F32,
         dynamic=True, weight_decay=False, scaled_seed_only=False, unscale_by="div", check_clipped=False,
         decay=None):
    """One step. `scale`: input, constant or None. `scale_loss`, `unscale`: how often. `check`, `skipped`: which
    parameters' gradients are tested, and whose updates are skipped; `check_clipped`: after the clip. `dynamic`: the
    scale changes; "product": chosen by products. `decay`: the rate has a factor that decays; "where", "product": how a
    step that is skipped keeps it; "moved": it does not."""
    g = Graph()
    x, target = g.input("a", [8, 4]), g.input("b", [8, 2])
    shapes = {"w1": [4, 3], "b1": [3], "w2": [3, 2], "b2": [2]}
    params = {n: g.input(f"p{i}", s, master, 0.1) for i, (n, s) in enumerate(shapes.items())}
    rate = g.input("r", [], F32, 0.01)
    factor = {"input": lambda: g.input("q", [], F32, 1024.0), "constant": lambda: g.const(1024.0),
              None: lambda: None}[scale]()

    used = {n: g("Cast", p, to=F32) if master != F32 else p for n, p in params.items()}
    hidden = g("Relu", g("Add", g("MatMul", x, used["w1"]), used["b1"]))
    error = g("Sub", g("Add", g("MatMul", hidden, used["w2"]), used["b2"]), target)
    loss = g("ReduceMean", g("Mul", error, error), keepdims=0)

    scaled = loss
    for _ in range(scale_loss if factor else 0):
        scaled = g("Mul", scaled, factor)
    seed = g.const(2.0 / 16)
    for _ in range(scale_loss if factor else 0):
        seed = g("Mul", seed, factor)
    d_error = g("Mul", error, seed)
    d_hidden = g("MatMul", d_error, g("Transpose", used["w2"], perm=[1, 0]))
    d_relu = g("Where", g("Greater", hidden, g.const(0.0)), d_hidden, g.const(0.0))
    gradients = {"w1": g("MatMul", g("Transpose", x, perm=[1, 0]), d_relu),
                 "b1": g("ReduceSum", d_relu, g.const([0], np.int64), keepdims=0),
                 "w2": g("MatMul", g("Transpose", hidden, perm=[1, 0]), d_error),
                 "b2": g("ReduceSum", d_error, g.const([0], np.int64), keepdims=0)}
    found = finite(g, [gradients[n] for n in check], test) if check else None

    def unscaled(values):
        for _ in range(unscale if factor else 0):
            if unscale_by == "div":
                values = [g("Div", v, factor) for v in values]
            else:
                inverse = g("Reciprocal", factor) if unscale_by == "reciprocal" else g("Div", g.const(1.0), factor)
                values = [g("Mul", inverse, v) for v in values]
        return values

    values = list(gradients.values())
    if not clip_first:
        values = unscaled(values)
    if clip_how:
        values = clip(g, values, clip_how)
    if clip_first:
        values = unscaled(values)
    if check_clipped:
        found = finite(g, values, test)

    def blend(on, off):
        """`on` where the step is skipped, for finite numbers."""
        mask = g("Cast", found, to=F32)
        return g("Add", g("Mul", mask, on), g("Mul", off, g("Sub", g.const(1.0), mask)))

    if decay:
        factor_now = g.input("k", [], F32, 1.0)
        decayed = g("Mul", factor_now, g.const(0.999))
        rate = g("Mul", rate, decayed)
        g.output({"where": lambda: g("Where", found, factor_now, decayed), "moved": lambda: g("Identity", decayed),
                  "product": lambda: blend(factor_now, decayed)}[decay](), [])

    for (name, param), gradient in zip(params.items(), values):
        i, shape = param, shapes[name]

        def put(old, new, element):
            if name not in skipped or not found:
                return g("Identity", new)
            if skip == "where":
                return g("Where", found, old, new)
            if skip == "if":
                bodies = {}
                for branch, value in (("then_branch", old), ("else_branch", new)):
                    result = g.fresh()
                    bodies[branch] = helper.make_graph(
                        [helper.make_node("Identity", [value], [result])], branch, [],
                        [helper.make_tensor_value_info(result, element, shape)])
                return g("If", found, **bodies)
            keep = g("Cast", g("Not", found), to=F32)  # skip == "product": 0 * inf is NaN
            if element != F32:
                keep = g("Cast", keep, to=element)
            return g("Add", old, g("Mul", keep, g("Sub", new, old)))

        if weight_decay:
            gradient = g("Add", gradient, g("Mul", g("Cast", param, to=F32), g.const(0.01)))
        cast = (lambda v: g("Cast", v, to=master)) if master != F32 else (lambda v: v)
        direction = gradient
        if optimizer == "adam":
            first, second = g.input(f"m{i}", shape, moments, 0.0), g.input(f"v{i}", shape, moments, 0.0)
            low = (lambda v: g("Cast", v, to=moments)) if moments != F32 else (lambda v: v)
            wide = (lambda v: g("Cast", v, to=F32)) if moments != F32 else (lambda v: v)
            new_first = g("Add", g("Mul", wide(first), g.const(0.9)), g("Mul", gradient, g.const(0.1)))
            new_second = g("Add", g("Mul", wide(second), g.const(0.99)),
                           g("Mul", g("Mul", gradient, gradient), g.const(0.01)))
            direction = g("Div", new_first, g("Add", g("Sqrt", new_second), g.const(1e-8)))
            g.output(put(first, low(new_first), moments), shape, moments)
            g.output(put(second, low(new_second), moments), shape, moments)
        g.output(put(param, g("Sub", param, cast(g("Mul", direction, rate))), master), shape, master)
    g.output(loss, [])
    if factor and not scaled_seed_only:
        g.output(scaled, [])
    if factor and dynamic and scale == "input" and found:
        less, more = g("Mul", factor, g.const(0.5)), g("Mul", factor, g.const(2.0))
        g.output(blend(less, more) if dynamic == "product" else g("Where", found, less, more), [])
    return g.model()


def as_initializers(model):
    """The same step with its state in initializers alone, as exporters write weights that they hold for constant."""
    state = {i.name for i in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in state]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def without_defaults(model):
    """The same step with its state as plain inputs, whose values the caller gives."""
    inputs = {i.name for i in model.graph.input}
    constants = [i for i in model.graph.initializer if i.name not in inputs]
    del model.graph.initializer[:]
    model.graph.initializer.extend(constants)
    return model


def micro_batches(normalize="tokens", accumulator=F32, form="scan"):
    """A linear classifier over 4 stacked micro-batches, labels of -1 left out, SGD. `normalize`: tokens divides the
    summed gradients once by the number of labels in all; own divides each micro-batch by its own; weighted divides each
    and multiplies it by its own number again, before one division. `form`: scan, loop or unrolled."""
    g = Graph()
    x, mask = g.input("a", [4, 8, 5]), g.input("b", [4, 8, 1])
    target = g.input("c", [4, 8, 2])
    weight, rate = g.input("p0", [5, 2], F32, 0.1), g.input("r", [], F32, 0.01)
    total = g("Max", g("ReduceSum", mask, keepdims=0), g.const(1.0))

    def gradient(b, xs, ms, ts):
        error = b("Mul", b("Sub", b("MatMul", xs, weight), ts), ms)
        loss = b("ReduceSum", b("Mul", error, error), keepdims=0)
        grad = b("MatMul", b("Transpose", xs, perm=[1, 0]), b("Mul", error, b.const(2.0)))
        own = b("Max", b("ReduceSum", ms, keepdims=0), b.const(1.0))
        if normalize != "tokens":
            grad, loss = b("Div", grad, own), b("Div", loss, own)
        if normalize == "weighted":
            grad, loss = b("Mul", grad, own), b("Mul", loss, own)
        return grad, loss

    def low(b, v):
        return b("Cast", v, to=accumulator) if accumulator != F32 else v

    def body(names, slices):
        b = Graph(g)
        b.inputs = [helper.make_tensor_value_info(n, e, s) for n, e, s in names]
        grad, loss = gradient(b, *slices(b))
        sum_grad = b("Add", names[-5 if form == "scan" else -2][0], low(b, grad))
        sum_loss = b("Add", names[-4 if form == "scan" else -1][0], loss)
        outputs = [(sum_grad, accumulator, [5, 2]), (sum_loss, F32, [])]
        if form == "loop":
            outputs.insert(0, (b("Identity", names[1][0]), TensorProto.BOOL, []))
        b.outputs = [helper.make_tensor_value_info(n, e, s) for n, e, s in outputs]
        return helper.make_graph(b.nodes, "body", b.inputs, b.outputs)

    zeros = g("Cast", g("ConstantOfShape", g.const([5, 2], np.int64)), to=accumulator)
    zero = g.const(0.0)
    if form == "scan":
        names = [("sg", accumulator, [5, 2]), ("sl", F32, []), ("xs", F32, [8, 5]), ("ms", F32, [8, 1]),
                 ("ts", F32, [8, 2])]
        grad, loss = g("Scan", zeros, zero, x, mask, target, outputs=2, num_scan_inputs=3,
                       body=body(names, lambda b: ("xs", "ms", "ts")))
    elif form == "loop":
        names = [("it", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("sg", accumulator, [5, 2]),
                 ("sl", F32, [])]
        grad, loss = g("Loop", g.const(4, np.int64), "", zeros, zero, outputs=2,
                       body=body(names, lambda b: [b("Gather", v, "it", axis=0) for v in (x, mask, target)]))
    else:
        parts = [gradient(g, *[g("Squeeze", g("Slice", v, g.const([i], np.int64), g.const([i + 1], np.int64),
                                              g.const([0], np.int64)), g.const([0], np.int64))
                               for v in (x, mask, target)]) for i in range(4)]
        grad, loss = sum_of(g, [low(g, p[0]) for p in parts]), sum_of(g, [p[1] for p in parts])
    grad = g("Cast", grad, to=F32)
    divisor = g.const(4.0) if normalize == "own" else total
    g.output(g("Div", loss, divisor), [])
    g.output(g("Sub", weight, g("Mul", g("Div", grad, divisor), rate)), [5, 2])
    return g.model()


def statistics(recompute):
    """A running mean and variance by BatchNormalization, whose backward computes the forward again. `recompute`: none,
    twice (the second computation updates the statistics again), or apart (its statistics are left alone)."""
    g = Graph()
    x, w = g.input("a", [8, 3]), g.input("p0", [3], F32, 1.0)
    bias, mean, var = g.const(np.zeros(3)), g.input("u", [3], F32, 0.0), g.input("s", [3], F32, 1.0)
    y, new_mean, new_var = g("BatchNormalization", x, w, bias, mean, var, outputs=3, training_mode=1)
    again = y
    if recompute != "none":
        old = (new_mean, new_var) if recompute == "twice" else (mean, var)
        again, mean_2, var_2 = g("BatchNormalization", x, w, bias, *old, outputs=3, training_mode=1)
        if recompute == "twice":
            new_mean, new_var = mean_2, var_2
    g.output(g("ReduceSum", g("Mul", y, y), keepdims=0), [])
    gradient = g("ReduceSum", g("Mul", g("Mul", again, g.const(2.0)), y), g.const([0], np.int64), keepdims=0)
    g.output(g("Sub", w, g("Mul", gradient, g.const(0.01))), [3])
    g.output(g("Identity", new_mean), [3])
    g.output(g("Identity", new_var), [3])
    return g.model()
