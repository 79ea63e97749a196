"""Autocast of a small model that public tools get wrong: its checks, and its numbers in each low type.

Tolerance: the case's own, as max|got - want| / max(1, max|want|) against the f32 outputs in case.json; it leaves about
five times the error of rounding the inputs of products.

Numbers come from recast-run. Where the model holds an operator that this version does not run (random numbers), they
come from onnxruntime, and in bf16, for which that has no kernels, from ONNX's reference evaluator.
"""
import json

import kit
import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

LOW = {"float16": "f16", "bfloat16": "bf16"}
NOT_RUN = {"RandomNormalLike"}


def dtype_name(number):
    return onnx.TensorProto.DataType.Name(number).lower()


def element_types(model):
    """The element type of every value of the main graph, by inference."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    types = {v.name: v.type.tensor_type.elem_type
             for v in (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info)}
    return types | {t.name: t.data_type for t in inferred.graph.initializer}


def node_named(model, name):
    found = [n for n in kit.walk_nodes(model.graph) if n.name == name]
    assert len(found) == 1, f"{len(found)} nodes are called {name}"
    return found[0]


def all_nodes(model):
    yield from kit.walk_nodes(model.graph)
    for function in model.functions:
        yield from kit.walk_nodes(function)


class Case:
    """One low type of the case: the rewritten model beside the original."""

    def __init__(self, test, facts, low):
        self.test, self.facts, self.low, self.precision = test, facts, low, LOW[low]
        self.source = test.subject / "model.onnx"
        self.path = test.temp / f"{self.precision}.onnx"
        self.rewrite(self.source, self.path)
        self.before, self.after = onnx.load(str(self.source)), onnx.load(str(self.path))
        self.outputs = None

    def rewrite(self, source, target):
        return self.test.tool("recast-opt", source, "--emit=forward", f"--precision={self.precision}", "-o", target)

    def casts(self):
        return [n for n in all_nodes(self.after) if n.op_type == "Cast"]

    def check_casts(self):
        """What holds for every case: one cast for each value and type, outer values cast outside of bodies."""
        def visit(graph, outer):
            own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
            own |= {name for node in graph.node for name in node.output}
            for node in graph.node:
                if node.op_type == "Cast":
                    to = next(a.i for a in node.attribute if a.name == "to")
                    seen.append((id(graph), node.input[0], to))
                    if node.input[0] in outer - own and node.name not in written:
                        inside.append(node.name)
                for attribute in node.attribute:
                    if attribute.type == onnx.AttributeProto.GRAPH:
                        visit(attribute.g, outer | own)
        seen, inside, written = [], [], {n.name for n in all_nodes(self.before)}
        visit(self.after.graph, set())
        self.test.check(len(seen) == len(set(seen)), f"{self.precision}: one cast for each value and type")
        self.test.check(not inside, f"{self.precision}: casts of outer values inside of bodies: {inside}")

    # One method a check of case.json; each gives (holds, what was found).

    def graph_io_unchanged(self, check):
        same = all([v.SerializeToString(deterministic=True) for v in getattr(self.before.graph, side)]
                   == [v.SerializeToString(deterministic=True) for v in getattr(self.after.graph, side)]
                   for side in ("input", "output"))
        return same, "names, types and shapes of graph inputs and outputs"

    def idempotent(self, check):
        again = self.test.temp / "again.onnx"
        self.rewrite(self.path, again)
        return again.read_bytes() == self.path.read_bytes(), "a second run gives the same bytes"

    def valid_model(self, check):
        try:
            onnx.checker.check_model(self.after, full_check=True)
            return True, "onnx.checker with full_check"
        except Exception as error:  # the checker has several kinds
            return False, f"onnx.checker: {error}"

    def value_info_consistent(self, check):
        stated = {v.name: v for v in self.after.graph.value_info}
        bare = onnx.ModelProto()
        bare.CopyFrom(self.after)
        del bare.graph.value_info[:]
        inferred = {v.name: v for v in onnx.shape_inference.infer_shapes(bare, strict_mode=True).graph.value_info}
        wrong = [n for n, v in stated.items() if n in inferred and v.type != inferred[n].type]
        return not wrong, f"value_info: {len(stated)} entries, wrong: {wrong}"

    def initializer_dtype(self, check):
        found = [dtype_name(t.data_type) for t in self.after.graph.initializer if t.name == check["name"]]
        return found == [check["dtype"]], f"initializer {check['name']} is {found}, expected {check['dtype']}"

    def op_input_dtype(self, check):
        name = node_named(self.after, check["node"]).input[check["input"]]
        found = dtype_name(element_types(self.after)[name])
        said = f"input {check['input']} of {check['node']} is {found}, expected {check['dtype']}"
        return found == check["dtype"], said

    def attribute_kept(self, check):
        def value(model):
            return [a for a in node_named(model, check["node"]).attribute if a.name == check["attribute"]]
        return value(self.before) == value(self.after) != [], f"{check['attribute']} of {check['node']}"

    def no_cast_on(self, check):
        readers = [n.output[0] for n in self.casts() if check["tensor"] in n.input]
        return not readers, f"casts that read {check['tensor']}: {readers}"

    def casts_of(self, check):
        readers = [n.output[0] for n in self.casts() if check["tensor"] in n.input]
        said = f"casts that read {check['tensor']}: {readers}, expected {check['count']}"
        return len(readers) == check["count"], said

    def max_casts(self, check):
        if check["low"] != self.low:
            return True, f"max_casts is about {check['low']}"
        count = len(self.casts())
        return count <= check["count"], f"{count} casts, at most {check['count']}"

    def finite(self, check):
        value = self.run()[check["output"]]
        return bool(np.isfinite(value.astype(np.float64)).all()), f"{check['output']} is finite"

    def run_elsewhere(self, feeds, names):
        if self.precision == "f16":
            session = onnxruntime.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
            return "onnxruntime", session.run(names, feeds)
        return "onnx.reference", ReferenceEvaluator(self.after).run(names, feeds)

    def run(self):
        """The outputs by name."""
        if self.outputs is None:
            data = self.test.subject / self.facts["expected"]
            elsewhere = sorted({n.op_type for n in all_nodes(self.after)} & NOT_RUN)
            if not elsewhere:
                file = self.test.temp / "outputs.safetensors"
                self.test.tool("recast-run", self.path, f"--data={data}", "--data-layout=single", "--steps=1",
                               f"--outputs={file}")
                self.outputs = {n: value[0] for n, value in kit.load(file).items()}
            else:
                feeds = {k[3:]: v for k, v in kit.load(data).items() if k.startswith("in.")}
                names = [o.name for o in self.after.graph.output]
                who, values = self.run_elsewhere(feeds, names)
                print(f"      {self.precision}: recast-run has no {', '.join(elsewhere)} yet: the numbers are {who}'s")
                self.outputs = dict(zip(names, values))
        return self.outputs

    def compare(self):
        want = kit.load(self.test.subject / self.facts["expected"])
        allowed = self.facts["tolerance"][self.low]
        for name, value in want.items():
            if not name.startswith("out."):
                continue
            got = self.run().get(name[4:])
            error = float("inf") if got is None else kit.mixed_error(got, value)
            self.test.check(error <= allowed, f"{self.precision}: {name[4:]}: error {error:.3g}, allowed {allowed:g}")


def main():
    test = kit.Test(__doc__, "CASE")
    facts = json.loads((test.subject / "case.json").read_text())
    for low in facts["low"]:
        case = Case(test, facts, low)
        case.check_casts()
        for check in facts["checks"]:
            holds, found = getattr(case, check["check"])(check)
            test.check(holds, f"{case.precision}: {check['check']}: {found}")
        if "expected" in facts:
            case.compare()
        elif facts["exit"] == "zero":
            test.check(True, f"{case.precision}: the case has no numbers")
    test.finish()


if __name__ == "__main__":
    main()
