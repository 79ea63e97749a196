"""Faults put into a step that recast-opt wrote: each function edits the model and gives the rules that may be reported
and the nodes of which one must stand in a chain. None where the step has no place for the fault."""
import json
import re

import numpy as np
import onnx
import plain_steps as plain
from onnx import TensorProto, helper
from step_rewrites import copy_of

# The operands that the results of an update replace.
OLD = {"adamw": (1, 3, 4, 11), "adam": (1, 3, 4, 11), "sgd": (1, 3), "adagrad": (1, 3), "rmsprop": (1, 3, 4, 5),
       "nadam": (1, 3, 4, 5), "radam": (1, 3, 4), "lion": (1, 3)}
PARAMETER_UPDATES = set(OLD)


class Step:
    """Where things are in a step of recast-opt before its functions are inlined."""

    def __init__(self, model):
        self.model, self.graph = model, model.graph
        self.by_type = {}
        for node in self.graph.node:
            self.by_type.setdefault((node.domain, node.op_type), []).append(node)
        self.unscale = self.one("unscale")
        self.clip = self.one("clip_grad_norm") or self.one("clip_grad_value")
        self.updates = [n for n in self.graph.node if n.domain == "recast" and n.op_type in PARAMETER_UPDATES]
        self.scale = self.unscale.input[-1] if self.unscale else None
        self.made = 0
        # fp8 gradients have their largest magnitudes checked, too.
        self.pairs = [(i, o) for i, o in zip(self.unscale.input[:-1], self.unscale.output[:-1])
                      if any(o in n.input for n in self.graph.node)] if self.unscale else []

    def one(self, op):
        found = self.by_type.get(("recast", op), [])
        return found[0] if len(found) == 1 else None

    def users(self, value):
        return [n for n in self.graph.node if value in n.input]

    def insert_before(self, node, *others):
        at = next(i for i, n in enumerate(self.graph.node) if n.name == node.name)
        for other in reversed(others):
            self.graph.node.insert(at, other)

    def insert_after(self, node, *others):
        at = next(i for i, n in enumerate(self.graph.node) if n.name == node.name)
        for other in reversed(others):
            self.graph.node.insert(at + 1, other)

    def node(self, op, inputs, output=None, **attributes):
        self.made += 1
        return helper.make_node(op, inputs, [output or f"fault.{self.made}"], name=f"fault#{self.made}", **attributes)

    def redirect(self, old, new, users):
        for user in users:
            user.input[:] = [new if v == old else v for v in user.input]

    def behind(self, value, op, other, users=None):
        """Puts `op(value, other)` between a value and its users."""
        users = self.users(value) if users is None else users
        node = self.node(op, [value, other])
        self.redirect(value, node.output[0], users)
        maker = next(n for n in self.graph.node if value in n.output)
        self.insert_after(maker, node)
        return node

    def constant(self, value, dtype):
        node = self.node("Constant", [], value=onnx.numpy_helper.from_array(np.asarray(value, dtype)))
        self.graph.node.insert(0, node)
        return node.output[0]


def pick(rng, items):
    return items[int(rng.integers(len(items)))] if items else None


def gradient_users(step, value):
    """Those that lead on to an update, not what only measures."""
    return [n for n in step.users(value) if n.op_type not in ("grad_norm", "grad_stats", "unscale")]


def keep_one_scaled(step, rng):
    if not step.unscale:
        return None
    scaled, unscaled = pick(rng, step.pairs)
    users = gradient_users(step, unscaled)
    step.redirect(unscaled, scaled, users)
    return {"missing-unscale", "clip-before-unscale"}, [u.name for u in users]


def keep_all_scaled(step, rng):
    if not step.unscale or step.scale not in {v.name for v in step.graph.input}:
        return None  # A constant that nothing divides by is a weight of the loss.
    users = []
    for scaled, unscaled in step.pairs:
        own = gradient_users(step, unscaled)
        users += [u.name for u in own]
        step.redirect(unscaled, scaled, own)
    return {"missing-unscale", "clip-before-unscale"}, users


def unscale_one_again(step, rng):
    if not step.unscale:
        return None
    _, unscaled = pick(rng, step.pairs)
    return {"double-unscale"}, [step.behind(unscaled, "Div", step.scale, gradient_users(step, unscaled)).name]


def unscale_all_again(step, rng):
    if not step.unscale:
        return None
    return {"double-unscale"}, [step.behind(o, "Div", step.scale, gradient_users(step, o)).name for _, o in step.pairs]


def clip_first(step, rng):
    if not step.unscale or not step.clip:
        return None
    scaled = {o: i for i, o in step.pairs}
    clipped = dict(zip(step.clip.input, step.clip.output))
    divided = []
    for i, value in enumerate(step.clip.input[:-1]):
        step.clip.input[i] = scaled[value]
    for value in scaled:
        node = step.node("Div", [clipped[value], step.scale])
        step.redirect(clipped[value], node.output[0], step.users(clipped[value]))
        divided.append(node)
    step.insert_after(step.clip, *divided)
    return {"clip-before-unscale"}, [step.clip.name]


def tested_by(step, rng, values, test, where):
    """A test of `values` in standard operators before `where`."""
    g = plain.Graph()
    g.fresh = lambda: f"test.{len(g.nodes)}.{len(g.initializers)}"
    found = plain.finite(g, values, test)
    for i, node in enumerate(g.nodes):
        node.name = f"test#{i}"
    step.graph.initializer.extend(g.initializers)
    step.insert_before(where, *g.nodes)
    return found


def first_user(step, value):
    return next(n for n in step.graph.node if value in n.input)


def replace_check(step, rng, values, test):
    found = step.unscale.output[-1]
    user = first_user(step, found)
    for node in step.graph.node:  # A name the graph hands out stays.
        node.output[:] = ["found.before" if v == found else v for v in node.output]
    new = tested_by(step, rng, values, test, user)
    identity = step.node("Identity", [new], found)
    step.insert_before(user, identity)
    return identity


def miss_one(step, rng):
    if not step.unscale:
        return None
    # Sums of a tensor that another test reads need no test of their own: only what products give.
    shapes = {v.name: len(v.type.tensor_type.shape.dim) for v in step.graph.input}
    pairs = [(i, o) for i, o in step.pairs
             if shapes.get(o.removeprefix("grad."), 0) > 1 and not re.search("emb|wte|wpe", o)]
    scaled, unscaled = pick(rng, pairs)
    others = [v for v in step.unscale.input[:-1] if v != scaled]
    replace_check(step, rng, others, pick(rng, plain.TESTS))
    return {"unchecked-gradient"}, [u.name for u in gradient_users(step, unscaled)]


def look_for_one_kind(step, rng):
    if not step.unscale:
        return None
    replace_check(step, rng, list(step.unscale.input[:-1]), pick(rng, ["is-nan", "is-inf"]))
    return {"unchecked-gradient"}, [n.name for n in step.updates]


def check_clipped_values(step, rng):
    """A bound hides infinities."""
    if not step.unscale or not step.clip or step.clip.op_type != "clip_grad_value":
        return None
    if len(step.pairs) != len(step.unscale.input) - 1:
        return None
    replace_check(step, rng, list(step.clip.output), pick(rng, ["both", "largest", "zero-product"]))
    return {"unchecked-gradient"}, [step.clip.name]


def forget_skip(step, rng, operators):
    users = [n for n in step.graph.node if n.domain == "recast" and n.op_type in operators]
    if not step.unscale or not users:
        return None
    node = pick(rng, users)
    node.input[0] = step.constant(False, np.bool_)
    return {"update-outside-skip"}, [node.name]


def update_anyway(step, rng):
    return forget_skip(step, rng, PARAMETER_UPDATES)


def moment_anyway(step, rng, outputs=slice(1, None)):
    """A moment, or another state of an update, by a second update, which nothing skips."""
    places = [(n, i) for n in step.updates for i in range(len(n.output))[outputs] if n.output[i]]
    if not step.unscale or not places:
        return None
    node, place = pick(rng, places)
    again = copy_of(node)
    again.name = "fault.again"
    again.input[0] = step.constant(False, np.bool_)
    again.output[:] = [v if i == place else f"fault.again.{i}" for i, v in enumerate(node.output)]
    node.output[place] = "fault.moment"
    step.insert_after(node, again)
    return {"update-outside-skip"}, [again.name]


def product_anyway(step, rng):
    """NAdam's product of momenta."""
    return moment_anyway(step, rng, slice(3, None)) if step.updates[0].op_type == "nadam" else None


def own_state(step, rng):
    """A number of its own that an update is multiplied by, and that decays: its name, and its new value."""
    node = pick(rng, step.updates)
    rate = "lr" if "lr" in node.input else None
    if not step.unscale or not rate:
        return None
    shape = pick(rng, [[], [1]])
    step.graph.input.append(helper.make_tensor_value_info("fault.decay", TensorProto.FLOAT, shape))
    step.graph.initializer.append(helper.make_tensor("fault.decay", TensorProto.FLOAT, shape, [1.0]))
    step.graph.output.append(helper.make_tensor_value_info("fault.decay.next", TensorProto.FLOAT, shape))
    decayed = step.node("Mul", ["fault.decay", step.constant(0.999, np.float32)])
    kind = next(v.type.tensor_type.elem_type for v in step.graph.input if v.name == rate)
    squeezed = step.node("Squeeze", [decayed.output[0]])
    scalar = step.node("Cast", [squeezed.output[0]], to=kind)
    faster = step.node("Mul", [rate, scalar.output[0]])
    step.redirect(rate, faster.output[0], [node])
    step.insert_before(node, decayed, squeezed, scalar, faster)
    for entry in step.model.metadata_props:
        if entry.key == "recast.state":
            entry.value = json.dumps({**json.loads(entry.value), "fault.decay": "fault.decay.next"})
    return decayed, node.input[0]


def decay_anyway(step, rng):
    """Any number that updates are computed from, and that moves in a step that is skipped."""
    made = own_state(step, rng)
    if not made:
        return None
    step.insert_after(made[0], step.node("Identity", [made[0].output[0]], "fault.decay.next"))
    return {"update-outside-skip"}, [made[0].name]


def count_anyway(step, rng):
    steps = [n for n in step.graph.node if n.op_type == "keep_if" and n.input[1] == "step"]
    if not step.unscale or not steps or step.updates[0].op_type not in ("adam", "adamw", "nadam", "radam"):
        return None  # The others do not correct the bias of their moments.
    steps[0].input[0] = step.constant(False, np.bool_)
    return {"update-outside-skip"}, [steps[0].name]


def average_anyway(step, rng):
    return forget_skip(step, rng, {"ema"})


def history_anyway(step, rng):
    return forget_skip(step, rng, {"update_amax"})


def skip_by_product(step, rng):
    """new · (1 - found) + old · found, which keeps NaN."""
    if not step.unscale:
        return None
    node = pick(rng, step.updates)
    index = next(i for i, v in enumerate(node.output) if v)
    skip, old, new = node.input[0], node.input[1], node.output[index]
    node.output[index] = "fault.new"
    node.input[0] = step.constant(False, np.bool_)
    mask = step.node("Cast", [skip], to=TensorProto.FLOAT)
    rest = step.node("Sub", [step.constant(1.0, np.float32), mask.output[0]])
    kept, changed = step.node("Mul", [old, mask.output[0]]), step.node("Mul", ["fault.new", rest.output[0]])
    total = step.node("Add", [kept.output[0], changed.output[0]], new)
    step.insert_after(node, mask, rest, kept, changed, total)
    return {"update-outside-skip"}, [node.name, changed.name, total.name]


def seeds_of(step):
    return [n for n in step.graph.node if n.op_type in ("Mul", "scale_loss") and step.scale in n.input]


def scale_twice(step, rng):
    if not step.unscale or not seeds_of(step):
        return None
    seed = pick(rng, seeds_of(step))
    return {"loss-scaled-twice"}, [step.behind(seed.output[0], "Mul", step.scale).name]


def scale_a_part(step, rng):
    """One summand of a gradient lost its scale."""
    if not step.unscale:
        return None
    sums = [n for n in step.graph.node if n.op_type in ("Add", "Sum") and n.name.startswith("grad/")]
    made = {v for n in step.graph.node for v in n.output}
    sums = [n for n in sums if all(v in made for v in n.input)]
    node = pick(rng, sums)
    if node is None:
        return None
    cast = step.node("CastLike", [step.scale, node.input[0]])
    step.insert_before(node, cast)
    divided = step.node("Div", [node.input[0], cast.output[0]])
    node.input[0] = divided.output[0]
    step.insert_before(node, divided)
    return {"missing-unscale", "double-unscale"}, [node.name, divided.name]


def unscale_by_new_scale(step, rng):
    update = step.one("update_loss_scale")
    if not step.unscale or not update or update.output[0] != f"{step.scale}.next":
        return None
    found = tested_by(step, rng, list(step.unscale.input[:-1]), "zero-product", step.unscale)
    moved = copy_of(update)
    moved.input[0] = found
    step.graph.node.remove(update)
    step.insert_before(step.unscale, moved)
    step.unscale.input[-1] = moved.output[0]
    return {"missing-unscale", "clip-before-unscale"}, [step.unscale.name]


def sum_in_low_precision(step, rng):
    loops = [n for n in step.graph.node if n.op_type == "Scan" and n.name == "micro_batches"]
    if not loops:
        return None
    loop = loops[0]
    body = next(a.g for a in loop.attribute if a.name == "body")
    low = pick(rng, [TensorProto.BFLOAT16, TensorProto.FLOAT16])
    i = int(rng.integers(len(loop.output) - 1))
    carried, result = body.input[i].name, body.output[i].name
    add = next(n for n in body.node if result in n.output)
    if add.op_type != "Add" or carried not in add.input:
        return None
    narrow = step.node("Cast", [next(v for v in add.input if v != carried)], to=low)
    add.input[:] = [v if v == carried else narrow.output[0] for v in add.input]
    body.node.insert(list(body.node).index(add), narrow)
    for value in (body.input[i], body.output[i]):
        value.type.tensor_type.elem_type = low
    before = step.node("Cast", [loop.input[i]], to=low)
    after = step.node("Cast", [f"{loop.output[i]}.low"], loop.output[i], to=TensorProto.FLOAT)
    loop.input[i], loop.output[i] = before.output[0], after.input[0]
    step.insert_after(loop, after)
    step.insert_before(loop, before)
    return {"low-precision-accumulator"}, [add.name]


def statistics_of_recompute(step, rng):
    """Running statistics from the node that computes the forward again."""
    barriers = {o for n in step.graph.node if n.op_type == "barrier" for o in n.output}
    if not barriers:
        return None
    behind = set(barriers)
    for node in step.graph.node:
        if behind & set(node.input):
            behind |= set(node.output)
    norms = [n for n in step.graph.node if n.op_type == "BatchNormalization"]
    again = [n for n in norms if n.input[0] in behind and len(n.output) > 1 or n.input[0] in behind]
    first = [n for n in norms if n.input[0] not in behind and len(n.output) > 2]
    for node in again:
        for other in first:
            if node.input[3:] == other.input[3:]:
                mean = other.output[1]
                other.output[1] = f"{mean}.first"
                node.output[:] = [node.output[0], mean, "fault.variance"]
                return {"statistics-in-recompute"}, [node.name]
    return None


FAULTS = [keep_one_scaled, keep_all_scaled, unscale_one_again, unscale_all_again, clip_first, miss_one,
          look_for_one_kind, check_clipped_values, update_anyway, moment_anyway, product_anyway, decay_anyway,
          count_anyway, average_anyway, history_anyway, skip_by_product, scale_twice, scale_a_part,
          unscale_by_new_scale, sum_in_low_precision, statistics_of_recompute]


# --- Other complete checks, which are no faults ---

def another_check(step, rng):
    if not step.unscale:
        return
    replace_check(step, rng, list(step.unscale.input[:-1]), pick(rng, plain.TESTS))


def check_unscaled(step, rng):
    if not step.unscale or len(step.pairs) != len(step.unscale.input) - 1:
        return
    replace_check(step, rng, [o for _, o in step.pairs], pick(rng, plain.TESTS))


def check_clipped_by_norm(step, rng):
    if not step.unscale or not step.clip or step.clip.op_type != "clip_grad_norm":
        return
    if len(step.pairs) != len(step.unscale.input) - 1:
        return
    replace_check(step, rng, list(step.clip.output[:-1]), pick(rng, plain.TESTS))


# --- Other guards, which are no faults either ---

def blend(step, c, on, off, rng, output):
    """c on + (1 - c) off for finite numbers, in one of its forms; `off` comes out to the bit in each where c is 0."""
    mask = step.node("Cast", [c], to=TensorProto.FLOAT)
    one = step.constant(1.0, np.float32)
    form = pick(rng, ["complement", "not", "where", "difference"])
    if form == "difference":
        difference = step.node("Sub", [on, off])
        moved = step.node("Mul", [difference.output[0], mask.output[0]])
        return [mask, difference, moved, step.node("Add", [off, moved.output[0]], output)]
    if form == "complement":
        rest = [step.node("Sub", [one, mask.output[0]])]
    elif form == "not":
        inverse = step.node("Not", [c])
        rest = [inverse, step.node("Cast", [inverse.output[0]], to=TensorProto.FLOAT)]
    else:
        rest = [step.node("Where", [c, step.constant(0.0, np.float32), one])]
    first, second = step.node("Mul", [mask.output[0], on]), step.node("Mul", [off, rest[-1].output[0]])
    return [mask, *rest, first, second, step.node("Add", [second.output[0], first.output[0]], output)]


def decay_by_product(step, rng):
    """A state of finite numbers that a product with the mask and its complement keeps."""
    made = own_state(step, rng)
    if not made:
        return
    decayed, skip = made
    apply = step.node("Not", [skip])
    step.insert_after(decayed, apply, *blend(step, apply.output[0], decayed.output[0], "fault.decay", rng,
                                             "fault.decay.next"))


def update_of_zeros(step, rng):
    """Gradients that are 0 in a step that is skipped, and an update kept by products: nothing there is NaN."""
    nodes = [n for n in step.updates if n.input[0]]
    if not step.unscale or not nodes:
        return
    node = pick(rng, nodes)
    olds = {i: node.input[OLD[node.op_type][i]] for i, value in enumerate(node.output) if value}
    skip, grad = node.input[0], node.input[2]
    zeroed = step.node("Where", [skip, step.constant(0.0, np.float32), grad])
    step.insert_before(node, zeroed)
    node.input[2] = zeroed.output[0]
    node.input[0] = step.constant(False, np.bool_)
    apply = step.node("Not", [skip])
    kept = [apply]
    for index, old in olds.items():
        value, node.output[index] = node.output[index], f"fault.new.{index}"
        kept += blend(step, apply.output[0], node.output[index], old, rng, value)
    step.insert_after(node, *kept)


HARMLESS = [another_check, check_unscaled, check_clipped_by_norm, decay_by_product, update_of_zeros]
