"""Writes char_gpt.onnx: a two-layer character GPT with its loss, written out in basic operators.

    python make_model.py [--out DIR]

Tokens are ASCII codes. Pre-norm blocks, causal attention with 4 heads, erf GELU, and an output projection tied to
the embedding. Every sequence has 64 tokens; the batch is symbolic.
"""
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from modelkit import Parameters, TensorProto, helper, output_folder, value, write_model  # noqa: E402

VOCABULARY, TOKENS, WIDTH, HEADS, LAYERS = 128, 64, 64, 4, 2
node = helper.make_node


def linear(p, source, name, size_in, size_out, bound):
    """source [batch, T, size_in] times name.weight [size_in, size_out], plus name.bias."""
    p.uniform(f"{name}.weight", (size_in, size_out), bound)
    p.zeros(f"{name}.bias", size_out)
    return [node("MatMul", [source, f"{name}.weight"], [f"{name}.product"], f"{name}.matmul"),
            node("Add", [f"{name}.product", f"{name}.bias"], [f"{name}.out"], f"{name}.add")]


def layer_norm(p, source, name):
    p.ones(f"{name}.weight", WIDTH)
    p.zeros(f"{name}.bias", WIDTH)
    return [node("LayerNormalization", [source, f"{name}.weight", f"{name}.bias"], [f"{name}.out"], name, axis=-1,
                 epsilon=1e-5)]


def attention(p, source, name, small):
    nodes = linear(p, source, f"{name}.qkv", WIDTH, 3 * WIDTH, small)
    nodes.append(node("Split", [f"{name}.qkv.out"], [f"{name}.{x}" for x in "qkv"], f"{name}.split", axis=-1,
                      num_outputs=3))
    # Keys are laid out [batch, head, size, T] at once, ready to be the right operand.
    for x, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("Reshape", [f"{name}.{x}", "head_shape"], [f"{name}.{x}.split"], f"{name}.{x}.reshape"),
                  node("Transpose", [f"{name}.{x}.split"], [f"{name}.{x}.heads"], f"{name}.{x}.transpose", perm=order)]
    nodes += [
        node("MatMul", [f"{name}.q.heads", f"{name}.k.heads"], [f"{name}.scores"], f"{name}.scores"),
        node("Mul", [f"{name}.scores", "score_scale"], [f"{name}.scaled"], f"{name}.scale"),
        node("Where", ["causal_mask", f"{name}.scaled", "minus_infinity"], [f"{name}.masked"], f"{name}.mask"),
        node("Softmax", [f"{name}.masked"], [f"{name}.weights"], f"{name}.softmax", axis=-1),
        node("MatMul", [f"{name}.weights", f"{name}.v.heads"], [f"{name}.mixed"], f"{name}.mix"),
        node("Transpose", [f"{name}.mixed"], [f"{name}.mixed.t"], f"{name}.merge", perm=[0, 2, 1, 3]),
        node("Reshape", [f"{name}.mixed.t", "width_shape"], [f"{name}.merged"], f"{name}.merge.reshape")]
    return nodes + linear(p, f"{name}.merged", f"{name}.proj", WIDTH, WIDTH, small / (2 * LAYERS) ** 0.5)


def block(p, source, name, small):
    nodes = layer_norm(p, source, f"{name}.ln1") + attention(p, f"{name}.ln1.out", f"{name}.attn", small)
    nodes.append(node("Add", [source, f"{name}.attn.proj.out"], [f"{name}.middle"], f"{name}.residual1"))
    nodes += layer_norm(p, f"{name}.middle", f"{name}.ln2")
    nodes += linear(p, f"{name}.ln2.out", f"{name}.fc1", WIDTH, 4 * WIDTH, small)
    nodes.append(node("Gelu", [f"{name}.fc1.out"], [f"{name}.gelu.out"], f"{name}.gelu"))
    nodes += linear(p, f"{name}.gelu.out", f"{name}.fc2", 4 * WIDTH, WIDTH, small / (2 * LAYERS) ** 0.5)
    nodes.append(node("Add", [f"{name}.middle", f"{name}.fc2.out"], [f"{name}.out"], f"{name}.residual2"))
    return nodes


def write_gpt(path):
    p = Parameters(seed=3)
    small = 0.02 * 3 ** 0.5  # GPT-2's standard deviation of 0.02, as the bound of a uniform draw
    p.uniform("wte.weight", (VOCABULARY, WIDTH), small)
    p.uniform("wpe.weight", (TOKENS, WIDTH), small)
    nodes = [node("Gather", ["wte.weight", "input_ids"], ["wte.out"], "wte"),
             node("Add", ["wte.out", "wpe.weight"], ["h"], "embed")]
    source = "h"
    for layer in range(LAYERS):
        nodes += block(p, source, f"block{layer}", small)
        source = f"block{layer}.out"
    nodes += layer_norm(p, source, "ln")
    nodes += [node("Transpose", ["wte.weight"], ["wte.transposed"], "head.transpose", perm=[1, 0]),
              node("MatMul", ["ln.out", "wte.transposed"], ["logits"], "head"),
              node("Reshape", ["logits", "rows_shape"], ["logits.rows"], "rows"),
              node("Reshape", ["labels", "flat_shape"], ["labels.flat"], "flat"),
              node("SoftmaxCrossEntropyLoss", ["logits.rows", "labels.flat"], ["loss"], "loss", reduction="mean")]
    p.add("causal_mask", np.tril(np.ones((1, 1, TOKENS, TOKENS), bool)))
    p.add("score_scale", np.array((WIDTH // HEADS) ** -0.5, np.float32))
    p.add("minus_infinity", np.array(-np.inf, np.float32))
    p.add("head_shape", np.array([0, 0, HEADS, WIDTH // HEADS]))
    p.add("width_shape", np.array([0, 0, WIDTH]))
    p.add("rows_shape", np.array([-1, VOCABULARY]))
    p.add("flat_shape", np.array([-1]))
    ids = [value(name, ["batch", TOKENS], TensorProto.INT64) for name in ("input_ids", "labels")]
    outputs = [value("loss", []), value("logits", ["batch", TOKENS, VOCABULARY])]
    write_model(path, "char_gpt", nodes, ids, outputs, p)


if __name__ == "__main__":
    write_gpt(output_folder(__file__, __doc__.splitlines()[0]) / "char_gpt.onnx")
