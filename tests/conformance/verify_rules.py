"""Every rule of recast-inspect --verify on steps written by hand in standard operators: whole ones verify clean, and
each broken one is reported under its rule, with the nodes that lead to it.

What is expected comes from how each graph was built (plain_steps.py), not from the tool.
"""
import json

import kit
import onnx
import plain_steps as plain
from plain_steps import BF16, F16

ALL = ("w1", "b1", "w2", "b2")
FEW = ("w1", "b1", "w2")

CLEAN = {
    "dynamic scale, norm clip, Adam": lambda: plain.step(),
    "SGD": lambda: plain.step(optimizer="sgd"),
    "clip by value": lambda: plain.step(clip_how="value"),
    "check after the clip by norm": lambda: plain.step(check_clipped=True, test="both"),
    "clip by Where": lambda: plain.step(clip_how="where"),
    "no clip, weight decay": lambda: plain.step(clip_how=None, weight_decay=True),
    "If skips": lambda: plain.step(skip="if"),
    "IsNaN or IsInf": lambda: plain.step(test="both"),
    "bound of the type": lambda: plain.step(test="largest"),
    "constant scale": lambda: plain.step(scale="constant"),
    "scale that nothing updates": lambda: plain.step(dynamic=False),
    "scale without a scaled loss": lambda: plain.step(dynamic=False, scaled_seed_only=True, optimizer="sgd"),
    "unscale by the reciprocal": lambda: plain.step(unscale_by="reciprocal"),
    "unscale by 1 / scale": lambda: plain.step(unscale_by="quotient", optimizer="sgd"),
    "state in initializers": lambda: plain.as_initializers(plain.step()),
    "state without defaults": lambda: plain.without_defaults(plain.step()),
    "state without defaults, SGD": lambda: plain.without_defaults(plain.step(optimizer="sgd")),
    "no scale, check and skip": lambda: plain.step(scale=None),
    "no scale, no check": lambda: plain.step(scale=None, check=()),
    "a scale chosen by products": lambda: plain.step(dynamic="product"),
    "a factor that decays": lambda: plain.step(decay="where"),
    "a factor that decays, kept by products": lambda: plain.step(decay="product", optimizer="sgd"),
    "scan, one count": lambda: plain.micro_batches(),
    "scan, weighted": lambda: plain.micro_batches("weighted"),
    "loop, one count": lambda: plain.micro_batches(form="loop"),
    "loop, weighted": lambda: plain.micro_batches("weighted", form="loop"),
    "unrolled, one count": lambda: plain.micro_batches(form="unrolled"),
    "unrolled, weighted": lambda: plain.micro_batches("weighted", form="unrolled"),
    "statistics": lambda: plain.statistics("none"),
    "statistics, recompute apart": lambda: plain.statistics("apart"),
}

# name -> (rule, graph, operators that the chain must pass, in this order)
BROKEN = {
    "clip by norm first": ("clip-before-unscale", lambda: plain.step(clip_first=True),
                           ["Mul", "ReduceSumSquare", "Min", "Mul"]),
    "clip by Where first": ("clip-before-unscale", lambda: plain.step(clip_first=True, clip_how="where"),
                            ["Mul", "Greater"]),
    "clip by value first": ("clip-before-unscale", lambda: plain.step(clip_first=True, clip_how="value"),
                            ["Mul", "Clip", "Div"]),
    "clip by value first, constant scale": (
        "clip-before-unscale", lambda: plain.step(clip_first=True, clip_how="value", scale="constant"),
        ["Mul", "Clip", "Div"]),
    "a gradient unchecked": ("unchecked-gradient", lambda: plain.step(check=FEW), ["Sub", "ReduceSum", "Where"]),
    "a gradient unchecked, no scale": ("unchecked-gradient", lambda: plain.step(check=FEW, scale=None),
                                       ["Sub", "ReduceSum", "Where"]),
    "NaN only": ("unchecked-gradient", lambda: plain.step(test="is-nan"), ["MatMul"]),
    "infinities only": ("unchecked-gradient", lambda: plain.step(test="is-inf"), ["MatMul"]),
    "check after the clip by value": ("unchecked-gradient",
                                      lambda: plain.step(check_clipped=True, clip_how="value", test="both"),
                                      ["MatMul", "Clip"]),
    "scaled, no check": ("unchecked-gradient", lambda: plain.step(check=()), ["MatMul"]),
    "an update outside": ("update-outside-skip", lambda: plain.step(skipped=FEW), ["Sub"]),
    "an update outside, no scale": ("update-outside-skip", lambda: plain.step(skipped=FEW, scale=None), ["Sub"]),
    "skip by a product": ("update-outside-skip", lambda: plain.step(skip="product"), ["Mul", "Add"]),
    "a factor decays in a skipped step": ("update-outside-skip", lambda: plain.step(decay="moved"),
                                          ["Mul", "Identity"]),
    "unscale missing": ("missing-unscale", lambda: plain.step(unscale=0, clip_how=None), ["Mul", "MatMul"]),
    "unscale missing, SGD": ("missing-unscale", lambda: plain.step(unscale=0, clip_how=None, optimizer="sgd"),
                             ["Mul", "MatMul", "Sub"]),
    "decay before unscale": ("missing-unscale",
                             lambda: plain.step(unscale=0, clip_how=None, weight_decay=True, optimizer="sgd"),
                             ["Mul", "MatMul", "Add"]),
    "unscale twice": ("double-unscale", lambda: plain.step(unscale=2), ["Div", "Div"]),
    "unscale twice, constant scale": ("double-unscale", lambda: plain.step(unscale=2, scale="constant"),
                                      ["Div", "Div"]),
    "unscale twice by the reciprocal": ("double-unscale", lambda: plain.step(unscale=2, unscale_by="reciprocal"),
                                        ["Mul", "Mul"]),
    "unscale missing, state in initializers": (
        "missing-unscale", lambda: plain.as_initializers(plain.step(unscale=0, clip_how=None)), ["Mul", "MatMul"]),
    "clip first, state without defaults": (
        "clip-before-unscale", lambda: plain.without_defaults(plain.step(clip_first=True)), ["Min", "Mul"]),
    "scale twice": ("loss-scaled-twice", lambda: plain.step(scale_loss=2), ["Mul", "Mul"]),
    "scale twice, unscale twice": ("loss-scaled-twice", lambda: plain.step(scale_loss=2, unscale=2), ["Mul", "Mul"]),
    "statistics twice": ("statistics-in-recompute", lambda: plain.statistics("twice"),
                         ["BatchNormalization", "BatchNormalization"]),
    "scan, own counts": ("mean-of-means", lambda: plain.micro_batches("own"), ["ReduceSum", "Div", "Add"]),
    "loop, own counts": ("mean-of-means", lambda: plain.micro_batches("own", form="loop"),
                         ["ReduceSum", "Div", "Add"]),
    "unrolled, own counts": ("mean-of-means", lambda: plain.micro_batches("own", form="unrolled"),
                             ["ReduceSum", "Div", "Add"]),
    "scan, bf16 sums": ("low-precision-accumulator", lambda: plain.micro_batches(accumulator=BF16), ["Add"]),
    "loop, f16 sums": ("low-precision-accumulator", lambda: plain.micro_batches(accumulator=F16, form="loop"),
                       ["Add"]),
    "unrolled, bf16 sums": ("low-precision-accumulator",
                            lambda: plain.micro_batches(accumulator=BF16, form="unrolled"), ["Add"]),
    "bf16 weights": ("low-precision-accumulator", lambda: plain.step(scale=None, master=BF16), ["Sub"]),
    "f16 weights": ("low-precision-accumulator", lambda: plain.step(master=F16, optimizer="sgd"), ["Sub"]),
    "bf16 moments": ("low-precision-accumulator", lambda: plain.step(scale=None, moments=BF16), []),
}


def follows(chain, operators):
    """Whether the operators stand in the chain, in this order."""
    at = 0
    for link in chain:
        if at < len(operators) and f"({operators[at]})" in link:
            at += 1
    return at == len(operators)


def verify(test, model, facts):
    path = test.temp / "step.onnx"
    facts.unlink(missing_ok=True)
    onnx.save(model, path)
    done = test.tool("recast-inspect", path, "--verify", f"--json={facts}", ok=False)
    return done, json.loads(facts.read_text()) if facts.exists() else {}


def own_step(test):
    """A step that recast-opt wrote, its nodes by operator: (model, unscale, clip, updates)."""
    path = test.temp / "own.onnx"
    test.tool("recast-opt", test.corpus / "dynamics" / "loss_scale" / "model.onnx", "--precision=f16",
              "--clip-grad-norm=1", "-o", path)
    model = onnx.load(path)
    nodes = {}
    for node in model.graph.node:
        nodes.setdefault(node.op_type, []).append(node)
    return model, nodes["unscale"][0], nodes["clip_grad_norm"][0], nodes["adamw"]


def move_before(graph, node, other):
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    graph.node.remove(node)
    graph.node.insert(list(graph.node).index(other), copy)


def clip_scaled(model, unscale, clip, updates):
    scaled, clipped = list(unscale.input[:-1]), list(clip.output[:-1])
    unscaled = list(unscale.output[:-1])
    clip.input[:len(scaled)] = scaled
    unscale.input[:len(scaled)] = clipped
    for update in updates:
        update.input[2] = unscaled[clipped.index(update.input[2])]
    move_before(model.graph, clip, unscale)


def update_by_scaled(model, unscale, clip, updates):
    updates[0].input[2] = unscale.input[list(clip.output).index(updates[0].input[2])]


def divide_again(model, unscale, clip, updates):
    node = onnx.helper.make_node("Div", [clip.input[0], unscale.input[-1]], ["divided again"], name="again")
    model.graph.node.insert(list(model.graph.node).index(clip), node)
    clip.input[0] = "divided again"


def never_skip(model, unscale, clip, updates):
    model.graph.initializer.append(onnx.helper.make_tensor("never", onnx.TensorProto.BOOL, [], [False]))
    updates[0].input[0] = "never"


EDITS = {
    "our own step, clip put before unscale": ("clip-before-unscale", clip_scaled, ["recast::clip_grad_norm"]),
    "our own step, one update by a scaled gradient": ("missing-unscale", update_by_scaled, ["recast::adamw"]),
    "our own step, one gradient divided again": ("double-unscale", divide_again, ["recast::unscale", "Div"]),
    "our own step, one update that nothing skips": ("update-outside-skip", never_skip, ["recast::adamw"]),
}


def check_own(test, facts):
    for name, (rule, edit, operators) in EDITS.items():
        model, *nodes = own_step(test)
        edit(model, *nodes)
        done, found = verify(test, model, facts)
        rules = {f["rule"] for f in found.get("findings", [])}
        test.check(done.returncode == 1 and rules == {rule}, f"{name}: reported as {rule} alone"
                   + ("" if rules == {rule} else f", but got {sorted(rules)} {done.stderr[:300]}"))
        chains = [f["chain"] for f in found.get("findings", [])]
        test.check(any(follows(chain, operators) for chain in chains),
                   f"{name}: the chain passes {', '.join(operators)}"
                   + ("" if any(follows(c, operators) for c in chains) else f", but is {chains}"))
    # A mean of means on request: recast-opt warns and writes it, and the rule sees it.
    path = test.temp / "means.onnx"
    for normalize, rules in (("tokens", set()), ("micro-batches", {"mean-of-means"})):
        test.tool("recast-opt", test.corpus / "dynamics" / "accumulation" / "model.onnx", "--accumulate=4",
                  f"--normalize={normalize}", "-o", path)
        done, found = verify(test, onnx.load(path), facts)
        got = {f["rule"] for f in found.get("findings", [])}
        test.check(got == rules, f"--normalize={normalize}: {sorted(rules) or 'clean'}"
                   + ("" if got == rules else f", but got {sorted(got)}"))


def main():
    test = kit.Test(__doc__)
    facts = test.temp / "facts.json"
    for name, build in CLEAN.items():
        model = build()
        done, found = verify(test, model, facts)
        params = sorted(name for name in (v.name for v in (*model.graph.input, *model.graph.initializer))
                        if name[0] == "p")
        test.check(sorted(found.get("parameters", [])) == sorted(set(params)), f"{name}: the parameters are found"
                   + ("" if found.get("parameters") else ", but got none"))
        test.check(done.returncode == 0 and not found["findings"], f"{name}: clean" + (
            "" if done.returncode == 0 else f", but exit status {done.returncode}: {done.stderr[:300]}"))
    for name, (rule, build, operators) in BROKEN.items():
        done, found = verify(test, build(), facts)
        rules = {f["rule"] for f in found.get("findings", [])}
        chains = [f["chain"] for f in found.get("findings", []) if f["rule"] == rule]
        test.check(done.returncode == 1 and rules == {rule}, f"{name}: reported as {rule} alone"
                   + ("" if rules == {rule} else f", but got {sorted(rules)}"))
        test.check(any(follows(chain, operators) for chain in chains),
                   f"{name}: the chain passes {', '.join(operators)}"
                   + ("" if any(follows(c, operators) for c in chains) else f", but is {chains}"))
        test.check(rule in done.stderr, f"{name}: the diagnostic names the rule")
    check_own(test, facts)
    test.finish()


if __name__ == "__main__":
    main()
