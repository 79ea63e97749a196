"""The models and data of docs/breaking: `breaking_models.py FOLDER` writes a folder for each experiment.

Every number is drawn with a fixed seed, so that the pages show what a reader gets.
"""
import argparse
import json
from pathlib import Path

import kit
import ml_dtypes
import numpy as np
import onnx
import plain_steps
from onnx import helper, numpy_helper, parser


def write_model(folder, text, initializers, name="model.onnx"):
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, key) for key, value in initializers.items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / name)


def normal(rng, *shape, size=1.0):
    return (size * rng.normal(size=shape)).astype(np.float32)


def no_loss_scale(folder):
    """A field of 64 values of about 1e-4 from 16 numbers; the last layer starts at zero. The gradient of the mean over
    256 x 64 squared errors is 2 · 1e-4 / 16384 = 1e-8 an element, and the smallest f16 is 6e-8."""
    rng = np.random.default_rng(1)
    write_model(folder, """step (float[256,16] x, float[256,64] field) => (float loss)
        <float[16,32] w1, float[32,64] w2> {
          a = MatMul(x, w1)
          h = Tanh(a)
          y = MatMul(h, w2)
          error = Sub(y, field)
          square = Mul(error, error)
          loss = ReduceMean<keepdims = 0>(square)
        }""", {"w1": normal(rng, 16, 32, size=0.25), "w2": np.zeros((32, 64), np.float32)})
    x = normal(rng, 1024, 16)
    kit.save(folder / "data.safetensors", {"x": x, "field": 1e-4 * np.tanh(x @ normal(rng, 16, 64, size=0.25))})


def named(model, names, metrics):
    """The model with values renamed, and metadata that says which output updates which input."""
    for node in model.graph.node:
        node.input[:] = [names.get(n, n) for n in node.input]
        node.output[:] = [names.get(n, n) for n in node.output]
    for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
        value.name = names.get(value.name, value.name)
    state = {o.name.removesuffix(".next"): o.name for o in model.graph.output if o.name.endswith(".next")}
    helper.set_model_props(model, {"recast.state": json.dumps(state), "recast.metrics": json.dumps(metrics)})
    return model


def clip_before_unscale(folder):
    """A linear model for the rewriter, and two plain-ONNX steps of a perceptron: clipped last and clipped first."""
    rng = np.random.default_rng(2)
    write_model(folder, """step (float[8,4] x, float[8,2] target) => (float loss) <float[4,2] w> {
          y = MatMul(x, w)
          error = Sub(y, target)
          square = Mul(error, error)
          loss = ReduceMean<keepdims = 0>(square)
        }""", {"w": normal(rng, 4, 2)})
    start = {"w1": normal(rng, 4, 3, size=0.5), "b1": np.zeros(3, np.float32), "w2": normal(rng, 3, 2, size=0.5),
             "b2": np.zeros(2, np.float32)}
    for name, first in (("clip-last.onnx", False), ("clip-first.onnx", True)):
        model = plain_steps.step(clip_first=first, optimizer="sgd")
        *updated, loss, _, scale = [o.name for o in model.graph.output]
        names = {"a": "x", "b": "target", "q": "loss_scale", "r": "lr", loss: "loss", scale: "loss_scale.next"}
        for i, (parameter, output) in enumerate(zip(start, updated)):
            names |= {f"p{i}": parameter, output: f"{parameter}.next"}
        model = named(model, names, ["loss"])
        for initializer in model.graph.initializer:
            if initializer.name in start:
                initializer.CopyFrom(numpy_helper.from_array(start[initializer.name], initializer.name))
            elif initializer.name == "lr":
                initializer.CopyFrom(numpy_helper.from_array(np.array(0.1, np.float32), "lr"))
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, folder / name)
    x = normal(rng, 800, 4)
    kit.save(folder / "data.safetensors", {"x": x, "target": 2 * np.tanh(x @ normal(rng, 4, 2, size=0.5))})


def scale_too_large(folder):
    """A classifier of four classes."""
    rng = np.random.default_rng(3)
    write_model(folder, """step (float[64,16] x, int64[64] label) => (float loss)
        <float[16,32] w1, float[32] b1, float[32,4] w2> {
          a = MatMul(x, w1)
          b = Add(a, b1)
          h = Relu(b)
          y = MatMul(h, w2)
          loss = SoftmaxCrossEntropyLoss(y, label)
        }""", {"w1": normal(rng, 16, 32, size=0.25), "b1": np.zeros(32, np.float32),
               "w2": normal(rng, 32, 4, size=0.2)})
    x = normal(rng, 1024, 16)
    kit.save(folder / "data.safetensors", {"x": x, "label": np.argmax(x @ normal(rng, 16, 4), axis=1)})


def mean_of_means(folder):
    """A classifier whose every fourth 16 samples have one label each, and always of class 0; others are ignored."""
    rng = np.random.default_rng(4)
    write_model(folder, """step (float[N,8] x, int64[N] label) => (float loss) <float[8,4] w, float[4] b> {
          a = MatMul(x, w)
          y = Add(a, b)
          loss = SoftmaxCrossEntropyLoss<ignore_index = -100>(y, label)
        }""", {"w": np.zeros((8, 4), np.float32), "b": np.zeros(4, np.float32)})
    x = normal(rng, 50 * 64, 8)
    label = np.argmax(x @ normal(rng, 8, 4), axis=1).reshape(50, 4, 16)
    label[:, 3, 0] = 0
    label[:, 3, 1:] = -100
    kit.save(folder / "data.safetensors", {"x": x, "label": label.ravel()})


def stale_fp8_scale(folder):
    """Three layers, the middle one in fp8."""
    rng = np.random.default_rng(5)
    write_model(folder, """step (float[64,32] x, float[64,16] target) => (float loss)
        <float[32,64] w1, float[64,64] w2, float[64,16] w3> {
          a = MatMul(x, w1)
          h1 = Relu(a)
          b = MatMul(h1, w2)
          h2 = Relu(b)
          y = MatMul(h2, w3)
          error = Sub(y, target)
          square = Mul(error, error)
          loss = ReduceMean<keepdims = 0>(square)
        }""", {"w1": normal(rng, 32, 64, size=32**-0.5), "w2": normal(rng, 64, 64, size=64**-0.5),
               "w3": normal(rng, 64, 16, size=64**-0.5)})
    x = normal(rng, 1024, 32)
    kit.save(folder / "data.safetensors", {"x": x, "target": np.tanh(x @ normal(rng, 32, 16, size=32**-0.5))})


def bf16_weights(folder):
    """A linear model with weights of magnitude 1 to 2, where neighbours in bf16 are 2^-7 apart: with f32 weights, with
    the same in bf16, and a step in plain ONNX that trains the latter by SGD with a rate of 0.02."""
    rng = np.random.default_rng(6)
    start = (rng.choice([-1, 1], (16, 8)) * rng.uniform(1.02, 1.98, (16, 8))).astype(ml_dtypes.bfloat16)
    goal = start.astype(np.float32) + normal(rng, 16, 8, size=0.1)
    for name, kind, weight, low in (("model.onnx", "float", start.astype(np.float32), "Identity(x)"),
                                    ("bf16.onnx", "bfloat16", start, "Cast<to = 16>(x)")):
        write_model(folder, f"""step (float[64,16] x, float[64,8] target) => (float loss) <{kind}[16,8] w> {{
              low = {low}
              y = MatMul(low, w)
              wide = Cast<to = 1>(y)
              error = Sub(wide, target)
              square = Mul(error, error)
              loss = ReduceMean<keepdims = 0>(square)
            }}""", {"w": weight}, name)
    g = plain_steps.Graph()
    x, target, w = g.input("x", [64, 16]), g.input("target", [64, 8]), g.input("w", [16, 8], plain_steps.BF16)
    low = g("Cast", x, to=plain_steps.BF16)
    error = g("Sub", g("Cast", g("MatMul", low, w), to=plain_steps.F32), target)
    loss = g("ReduceMean", g("Mul", error, error), keepdims=0, name="loss")
    d_y = g("Cast", g("Mul", error, g.const(2 / 512)), to=plain_steps.BF16)
    gradient = g("Cast", g("MatMul", g("Transpose", low, perm=[1, 0]), d_y), to=plain_steps.F32)
    updated = g("Sub", g("Cast", w, to=plain_steps.F32), g("Mul", gradient, g.const(0.02)))
    g.output(g("Cast", updated, to=plain_steps.BF16, name="w.next"), [16, 8], plain_steps.BF16)
    g.output(loss, [])
    g.initializers.append(numpy_helper.from_array(start, "w"))
    onnx.save(named(g.model(), {}, ["loss"]), folder / "bf16-step.onnx")
    x = normal(rng, 1024, 16)
    kit.save(folder / "data.safetensors", {"x": x, "target": x @ goal})


def batch_norm(folder):
    """Inputs in groups of 8 samples, each group moved by a number of its own that the target depends on: a sensor read
    eight times a day. Over one group BatchNormalization takes that number away; over eight it keeps it."""
    rng = np.random.default_rng(7)
    write_model(folder, """step (float[N,8] x, float[N,1] target) => (float loss)
        <float[8,16] w1, float[16] gain, float[16] bias, float[16] mean, float[16] variance, float[16,1] w2> {
          a = MatMul(x, w1)
          n, mean_next, variance_next = BatchNormalization<training_mode = 1>(a, gain, bias, mean, variance)
          h = Tanh(n)
          y = MatMul(h, w2)
          error = Sub(y, target)
          square = Mul(error, error)
          loss = ReduceMean<keepdims = 0>(square)
        }""", {"w1": normal(rng, 8, 16, size=8**-0.5), "gain": np.ones(16, np.float32),
               "bias": np.zeros(16, np.float32), "mean": np.zeros(16, np.float32),
               "variance": np.ones(16, np.float32), "w2": normal(rng, 16, 1, size=0.25)})
    spread = rng.permuted(np.tile(np.linspace(-2, 2, 8), (50, 1)), axis=1).reshape(400, 1)
    level = np.repeat(spread.astype(np.float32) + normal(rng, 400, 1, size=0.1), 8, axis=0)
    x = level + normal(rng, 3200, 8, size=0.3)
    kit.save(folder / "data.safetensors", {"x": x, "target": np.tanh(level)})


EXPERIMENTS = {"1-no-loss-scale": no_loss_scale, "2-clip-before-unscale": clip_before_unscale,
               "3-scale-too-large": scale_too_large, "4-mean-of-means": mean_of_means,
               "5-stale-fp8-scale": stale_fp8_scale, "6-bf16-weights": bf16_weights, "7-batch-norm": batch_norm}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path)
    for name, write in EXPERIMENTS.items():
        folder = arguments.parse_args().folder / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)


if __name__ == "__main__":
    main()
