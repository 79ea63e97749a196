"""Other ways to write the same training step: each function rewrites an ONNX model into one that computes the same.

What replaces a node keeps its name, so that a node can be found again.
"""
import json
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import AttributeProto, TensorProto, helper, numpy_helper

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
MOVES = {"Identity", "Cast", "CastLike", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
COMMUTATIVE = {"Add", "Mul", "And", "Or", "Xor", "Min", "Max", "Sum", "Equal"}


def bodies(holder):
    """`holder` (a graph or function) and every graph inside."""
    yield holder
    for node in holder.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from bodies(attribute.g)


def all_bodies(model):
    for holder in (model.graph, *model.functions):
        yield from bodies(holder)


def attribute(node, name, default=None):
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


class Writer:
    """A model being rewritten: its types, and names that it does not have yet."""

    def __init__(self, model, rng):
        self.model, self.rng = model, rng
        self.names = {v for body in all_bodies(model) for v in names_in(body)}
        self.types, self.shapes = {}, {}
        for body in bodies(onnx.shape_inference.infer_shapes(model).graph):
            for value in (*body.value_info, *body.input, *body.output):
                kind = value.type.tensor_type
                self.types[value.name] = kind.elem_type
                if kind.HasField("shape"):
                    self.shapes[value.name] = [d.dim_value or d.dim_param for d in kind.shape.dim]
            for tensor in body.initializer:
                self.types[tensor.name] = tensor.data_type

    def fresh(self, stem="v"):
        name = stem
        while name in self.names:
            name = f"{stem}_{int(self.rng.integers(1 << 30))}"
        self.names.add(name)
        return name

    def is_float(self, value):
        return self.types.get(value) in FLOATS

    def replace(self, rule, chance=0.5):
        """`rule(node)` gives the nodes that stand in for a node, or None."""
        for holder in (self.model.graph, *self.model.functions):
            if holder is not self.model.graph:  # Values of functions have no types.
                self.types, self.shapes = {}, {}
            for body in bodies(holder):
                nodes = []
                for node in list(body.node):
                    others = rule(node) if self.rng.random() < chance else None
                    nodes.extend([node] if others is None else others)
                copies = [copy_of(n) for n in nodes]
                del body.node[:]
                body.node.extend(copies)

    def __call__(self, op, inputs, output=None, name="", **attributes):
        return helper.make_node(op, inputs, [output or self.fresh()], name=name or self.fresh("n"), **attributes)


def copy_of(proto):
    copy = type(proto)()
    copy.CopyFrom(proto)
    return copy


def names_in(body):
    for node in body.node:
        yield node.name
        yield from node.input
        yield from node.output
    for value in (*body.input, *body.output, *getattr(body, "initializer", [])):
        yield value if isinstance(value, str) else value.name


def name_nodes(model):
    """Gives every node of the graph and its bodies a name of its own."""
    used = set()
    for body in bodies(model.graph):
        for node in body.node:
            if not node.name or node.name in used:
                node.name = f"{node.name or node.op_type}#{len(used)}"
            used.add(node.name)


def rename(body, values, nodes=None):
    """Renames values, and nodes, in place, by functions of the old names."""
    for graph in bodies(body):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = values(value.name)
        for node in graph.node:
            node.name = nodes(node.name) if nodes else node.name
            for names in (node.input, node.output):
                names[:] = [values(n) if n else n for n in names]


def inline(model, rng):
    """Calls in place of functions; the nodes of a call have its name before theirs."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}

    def expand(body):
        nodes = []
        for node in list(body.node):
            for a in node.attribute:
                if a.type == AttributeProto.GRAPH:
                    expand(a.g)
            function = functions.get((node.domain, node.op_type, node.overload))
            if not function:
                nodes.append(node)
                continue
            inside = helper.make_graph([copy_of(n) for n in function.node], "call", [], [])
            given = dict(zip(function.input, [*node.input, *[""] * len(function.input)]))
            given.update({k: v for k, v in zip(function.output, node.output) if v})
            rename(inside, lambda v: given.get(v, f"{node.name}/{v}"),
                   lambda n: f"{node.name}/{n}#{int(rng.integers(1 << 40))}")
            expand(inside)
            nodes.extend(inside.node)
        copies = [copy_of(n) for n in nodes]
        del body.node[:]
        body.node.extend(copies)

    expand(model.graph)
    del model.functions[:]


def new_names(model, rng):
    """Values are called by numbers; the metadata says which is which."""
    numbers = {}
    rename(model.graph, lambda v: numbers.setdefault(v, f"v{len(numbers)}"))
    for entry in model.metadata_props:
        if entry.key == "recast.state":
            pairs = json.loads(entry.value)
            entry.value = json.dumps({numbers[k]: numbers[v] for k, v in pairs.items()})
        elif entry.key == "recast.parameters":
            entry.value = json.dumps([numbers[v] for v in json.loads(entry.value)])
        elif entry.key == "recast.loss":
            entry.value = numbers[entry.value]


def no_names(model, rng):
    """The same, and nothing says which is which."""
    new_names(model, rng)
    del model.metadata_props[:]


def shuffle(model, rng):
    """Another order of nodes, operands before their users."""
    for body in all_bodies(model):
        made = {o for n in body.node for o in n.output}
        needs = [{v for b in [node] for v in read_by(b)} & made for node in body.node]
        done, order, open_ = set(), [], list(range(len(needs)))
        while open_:
            ready = [i for i in open_ if needs[i] <= done]
            chosen = [i for i in ready if rng.random() < 0.5] or ready[:1]
            order += [int(i) for i in rng.permutation(chosen)]
            done |= {o for i in chosen for o in body.node[i].output}
            taken = set(chosen)
            open_ = [i for i in open_ if i not in taken]
        nodes = [copy_of(body.node[i]) for i in order]
        del body.node[:]
        body.node.extend(nodes)


def read_by(node):
    yield from node.input
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            for inner in a.g.node:
                yield from read_by(inner)
            yield from (o.name for o in a.g.output)


def insert_moves(model, rng):
    """Operators that change nothing behind some operators."""
    w = Writer(model, rng)

    def rule(node):
        if node.op_type == "Constant" or len(node.output) != 1:
            return None
        old, new = node.output[0], w.fresh()
        node.output[0] = new
        kind = int(rng.integers(4))
        if kind == 1 and old in w.types and w.types[old]:
            return [node, w("Cast", [new], old, to=w.types[old])]
        if kind == 2:
            shape = w("Shape", [new])
            return [node, shape, w("Reshape", [new, shape.output[0]], old)]
        if kind == 3 and old in w.types:
            axes = w("Constant", [], value=numpy_helper.from_array(np.array([0], np.int64)))
            wide = w("Unsqueeze", [new, axes.output[0]])
            return [node, axes, wide, w("Squeeze", [wide.output[0], axes.output[0]], old)]
        return [node, w("Identity", [new], old)]

    w.replace(rule, 0.3)


def swap_operands(model, rng):
    """Operands of commutative operators in another order."""
    def rule(node):
        if node.domain or node.op_type not in COMMUTATIVE:
            return None
        node.input[:] = [node.input[int(i)] for i in rng.permutation(len(node.input))]
        return [node]

    Writer(model, rng).replace(rule)


def rewrite_quotients(model, rng):
    """a / b as a · (1 / b), and back."""
    w = Writer(model, rng)
    inverse = {n.output[0]: n.input[0] for body in all_bodies(model) for n in body.node if n.op_type == "Reciprocal"}

    def rule(node):
        if node.op_type == "Div" and w.is_float(node.output[0]):
            if w.rng.random() < 0.5:
                part = w("Reciprocal", [node.input[1]])
                return [part, w("Mul", [node.input[0], part.output[0]], node.output[0], node.name)]
            part = w("Pow", [node.input[1], minus_one(w, node.input[1])])
            return [part, w("Mul", [part.output[0], node.input[0]], node.output[0], node.name)]
        if node.op_type == "Mul":
            for i in (0, 1):
                if node.input[i] in inverse and node.input[1 - i] not in inverse:
                    return [w("Div", [node.input[1 - i], inverse[node.input[i]]], node.output[0], node.name)]
        return None

    w.replace(rule)


def minus_one(w, like):
    name = w.fresh()
    tensor = helper.make_tensor(name, TensorProto.FLOAT, [], [-1.0])
    w.model.graph.initializer.append(tensor)
    return name


def rewrite_squares(model, rng):
    """Sums of squares by Mul and ReduceSum, by Pow, or by ReduceL2."""
    w = Writer(model, rng)

    def rule(node):
        if node.op_type != "ReduceSumSquare" or attribute(node, "axes"):
            return None
        x, rest = node.input[0], list(node.input[1:])
        keep = {"keepdims": attribute(node, "keepdims", 1)}
        kind = int(rng.integers(3))
        if kind == 0:
            square = w("Mul", [x, x])
            return [square, w("ReduceSum", [square.output[0], *rest], node.output[0], node.name, **keep)]
        norm = w("ReduceL2", [x, *rest], **keep)
        if kind == 1:
            return [norm, w("Mul", [norm.output[0], norm.output[0]], node.output[0], node.name)]
        two = w("Constant", [], value=helper.make_tensor("two", TensorProto.FLOAT, [], [2.0]))
        square = w("Pow", [x, two.output[0]])
        return [two, square, w("ReduceSum", [square.output[0], *rest], node.output[0], node.name, **keep)]

    w.replace(rule)


def split_sums(model, rng):
    """Sum as additions, and the reverse; subtraction as the addition of a negative."""
    w = Writer(model, rng)

    def rule(node):
        if node.op_type == "Sum" and len(node.input) > 1:
            nodes, total = [], node.input[0]
            for value in node.input[1:-1]:
                nodes.append(w("Add", [total, value]))
                total = nodes[-1].output[0]
            return [*nodes, w("Add", [total, node.input[-1]], node.output[0], node.name)]
        if node.op_type == "Add" and w.is_float(node.output[0]):
            return [w("Sum", list(node.input), node.output[0], node.name)]
        if node.op_type == "Sub" and w.is_float(node.output[0]):
            negative = w("Neg", [node.input[1]])
            return [negative, w("Add", [node.input[0], negative.output[0]], node.output[0], node.name)]
        return None

    w.replace(rule)


def rewrite_choices(model, rng):
    """Where by the opposite condition, or by If where the condition is one boolean."""
    w = Writer(model, rng)

    def rule(node):
        if node.op_type != "Where" or node.domain:
            return None
        c, a, b = node.input
        result = node.output[0]
        if w.shapes.get(c) == [] and all(w.shapes.get(v) == w.shapes.get(result, 0) for v in (a, b)) and \
                rng.random() < 0.5:
            branches = {}
            for branch, value in (("then_branch", a), ("else_branch", b)):
                out = w.fresh()
                branches[branch] = helper.make_graph(
                    [w("Identity", [value], out)], branch, [],
                    [helper.make_tensor_value_info(out, w.types[result], w.shapes[result])])
            return [helper.make_node("If", [c], [result], name=node.name, **branches)]
        inverse = w("Not", [c])
        return [inverse, w("Where", [inverse.output[0], b, a], result, node.name)]

    w.replace(rule)


def mask_by_products(model, rng):
    """Where(c, x, 0) by a product with the condition, but for choices that a test of gradients decides."""
    w = Writer(model, rng)
    zeros = {t.name for t in model.graph.initializer if not numpy_helper.to_array(t).any()}
    for n in model.graph.node:
        if n.op_type == "Constant" and attribute(n, "value") and not numpy_helper.to_array(attribute(n, "value")).any():
            zeros.add(n.output[0])
    direct = {n.output[0]: n for n in model.graph.node}

    def rule(node):
        if node.op_type != "Where" or node.input[2] not in zeros or not w.is_float(node.output[0]):
            return None
        compare = direct.get(node.input[0])
        if compare is None or compare.op_type != "Greater":
            return None
        mask = w("Cast", [node.input[0]], to=w.types[node.output[0]])
        return [mask, w("Mul", [node.input[1], mask.output[0]], node.output[0], node.name)]

    w.replace(rule)


def choose_by_products(model, rng):
    """Where(c, a, b) as c a + (1 - c) b, but for the choices that keep a state, or 0: gradients may be NaN there.

    Elsewhere a step whose numbers are finite gives the same ones, and in the others no infinity gets lost."""
    w = Writer(model, rng)
    values = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in tensors_of(model)}
    special = {name for name, value in values.items() if not np.isfinite(value).all() or not value.any()}
    makers = {o: n for body in all_bodies(model) for n in body.node for o in n.output}
    given = {v if isinstance(v, str) else v.name for body in all_bodies(model) for v in body.input}
    given |= {t.name for t in model.graph.initializer if np.prod(t.dims) > 1}

    def is_state(value):
        while value not in given and value in makers and makers[value].op_type in MOVES:
            value = makers[value].input[0]
        return value in given

    def rule(node):
        if node.op_type != "Where" or node.domain or any(is_state(v) or v in special for v in node.input[1:]):
            return None
        if w.types.get(node.output[0]) != TensorProto.FLOAT:
            return None
        c, a, b = node.input
        mask = w("Cast", [c], to=TensorProto.FLOAT)
        if rng.random() < 0.5:
            inverse = w("Not", [c])
            rest = [inverse, w("Cast", [inverse.output[0]], to=TensorProto.FLOAT)]
        else:
            one = w("Constant", [], value=helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]))
            rest = [one, w("Sub", [one.output[0], mask.output[0]])]
        on, off = w("Mul", [mask.output[0], a]), w("Mul", [b, rest[-1].output[0]])
        return [mask, *rest, on, off, w("Add", [on.output[0], off.output[0]], node.output[0], node.name)]

    w.replace(rule, 0.7)


def tensors_of(model):
    """Initializers, and Constants under their outputs' names."""
    yield from model.graph.initializer
    for body in all_bodies(model):
        for node in body.node:
            value = attribute(node, "value")
            if node.op_type == "Constant" and isinstance(value, TensorProto) and value.data_type in FLOATS:
                tensor = copy_of(value)
                tensor.name = node.output[0]
                yield tensor


def move_constants(model, rng):
    """Constants as initializers, and initializers that are no state as constants."""
    inputs = {v.name for v in model.graph.input}
    outputs = {v.name for v in model.graph.output}
    state = {k for e in model.metadata_props if e.key == "recast.state" for k in json.loads(e.value)}
    nodes, tensors = [], []
    for node in model.graph.node:
        value = attribute(node, "value")
        if node.op_type == "Constant" and isinstance(value, TensorProto) and node.output[0] not in outputs:
            tensor = copy_of(value)
            tensor.name = node.output[0]
            tensors.append(tensor)
        else:
            nodes.append(copy_of(node))
    constants = []
    for tensor in model.graph.initializer:
        small = int(np.prod(tensor.dims)) <= 1
        if tensor.name in inputs or tensor.name in state or not small or rng.random() < 0.5:
            tensors.append(copy_of(tensor))
        else:
            constants.append(helper.make_node("Constant", [], [tensor.name], name=f"constant {tensor.name}",
                                              value=tensor))
    del model.graph.node[:]
    del model.graph.initializer[:]
    model.graph.node.extend([*constants, *nodes])
    model.graph.initializer.extend(tensors)


def wrap(model, rng):
    """A stretch of the graph as a local function."""
    nodes = list(model.graph.node)
    plain = [not any(a.type == AttributeProto.GRAPH for a in n.attribute) for n in nodes]
    start = int(rng.integers(len(nodes)))
    end = start
    while end < len(nodes) and plain[end] and end - start < 40:
        end += 1
    if end - start < 2:
        return
    inside = nodes[start:end]
    made = {o for n in inside for o in n.output if o}
    reads = list(dict.fromkeys(v for n in inside for v in n.input if v and v not in made))
    used = {v for n in (*nodes[:start], *nodes[end:]) for v in read_by(n)} | {o.name for o in model.graph.output}
    gives = [o for n in inside for o in n.output if o in used]
    if not reads or not gives:
        return
    opsets = list(model.opset_import)
    function = helper.make_function("wrapped", "part", reads, gives, [copy_of(n) for n in inside], opsets)
    call = helper.make_node("part", reads, gives, name=f"wrap#{start}", domain="wrapped")
    others = [*(copy_of(n) for n in nodes[:start]), call, *(copy_of(n) for n in nodes[end:])]
    del model.graph.node[:]
    model.graph.node.extend(others)
    model.functions.append(function)
    if "wrapped" not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid("wrapped", 1))


def optimize(model, rng):
    """What onnxruntime writes after its basic optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # Types that onnxruntime has no kernel for.
            return
        metadata = [(e.key, e.value) for e in model.metadata_props]
        model.CopyFrom(onnx.load(options.optimized_model_filepath))
        del model.metadata_props[:]
        helper.set_model_props(model, dict(metadata))


REWRITES = [inline, new_names, no_names, shuffle, insert_moves, swap_operands, rewrite_quotients, rewrite_squares,
            split_sums, rewrite_choices, mask_by_products, choose_by_products, move_constants, wrap, optimize]
