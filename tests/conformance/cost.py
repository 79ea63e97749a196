"""What recast-inspect says that a step costs: every operator is counted, and products as their shapes say.

The products of the forward graph are counted here a second time, from the shapes that onnxruntime's run gives; they
must be equal. Those of the step are at least twice as many (each needs the gradient of one operand at least) and at
most three times (of both). Times of nodes add up to the sum, to a nanosecond a node for rounding.
"""
import json
import math

import kit
import numpy as np
import onnx
import onnxruntime
from onnx import helper


def products(test, facts, tensors):
    """Operations of products and convolutions of one forward run, 2 a multiply-add."""
    model = onnx.load(str(test.model))
    nodes = [n for n in model.graph.node if n.op_type in ("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention")]
    wanted = sorted({name for n in nodes for name in [*n.input[:3], n.output[0]] if name})
    outputs = {o.name for o in model.graph.output}
    model.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in wanted if n not in outputs)
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = {i["name"]: tensors["in." + i["name"]][0].astype(np.float32 if i["elem"] == "float" else np.int64)
            for i in facts["inputs"]}
    shape = {name: value.shape for name, value in zip(wanted, session.run(wanted, feed))}
    total = 0
    for node in nodes:
        a, b, y = shape[node.input[0]], shape[node.input[1]], shape[node.output[0]]
        attributes = {x.name: helper.get_attribute_value(x) for x in node.attribute}
        if node.op_type == "MatMul":
            total += 2 * math.prod(y) * a[-1]
        elif node.op_type == "Gemm":
            total += 2 * math.prod(y) * a[0 if attributes.get("transA") else 1]
        elif node.op_type == "Conv":
            total += 2 * math.prod(y) * math.prod(b[1:])
        elif node.op_type == "ConvTranspose":
            total += 2 * math.prod(a) * math.prod(b[1:])
        else:
            return None  # A softmax is in there, too.
    return total


def dims(facts, tensors):
    shapes = {i["name"]: tensors["in." + i["name"]].shape[1:] for i in facts["inputs"]}
    return sorted({f"--dim={symbol}={size}" for i in facts["inputs"]
                   for symbol, size in zip(i["shape"], shapes[i["name"]]) if isinstance(symbol, str)})


def cost(test, model, *flags):
    return json.loads(test.tool("recast-inspect", model, "--cost", "--json=-", *flags).stdout)


def computed(facts):
    return sum(facts["classes"].get(name, {"flops": 0})["flops"] for name in ("product", "convolution"))


def main():
    test = kit.Test(__doc__, "MODEL")
    facts, tensors = kit.reference(test)
    sizes = dims(facts, tensors)
    if sizes:
        open_ = cost(test, test.model)
        test.check("total" not in open_ and sorted(f"--dim={s}=" for s in open_["open"]) ==
                   sorted(s[:s.rindex("=") + 1] for s in sizes), f"without sizes, they are asked for: {open_['open']}")
    forward, want = cost(test, test.model, *sizes), products(test, facts, tensors)
    if want is not None:
        test.check(computed(forward) == want > 0,
                   f"forward: {computed(forward)} operations in products, {want} expected")
    step = test.temp / "step.onnx"
    test.tool("recast-opt", test.model, *kit.ADAMW, *sizes, "-o", step)
    whole = cost(test, step)
    test.check(not whole["unknown"] and not whole["uncounted"],
               f"every operator of the step is counted: {whole['unknown'][:3] + whole['uncounted'][:3]}")
    ratio = computed(whole) / max(computed(forward), 1)
    test.check(2 <= ratio <= 3, f"products of the step are {ratio:.3f} times those of the forward graph")
    phases, nodes = whole["phases"], whole["nodes"]
    test.check(set(phases) == {"forward", "backward", "update"} and
               sum(p["flops"] for p in phases.values()) == whole["total"]["flops"], f"phases add up: {phases}")
    test.check(abs(sum(n.get("ns", 0) for n in nodes) - whole["total"]["ns"]) <= len(nodes), "nodes add up")
    test.finish()


if __name__ == "__main__":
    main()
