"""Writes digits_cnn.onnx and mlp.onnx, two forward graphs with a loss for the digits in this folder.

    python make_models.py [--out DIR]
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from modelkit import Parameters, TensorProto, helper, output_folder, value, write_model  # noqa: E402

node = helper.make_node
INPUTS = [value("x", ["batch", 1, 8, 8]), value("labels", ["batch"], TensorProto.INT64)]
OUTPUTS = [value("loss", []), value("logits", ["batch", 10])]


def loss_node():
    return node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], "loss", reduction="mean")


def conv_bn_relu(parameters, layer, source, channels_in, channels_out):
    """Three nodes and their parameters. The convolution has no bias: BatchNormalization would subtract it again."""
    conv, bn = f"conv{layer}", f"bn{layer}"
    parameters.he(f"{conv}.weight", (channels_out, channels_in, 3, 3))
    parameters.ones(f"{bn}.weight", channels_out)
    parameters.zeros(f"{bn}.bias", channels_out)
    parameters.zeros(f"{bn}.running_mean", channels_out)
    parameters.ones(f"{bn}.running_var", channels_out)
    statistics = [f"{bn}.running_mean", f"{bn}.running_var"]
    return [
        node("Conv", [source, f"{conv}.weight"], [f"{conv}.out"], conv, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", [f"{conv}.out", f"{bn}.weight", f"{bn}.bias"] + statistics,
             [f"{bn}.out"] + [f"{s}.updated" for s in statistics], bn, epsilon=1e-5, momentum=0.9, training_mode=1),
        node("Relu", [f"{bn}.out"], [f"relu{layer}.out"], f"relu{layer}"),
    ]


def write_cnn(path):
    p = Parameters(seed=1)
    nodes = conv_bn_relu(p, 1, "x", 1, 16)
    nodes += conv_bn_relu(p, 2, "relu1.out", 16, 32)
    nodes.append(node("MaxPool", ["relu2.out"], ["pool.out"], "pool", kernel_shape=[2, 2], strides=[2, 2]))
    nodes += conv_bn_relu(p, 3, "pool.out", 32, 64)
    p.he("fc.weight", (10, 64))
    p.zeros("fc.bias", 10)
    nodes += [node("GlobalAveragePool", ["relu3.out"], ["mean.out"], "mean"),
              node("Flatten", ["mean.out"], ["features"], "flatten"),
              node("Gemm", ["features", "fc.weight", "fc.bias"], ["logits"], "fc", transB=1), loss_node()]
    write_model(path, "digits_cnn", nodes, INPUTS, OUTPUTS, p)


def write_mlp(path):
    p = Parameters(seed=2)
    p.he("fc1.weight", (32, 64))
    p.zeros("fc1.bias", 32)
    p.he("fc2.weight", (10, 32))
    p.zeros("fc2.bias", 10)
    nodes = [node("Flatten", ["x"], ["pixels"], "flatten"),
             node("Gemm", ["pixels", "fc1.weight", "fc1.bias"], ["fc1.out"], "fc1", transB=1),
             node("Relu", ["fc1.out"], ["hidden"], "relu"),
             node("Gemm", ["hidden", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1), loss_node()]
    write_model(path, "mlp", nodes, INPUTS, OUTPUTS, p)


if __name__ == "__main__":
    folder = output_folder(__file__, __doc__.splitlines()[0])
    write_cnn(folder / "digits_cnn.onnx")
    write_mlp(folder / "mlp.onnx")
