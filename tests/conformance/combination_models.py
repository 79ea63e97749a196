"""Models for combinations.py: those of the corpus and of models/, and random small ones with odd corners.

A small one has up to three layers and any of: one parameter only, a weight used twice, a batch of 1, symbolic sizes,
opsets 13 to 23, f16, bf16 and f64 weights, labels of either integer type, initializers that are inputs too, weights
beside the file, layers in a model-local function, unused inputs and outputs, and names that the step wants itself.
"""
import json
from dataclasses import dataclass, field
from pathlib import Path

import kit
import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCHES = 6  # Of data, so that three steps of two micro-batches have batches of their own.
MODELS = Path(__file__).resolve().parents[2] / "models"
TYPES = {"f32": (TensorProto.FLOAT, np.float32), "f64": (TensorProto.DOUBLE, np.float64),
         "f16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
# Names that the step model uses, that its suffixes make, or that files and shells would rather not have.
ODD_NAMES = ["step", "lr", "loss_scale", "grad_norm", "found_inf", "tokens", "rng_key", "w.exp_avg", "w.next", "w.grad",
             "grad.w", "layer/0/w", "a weight", "w,1", "poids_é", "w:0", "w#1", "w.recompute", "%w", "w\"q\""]


@dataclass
class Subject:
    """A model, six batches of data for it on axis 0, and what its numbers depend on."""
    path: Path
    batches: dict
    parameters: list
    loss: str
    sizes: dict = field(default_factory=dict)  # of symbolic dimensions
    batch: str = ""  # the symbolic dimension along which samples lie, "" where there is none
    traits: set = field(default_factory=set)  # statistics, dropout, low (weights of 16 bits)
    description: str = ""
    only_scalars: bool = False  # parameters, which are not trained unless named


def operators(model):
    return {n.op_type for n in kit.walk_nodes(model.graph)} | {n.op_type for f in model.functions for n in f.node}


def traits_of(model):
    found = operators(model)
    traits = {"statistics": {"BatchNormalization"}, "dropout": {"Dropout", "Bernoulli", "RandomUniformLike"}}
    return {trait for trait, names in traits.items() if found & names}


def from_corpus(test, folder):
    model = kit.load_model(folder / "model.onnx")
    batches = {n[3:]: np.concatenate([v, v[::-1]]) for n, v in kit.load(folder / "reference.safetensors").items()
               if n.startswith("in.")}
    trainable = json.loads((folder / "reference.json").read_text())["trainable"]
    subject = Subject(folder / "model.onnx", batches, trainable, "loss", description=folder.name,
                      traits=traits_of(model))
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.dim_param and value.name in batches:
                subject.sizes[dim.dim_param] = batches[value.name].shape[axis + 1]
                if not axis:
                    subject.batch = dim.dim_param
    return subject


def from_models(path, rng):
    model = kit.load_model(path)
    batches, sizes, size = {}, {}, 4
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [BATCHES, *(d.dim_value or size for d in tensor.shape.dim)]
        sizes |= {d.dim_param: size for d in tensor.shape.dim if d.dim_param}
        batches[value.name] = (rng.standard_normal(shape).astype(np.float32)
                               if tensor.elem_type == TensorProto.FLOAT else rng.integers(0, 10, shape))
    return Subject(path, batches, [i.name for i in model.graph.initializer if i.name.endswith("weight")], "loss", sizes,
                   next(iter(sizes)), traits_of(model), path.stem)


class Small:
    """One random small model. Activations are [batch, width], or [batch, channels, side, side] before the head."""

    def __init__(self, rng):
        self.rng, self.nodes, self.values, self.parameters, self.notes = rng, [], {}, [], []
        self.opset = int(rng.integers(13, 24))
        self.kind = str(rng.choice(["f32"] * 7 + ["f64", "f16", "bf16"]))
        self.rows = int(rng.choice([1, 2, 4, 5]))
        self.batch = str(rng.choice(["", "batch", "n"]))
        self.odd = list(rng.permutation(ODD_NAMES)) if self.often(0.3) else []
        self.count = 0

    def often(self, probability):
        return self.rng.random() < probability

    def note(self, text):
        self.notes.append(text)

    def node(self, op, inputs, outputs=1, **attributes):
        self.count += 1
        results = [f"t{self.count}_{i}" for i in range(outputs)]
        named = f"node_{self.count}" if self.often(0.8) else ""
        self.nodes.append(helper.make_node(op, inputs, results, named, **attributes))
        return results[0] if outputs == 1 else results

    def constant(self, value):
        self.count += 1
        self.values[f"c{self.count}"] = np.asarray(value)
        return f"c{self.count}"

    def parameter(self, shape, scale=0.5, offset=0.0):
        name = str(self.odd.pop()) if self.odd else f"w{len(self.parameters)}"
        self.values[name] = (offset + scale * self.rng.standard_normal(shape)).astype(TYPES[self.kind][1])
        self.parameters.append(name)
        return name

    def layer(self, x, width):
        """(activation, its width)."""
        kind = int(self.rng.integers(9))
        out = int(self.rng.choice([1, 3, 8, 16]))
        if kind == 0:
            product = self.node("MatMul", [x, self.parameter((width, out))])
            return self.node("Add", [product, self.parameter((out,))]), out
        if kind == 1:
            flag = int(self.often(0.5))
            bias = [self.parameter((out,))] if self.often(0.6) else []
            weight = self.parameter((out, width) if flag else (width, out))
            return self.node("Gemm", [x, weight, *bias], transB=flag), out
        if kind == 2:
            functions = ["Relu", "Tanh", "Sigmoid"] + ["Softplus"] * (self.kind != "bf16")
            return self.node(str(self.rng.choice(functions)), [x]), width
        if kind == 3 and self.opset >= 17 and width > 1:
            return self.node("LayerNormalization", [x, self.parameter((width,), 0.1, 1.0), self.parameter((width,))],
                             axis=-1, epsilon=1e-5), width
        if kind == 4:
            self.note("dropout")
            ratio, on = self.constant(np.float32(0.3)), self.constant(np.array(True))
            return self.node("Dropout", [x, ratio, on]), width
        if kind == 5:
            self.note("tied")
            weight = self.parameter((width, width))
            y = self.node("Tanh", [self.node("MatMul", [x, weight])])
            return self.node("MatMul", [y, self.node("Transpose", [weight], perm=[1, 0])]), width
        if kind == 6:
            self.note("scalar parameter")
            return self.node("Mul", [x, self.parameter((), 0.1, 1.0)]), width
        if kind == 7 and self.opset >= 14 and self.rows > 1 and self.kind == "f32":
            self.note("statistics")
            statistics = [self.constant(np.zeros(width, np.float32)), self.constant(np.ones(width, np.float32))]
            return self.node("BatchNormalization", [x, self.parameter((width,), 0.1, 1.0), self.parameter((width,)),
                                                    *statistics], outputs=3, training_mode=1)[0], width
        return self.node("Add", [x, self.parameter((1, width) if self.often(0.5) else (1,))]), width

    def stem(self):
        """The first layer: features, pictures, or tokens."""
        element, dtype = TYPES[self.kind]
        kind = int(self.rng.integers(4))
        if kind == 0 and self.kind == "f32":
            self.note("pictures")
            self.add_input("x", element, [self.rows, 2, 6, 6], self.rng.standard_normal((BATCHES, self.rows, 2, 6, 6)))
            bias = [self.parameter((4,))] if self.often(0.5) else []
            y = self.node("Conv", ["x", self.parameter((4, 2, 3, 3)), *bias], pads=[1, 1, 1, 1])
            y = self.node("MaxPool", [self.node("Relu", [y])], kernel_shape=[2, 2], strides=[2, 2])
            return self.node("Flatten", [y], axis=1), 36
        if kind == 1:
            self.note("tokens")
            integer = TensorProto.INT64 if self.often(0.7) else TensorProto.INT32
            self.add_input("ids", integer, [self.rows], self.rng.integers(0, 7, (BATCHES, self.rows)))
            return self.node("Gather", [self.parameter((7, 8)), "ids"]), 8
        width = int(self.rng.choice([1, 4, 8]))
        self.add_input("x", element, [self.rows, width], self.rng.standard_normal((BATCHES, self.rows, width)))
        return "x", width

    def add_input(self, name, element, shape, data):
        dims = [self.batch or shape[0], *shape[1:]]
        self.inputs.append(helper.make_tensor_value_info(name, element, dims))
        self.batches[name] = data.astype(helper.tensor_dtype_to_np_dtype(element))

    def head(self, y, width):
        """The loss."""
        element = TYPES[self.kind][0]
        kind = int(self.rng.integers(4))
        reduction = str(self.rng.choice(["mean", "mean", "sum"]))
        if kind == 0 and width > 1:
            ignored = self.often(0.3)
            labels = self.rng.integers(0, width, (BATCHES, self.rows))
            if ignored:
                self.note("ignore_index")
                labels[self.rng.random(labels.shape) < 0.3] = -100
                labels[:, 0] = 0  # The mean over no label at all is NaN, as ONNX says.
            self.add_input("labels", TensorProto.INT64 if self.often(0.7) else TensorProto.INT32, [self.rows], labels)
            extra = {"ignore_index": -100} if ignored else {}
            return self.node("SoftmaxCrossEntropyLoss", [y, "labels"], reduction=reduction, **extra)
        if kind == 1:
            self.add_input("target", element, [self.rows, width],
                           self.rng.standard_normal((BATCHES, self.rows, width)))
            y = self.node("Sub", [y, "target"])
        if kind == 2:
            y = self.node("Tanh", [y])
        y = self.node("Mul", [y, y])
        return self.node("ReduceMean" if reduction == "mean" else "ReduceSum", [y], keepdims=int(self.often(0.2)))

    def wrap(self):
        """Moves the nodes into a model-local function, inputs and initializers as arguments."""
        self.note("function")
        made = {o for n in self.nodes for o in n.output}
        arguments = list(dict.fromkeys(i for n in self.nodes for i in n.input if i not in made))
        result = self.nodes[-1].output[0]
        function = helper.make_function("fuzz", "Whole", [f"a{i}" for i in range(len(arguments))], [result], [],
                                        [helper.make_opsetid("", self.opset)])
        inside = {name: f"a{i}" for i, name in enumerate(arguments)}
        for node in self.nodes:
            copied = function.node.add()
            copied.CopyFrom(node)
            for i, name in enumerate(node.input):
                copied.input[i] = inside.get(name, name)
        self.nodes = [helper.make_node("Whole", arguments, ["whole"], "call", domain="fuzz")]
        return "whole", [function]

    def build(self, path):
        self.inputs, self.batches = [], {}
        y, width = self.stem()
        for _ in range(int(self.rng.integers(0, 4))):
            y, width = self.layer(y, width)
        if not self.parameters:
            y = self.node("Mul", [y, self.parameter((width,))])
        loss, functions, element = self.head(y, width), [], TYPES[self.kind][0]
        keeps = self.nodes[-1].op_type.startswith("Reduce") and self.nodes[-1].attribute[0].i == 1
        if self.often(0.15):
            loss, functions = self.wrap()
        name = str(self.rng.choice(["loss", "loss", "cost", "step", "lr", "a loss"]))
        name = name if name not in self.values else "its_loss"
        self.nodes.append(helper.make_node("Identity", [loss], [name]))
        outputs = [helper.make_tensor_value_info(name, element, [1, 1] if keeps else [])]
        if self.often(0.2) and not functions and y not in self.values and y != "x":
            self.note("two outputs")
            outputs.append(helper.make_tensor_value_info(y, element, [self.batch or self.rows, width]))
        if self.often(0.1):
            self.note("unused parameter")
            self.values["unused"] = np.ones(3, np.float32)
        initializers = [numpy_helper.from_array(v, n) for n, v in self.values.items()]
        if self.often(0.2):
            self.note("initializers are inputs")
            self.inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
        graph = helper.make_graph(self.nodes, "small", self.inputs, outputs, initializers)
        opsets = [helper.make_opsetid("", self.opset)] + [helper.make_opsetid("fuzz", 1)] * bool(functions)
        model = helper.make_model(graph, ir_version=10, opset_imports=opsets, functions=functions)
        onnx.checker.check_model(model, full_check=True)
        external = self.often(0.15)
        onnx.save(model, str(path), save_as_external_data=external, location="weights.bin", size_threshold=0)
        sizes = {self.batch: self.rows} if self.batch else {}
        traits = {n for n in self.notes if n in ("dropout", "statistics")} | ({"low"} if "16" in self.kind else set())
        traits |= {"external"} if external else set()
        if self.kind == "f64":
            traits.add("f64")
        named = [p for p in self.parameters if self.values[p].shape] or self.parameters
        return Subject(path, self.batches, named, name, sizes, self.batch, traits,
                       f"small: opset {self.opset}, {self.kind}, {self.rows} rows{' symbolic' * bool(self.batch)}, "
                       f"{len(self.parameters)} parameters, {', '.join(self.notes)}"
                       f"{', external data' * external}",
                       all(not self.values[p].shape for p in self.parameters))


def draw(test, rng):
    """A model, its data in the script's folder."""
    if rng.random() < 0.5:
        return Small(rng).build(test.temp / "model.onnx")
    choices = sorted(p.parent for p in test.corpus.glob("torch/*/model.onnx"))
    choices = [p for p in choices if not kit.control_flow_nodes(kit.load_model(p / "model.onnx"))]
    own = [*sorted(MODELS.glob("digits/*.onnx")), MODELS / "char_gpt/char_gpt.onnx"]
    index = int(rng.integers(len(choices) + len(own)))
    return from_corpus(test, choices[index]) if index < len(choices) else from_models(own[index - len(choices)], rng)
