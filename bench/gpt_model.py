"""GPT-2 as an ONNX graph of any size: forward and loss, its weights a file of holes.

Shapes and names follow Radford et al. 2019 (GPT-2 XL: 48 layers, width 1,600, 25 heads, vocabulary 50,257); attention is
written out (product, mask, softmax, dropout, product), as exporters write it. Weights are zeros that take no disk: the
graph is for planning. With `shared` it can be timed, too: all matrices are stretches of one file of the size of the
largest, which whoever runs it fills, and norms and biases begin as usual, in the model.
"""
import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


class Writer:
    def __init__(self, data_name, shared_bytes=0):
        self.nodes, self.initializers, self.offset, self.data_name = [], [], 0, data_name
        self.shared_bytes, self.parameters = shared_bytes, 0

    def op(self, kind, inputs, name, outputs=1, **attributes):
        results = [name] if outputs == 1 else [f"{name}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, results, name, **attributes))
        return results[0] if outputs == 1 else results

    def weight(self, name, *shape, initial=0):
        """`initial`: of a vector that is in the model."""
        self.parameters += int(np.prod(shape))
        if self.shared_bytes and len(shape) == 1:
            return self.constant(name, np.full(shape, initial, np.float32))
        tensor = TensorProto(name=name, data_type=FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        length = 4 * int(np.prod(shape))
        offset = self.offset
        if self.shared_bytes:  # Anywhere in the file: hardly two matrices are the same.
            offset = offset % (self.shared_bytes - length + 1) // 4096 * 4096
        for key, value in (("location", self.data_name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.offset += (length + 4095) // 4096 * 4096
        self.initializers.append(tensor)
        return name

    def constant(self, name, value):
        self.initializers.append(numpy_helper.from_array(value, name))
        return name


def write_gpt(path, layers=48, width=1600, heads=25, vocabulary=50257, sequence=1024, batch=1, dropout=0.1,
              shared=False):
    """Writes `path` and, beside it, its weights. Returns the number of parameters."""
    shared_bytes = 4 * width * max(vocabulary, sequence, 4 * width) + (1 << 20) if shared else 0
    w = Writer(path.stem + ".weights", shared_bytes)
    size = width // heads
    tokens = batch * sequence
    w.constant("ratio", np.float32(dropout))
    w.constant("training", np.bool_(True))
    w.constant("scale", np.float32(size ** -0.5))
    w.constant("mask", np.triu(np.full((1, 1, sequence, sequence), -np.inf, np.float32), 1))
    w.constant("positions", np.arange(sequence, dtype=np.int64))
    w.constant("split_heads", np.array([batch, sequence, heads, size], np.int64))
    w.constant("join_heads", np.array([batch, sequence, width], np.int64))
    w.constant("flat", np.array([tokens, vocabulary], np.int64))
    w.constant("flat_labels", np.array([tokens], np.int64))

    def norm(x, name):
        scale, shift = w.weight(f"{name}.weight", width, initial=1), w.weight(f"{name}.bias", width)
        return w.op("LayerNormalization", [x, scale, shift], name)

    def linear(x, name, inputs, outputs):
        product = w.op("MatMul", [x, w.weight(f"{name}.weight", inputs, outputs)], f"{name}.product")
        return w.op("Add", [product, w.weight(f"{name}.bias", outputs)], name)

    def drop(x, name):
        return w.op("Dropout", [x, "ratio", "training"], name) if dropout else x

    def attention(x, block):
        fused = linear(x, f"{block}.attn.c_attn", width, 3 * width)
        parts = w.op("Split", [fused], f"{block}.attn.split", outputs=3, axis=-1, num_outputs=3)
        q, k, v = (w.op("Transpose", [w.op("Reshape", [part, "split_heads"], f"{block}.attn.{name}.heads")],
                        f"{block}.attn.{name}", perm=perm)
                   for part, name, perm in zip(parts, "qkv", ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])))
        scores = w.op("Mul", [w.op("MatMul", [q, k], f"{block}.attn.qk"), "scale"], f"{block}.attn.scores")
        masked = w.op("Add", [scores, "mask"], f"{block}.attn.masked")
        weights = drop(w.op("Softmax", [masked], f"{block}.attn.softmax", axis=-1), f"{block}.attn.dropout")
        mixed = w.op("Transpose", [w.op("MatMul", [weights, v], f"{block}.attn.mix")], f"{block}.attn.back", perm=[0, 2, 1, 3])
        joined = w.op("Reshape", [mixed, "join_heads"], f"{block}.attn.joined")
        return drop(linear(joined, f"{block}.attn.c_proj", width, width), f"{block}.attn.resid_dropout")

    def mlp(x, block):
        hidden = w.op("Gelu", [linear(x, f"{block}.mlp.c_fc", width, 4 * width)], f"{block}.mlp.gelu", approximate="tanh")
        return drop(linear(hidden, f"{block}.mlp.c_proj", 4 * width, width), f"{block}.mlp.dropout")

    table = w.weight("wte.weight", vocabulary, width)
    x = w.op("Add", [w.op("Gather", [table, "tokens"], "wte"),
                     w.op("Gather", [w.weight("wpe.weight", sequence, width), "positions"], "wpe")], "embedded")
    x = drop(x, "drop")
    for i in range(layers):
        block = f"h.{i}"
        x = w.op("Add", [x, attention(norm(x, f"{block}.ln_1"), block)], f"{block}.add_1")
        x = w.op("Add", [x, mlp(norm(x, f"{block}.ln_2"), block)], f"{block}.add_2")
    x = norm(x, "ln_f")
    logits = w.op("MatMul", [x, w.op("Transpose", [table], "lm_head.weight", perm=[1, 0])], "logits")
    w.op("SoftmaxCrossEntropyLoss", [w.op("Reshape", [logits, "flat"], "logits.flat"),
                                     w.op("Reshape", ["labels", "flat_labels"], "labels.flat")], "loss", reduction="mean")
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, [batch, sequence]) for name in ("tokens", "labels")]
    graph = helper.make_graph(w.nodes, "gpt", ids, [helper.make_tensor_value_info("loss", FLOAT, [])], w.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    with open(path.parent / w.data_name, "wb") as file:
        file.truncate(shared_bytes or w.offset)
    return w.parameters
