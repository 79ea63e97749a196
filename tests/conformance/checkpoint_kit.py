"""What the scripts about recomputation share."""
import json
import re
from collections import Counter

import kit
import onnx
import onnxruntime

STEPS = 2
RELATIVE = 1e-5  # as in ort_agreement.py
ARENA = re.compile(r"arena: (\d+) bytes planned, (\d+) bytes used")
HOST = re.compile(r"host: (\d+) bytes planned, (\d+) bytes used")


def arena_of(done):
    """(planned, used) as --explain says."""
    found = ARENA.search(done.stdout + done.stderr)
    return tuple(map(int, found.groups())) if found else (0, -1)


def host_of(done):
    """The same of the host's memory, which only plans that offload have."""
    found = HOST.search(done.stdout + done.stderr)
    return tuple(map(int, found.groups())) if found else (0, 0)


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


def train(test, step, name):
    """(planned bytes, used bytes, outputs of all steps)."""
    outputs, flags = test.temp / f"{name}.safetensors", [f"--data={test.data}", "--data-layout=batches"]
    planned, used = arena_of(test.tool("recast-run", step, *flags, "--steps=1", "--explain"))
    test.tool("recast-run", step, *flags, f"--steps={STEPS}", f"--outputs={outputs}")
    return planned, used, kit.load(outputs)


def different(got, want):
    return [n for n in want if n not in got or got[n].tobytes() != want[n].tobytes()] + [n for n in got if n not in want]


def onnxruntime_metrics(step, want):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(step), options, providers=["CPUExecutionProvider"])
    types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type)
             for i in kit.load_model(step).graph.input}
    feeds = {n: want[f"in.{n}"][0].astype(types[n]) for n in types if f"in.{n}" in want}
    return dict(zip(("loss", "grad_norm"), session.run(["loss", "grad_norm"], feeds)))


def check_step(test, name, step, budget, base, reference):
    planned, used, outputs = train(test, step, name)
    test.check(planned == used <= budget, f"{name}: {planned} bytes planned, {used} used, {budget} allowed")
    wrong = different(outputs, base)
    test.check(not wrong, f"{name}: {len(base)} outputs of {STEPS} steps equal bit for bit {wrong[:4] or ''}")
    try:
        onnx.checker.check_model(str(step), full_check=True)
    except Exception as error:  # the checker has no common base class for its errors
        test.check(False, f"{name}: onnx.checker: {str(error)[:500]}")
    got = onnxruntime_metrics(step, test.want)
    test.all_close(f"{name}: onnxruntime", {n: (got[n], reference[n]) for n in reference}, RELATIVE)
    return planned
