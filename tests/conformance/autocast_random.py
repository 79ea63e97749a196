"""Autocast of random graphs: branches, scans, casts of the author's, constants of every size, shared values.

No tolerance. Of each graph, in each low type and with both lists: the result passes onnx.checker, takes and gives what
the graph did, casts a value once to a type, a second run changes no byte, and it runs; its outputs are finite where
those in f32 are, because a constant that overflows, or an epsilon that becomes 0, would show as infinity or NaN.
"""
import kit
import numpy as np
import onnx
from autocast_model import repeated_casts, same_interface
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

GRAPHS, NODES, SIZE = 60, 25, 4
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
CONSTANTS = [0.5, 3.0, 1e-8, 1e-3, -1e9, 0.9999999, 7e4]
info = helper.make_tensor_value_info


class Graph:
    """Every value has the shape [SIZE, SIZE] and is kept small by Tanh where it could grow."""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self.nodes, self.initializers, self.count = [], [], 0
        self.values = ["x", "w0", "w1"]
        for name in ("w0", "w1"):
            self.initializers.append(numpy_helper.from_array(self.rng.uniform(-1, 1, (SIZE, SIZE)).astype(np.float32),
                                                             name))

    def pick(self):
        return self.values[int(self.rng.integers(max(0, len(self.values) - 8), len(self.values)))]

    def name(self, prefix="v"):
        self.count += 1
        return f"{prefix}{self.count}"

    def add(self, op, inputs, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [self.name()], self.name("n"), **attributes))
        return self.nodes[-1].output[0]

    def number(self):
        name = self.name("c")
        value = np.float32(self.rng.choice(CONSTANTS))
        if self.rng.random() < 0.5:
            self.initializers.append(numpy_helper.from_array(np.array(value), name))
        else:
            self.nodes.append(helper.make_node("Constant", [], [name],
                                               value=numpy_helper.from_array(np.array(value), "")))
        return name

    def grow(self):
        kind = int(self.rng.integers(14))
        a, b = self.pick(), self.pick()
        if kind < 3:
            value = self.add("Tanh", [self.add("MatMul", [a, b])])
        elif kind == 3:
            value = self.add("Softmax", [a], axis=-1)
        elif kind == 4:
            value = self.add(str(self.rng.choice(["Relu", "Neg", "Sigmoid", "Identity"])), [a])
        elif kind == 5:
            value = self.add("Tanh", [self.add("Add", [a, b])])
        elif kind == 6:
            value = self.add("Tanh", [self.add(str(self.rng.choice(["Mul", "Add", "Max"])), [a, self.number()])])
        elif kind == 7:
            value = self.add("Softmax", [self.add("Where", ["mask", a, self.number()])], axis=-1)
        elif kind == 8:
            value = self.add("Transpose", [a], perm=[1, 0])
        elif kind == 9:
            value = self.add("Div", [a, self.add("Add", [self.add("Abs", [a]), self.number()])])
            value = self.add("Tanh", [value])
        elif kind == 10:
            to = int(self.rng.choice([TensorProto.FLOAT16, TensorProto.BFLOAT16]))
            value = self.add("Cast", [self.add("Cast", [a], to=to)], to=FLOAT)
        elif kind == 11:
            value = self.add("ReduceMax", [self.add("Concat", [self.add("Unsqueeze", [v, "axis"]) for v in (a, b)],
                                                    axis=0)], axes=[0], keepdims=0)
        elif kind == 12:
            value = self.branch(a, b)
        else:
            value = self.add("LayerNormalization", [a, "scale"], axis=-1)
        self.values.append(value)

    def branch(self, a, b):
        def body(op, inputs):
            name = self.name("b")
            node = helper.make_node(op, inputs, [name])
            return helper.make_graph([node], name, [], [info(name, FLOAT, [SIZE, SIZE])])
        kinds = [("MatMul", [a, b]), ("Exp", [a]), ("Relu", [b]), ("Add", [a, b])]
        then, other = (kinds[int(self.rng.integers(len(kinds)))] for _ in range(2))
        value = self.name()
        self.nodes.append(helper.make_node("If", ["choice"], [value], self.name("n"), then_branch=body(*then),
                                           else_branch=body(*other)))
        return self.add("Tanh", [value])

    def model(self):
        while len(self.nodes) < NODES:
            self.grow()
        self.initializers += [numpy_helper.from_array(np.array([0]), "axis"),
                              numpy_helper.from_array(np.linspace(0.5, 1.5, SIZE, dtype=np.float32), "scale")]
        outputs = {self.values[-1], *(self.pick() for _ in range(2))} - {"x", "w0", "w1"}
        graph = helper.make_graph(self.nodes, "random",
                                  [info("x", FLOAT, [SIZE, SIZE]), info("mask", BOOL, [SIZE, SIZE]),
                                   info("choice", BOOL, [])],
                                  [info(name, FLOAT, [SIZE, SIZE]) for name in sorted(outputs)], self.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(test, path):
    outputs = test.temp / "outputs.safetensors"
    test.tool("recast-run", path, f"--data={test.temp / 'data.safetensors'}", "--data-layout=single", "--steps=1",
              f"--outputs={outputs}")
    return kit.load(outputs)


def problems(test, source, model, precision, policy):
    flags = ["--emit=forward", f"--precision={precision}", f"--policy={policy}"]
    first, second = test.temp / "first.onnx", test.temp / "second.onnx"
    test.tool("recast-opt", source, *flags, "-o", first)
    test.tool("recast-opt", first, *flags, "-o", second)
    after = onnx.load(str(first))
    if first.read_bytes() != second.read_bytes():
        yield "a second run changes it"
    try:
        onnx.checker.check_model(after, full_check=True)
    except Exception as error:  # the checker has several kinds
        yield f"onnx.checker: {error}"
    if not same_interface(model, after):
        yield "its inputs or outputs differ"
    if set(repeated_casts(after.graph)) - set(repeated_casts(model.graph)):
        yield "a value is cast twice"
    want, got = run(test, source), run(test, first)
    for name, value in want.items():
        if np.isfinite(value).all() and not np.isfinite(got[name].astype(np.float64)).all():
            yield f"{name} is not finite"


def main():
    test = kit.Test(__doc__)
    rng = np.random.Generator(np.random.PCG64(0))
    save_file({"x": rng.uniform(-2, 2, (SIZE, SIZE)).astype(np.float32), "mask": rng.random((SIZE, SIZE)) < 0.7,
               "choice": np.array(True)}, test.temp / "data.safetensors")
    for seed in range(GRAPHS):
        model, source = Graph(seed).model(), test.temp / "graph.onnx"
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, str(source))
        found = [f"{precision}, {policy}: {problem}" for precision in ("f16", "bf16") for policy in ("cuda", "cpu")
                 for problem in problems(test, source, model, precision, policy)]
        test.check(not found, f"graph {seed}: {len(model.graph.node)} nodes {found}")
    test.finish()


if __name__ == "__main__":
    main()
