"""Scaled products against the corpus's traces: bytes and scales exactly, products to fp32 rounding.

Each mode quantises a [32, 256] and b [128, 256] in tiles, dequantises and multiplies. The bundled runtime runs the
operators natively, onnxruntime runs their bodies in standard operators: both must give the same bytes and scales.
Tolerance of a product: a sum of K rounded products in fp32 is off by at most (K + 2) 2^-24 sum|a||b|; the inverse scales
are rounded once, which the 2 covers.
"""
import json

import kit
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

FORMATS = {"e4m3fn": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
           "e5m2": (TensorProto.FLOAT8E5M2, ml_dtypes.float8_e5m2)}


def tile_of(size, tile):
    """The attribute `tile`: 0 stands for a whole dimension."""
    return [0 if edge == full else edge for edge, full in zip(tile, size)]


def build(facts, shapes, scale_type):
    """A model of calls without bodies, which recast-opt then adds."""
    nodes, inputs, outputs = [], [], []
    for side in "ab":
        number, _ = FORMATS[facts[side]]
        tile = tile_of(shapes[side], facts[f"{side}_tile"])
        inputs.append(helper.make_tensor_value_info(side, TensorProto.FLOAT, shapes[side]))
        nodes.append(helper.make_node("quantize_fp8_tiles", [side], [f"{side}.q", f"{side}.scale_inv"], domain="recast",
                                      to=number, tile=tile, rule=facts["rule"], scale_type=scale_type))
        nodes.append(helper.make_node("dequantize_fp8", [f"{side}.q", f"{side}.scale_inv"], [f"{side}.d"],
                                      domain="recast", tile=tile))
        outputs.append(helper.make_tensor_value_info(f"{side}.q", number, shapes[side]))
        scale_shape = [None] * (2 if any(tile) else 0)
        outputs.append(helper.make_tensor_value_info(f"{side}.scale_inv", scale_type, scale_shape))
        # NumPy does not know the 8-bit types that onnxruntime gives: the same as floats, which lose nothing.
        for source, shape in ((f"{side}.q", shapes[side]), (f"{side}.scale_inv", scale_shape)):
            nodes.append(helper.make_node("Cast", [source], [f"{source}.f32"], to=TensorProto.FLOAT))
            outputs.append(helper.make_tensor_value_info(f"{source}.f32", TensorProto.FLOAT, shape))
    nodes.append(helper.make_node("Transpose", ["b.d"], ["b.t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["a.d", "b.t"], ["y"]))
    outputs.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [shapes["a"][0], shapes["b"][0]]))
    return helper.make_model(helper.make_graph(nodes, "scaled", inputs, outputs), ir_version=12,
                             opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("recast", 1)])


def bytes_of(value):
    return np.asarray(value).view(np.uint8)


def check(test, label, facts, want, mode, got, scale_type):
    for side in "ab":
        equal = np.array_equal(bytes_of(got[f"{side}.q"]), want[f"{mode}.{side}.bytes"])
        test.check(equal, f"{label}: bytes of {side}")
        scale = want[f"{mode}.{side}.scale"]
        got_scale = np.asarray(got[f"{side}.scale_inv"])
        if scale_type == TensorProto.FLOAT8E8M0:
            equal = np.array_equal(bytes_of(got_scale).ravel(), want[f"{mode}.{side}.e8m0"].ravel())
        else:
            equal = np.array_equal(got_scale.ravel(), (np.float32(1) / scale).ravel())
        test.check(equal, f"{label}: {scale.size} scales of {side}")
    decoded = [want[f"{mode}.{side}.bytes"].view(FORMATS[facts[side]][1]).astype(np.float64) for side in "ab"]
    for i, side in enumerate("ab"):
        scale = want[f"{mode}.{side}.scale"].astype(np.float64)
        repeats = np.array(decoded[i].shape) // scale.shape
        decoded[i] = np.abs(decoded[i] / np.repeat(np.repeat(scale, repeats[0], 0), repeats[1], 1))
    bound = (decoded[0].shape[1] + 2) * 2.0 ** -24 * (decoded[0] @ decoded[1].T)
    error = np.abs(got["y"].astype(np.float64) - want[f"{mode}.y"])
    worst = float(np.max(error / np.maximum(bound, np.finfo(np.float64).tiny)))
    test.check(worst <= 1, f"{label}: products, worst at {worst:.1%} of what fp32 sums allow")


def main():
    test = kit.Test(__doc__)
    folder = test.corpus / "dynamics" / "fp8"
    modes = json.loads((folder / "scaled_matmul.json").read_text())["modes"]
    want = kit.load(folder / "scaled_matmul.safetensors")
    inputs = {side: want[side] for side in "ab"}
    shapes = {side: list(value.shape) for side, value in inputs.items()}
    for mode, facts in modes.items():
        scale_type = TensorProto.FLOAT8E8M0 if f"{mode}.a.e8m0" in want else TensorProto.FLOAT
        calls, complete = test.temp / "calls.onnx", test.temp / "complete.onnx"
        onnx.save(build(facts, shapes, scale_type), str(calls))
        test.tool("recast-opt", calls, "--emit=forward", "-o", complete)
        model = onnx.load(str(complete))
        onnx.checker.check_model(model, full_check=True)
        for flags in ([], ["--kernels=reference"]):
            check(test, " ".join([mode, *flags]), facts, want, mode, kit.run_model(test, model, inputs, *flags),
                  scale_type)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(complete), options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        names = [n for n in names if n == "y" or n.endswith(".f32")]
        got = dict(zip(names, session.run(names, inputs)))
        for side in "ab":
            got[f"{side}.q"] = got[f"{side}.q.f32"].astype(FORMATS[facts[side]][1])
            exact = ml_dtypes.float8_e8m0fnu if scale_type == TensorProto.FLOAT8E8M0 else np.float32
            got[f"{side}.scale_inv"] = got[f"{side}.scale_inv.f32"].astype(exact)
        check(test, f"{mode} on onnxruntime", facts, want, mode, got, scale_type)
    test.finish()


if __name__ == "__main__":
    main()
