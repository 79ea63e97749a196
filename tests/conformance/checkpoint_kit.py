"""What the scripts about recomputation share."""
import json
import re
from collections import Counter

import kit

ARENA = re.compile(r"arena: (\d+) bytes planned, (\d+) bytes used")


def arena_of(done):
    """(planned, used) as --explain says."""
    found = ARENA.search(done.stdout + done.stderr)
    return tuple(map(int, found.groups())) if found else (0, -1)


def batch_dims(test):
    """--dim flags that give the symbols of a torch model's inputs the sizes of its reference batch."""
    model, sizes = kit.load_model(test.model), {}
    for value in model.graph.input:
        data = test.want.get(f"in.{value.name}")
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if data is not None and dim.dim_param:
                sizes[dim.dim_param] = data.shape[axis + 1]
    return [f"--dim={name}={size}" for name, size in sizes.items()]


def rewrite(test, name, *flags, ok=True, model=None):
    """(step file, the finished process)."""
    step = test.temp / f"{name}.onnx"
    return step, test.tool("recast-opt", model or test.model, *flags, "-o", step, ok=ok)


def recomputed(model):
    """How often each operator runs again, bodies of Scans included."""
    return Counter(n.op_type for n in kit.walk_nodes(model.graph)
                   if n.op_type != "barrier" and any(".recompute" in o for o in n.output))


def report_of(path):
    """The facts of insert-recomputation in a --report."""
    passes = json.loads(path.read_text())["passes"]
    return next(p for p in passes if p["pass"] == "insert-recomputation")
