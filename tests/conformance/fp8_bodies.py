"""The fp8 operators: what the native kernels compute, their bodies compute on onnxruntime too, exactly.

Inputs of several ranks and types, tiles that do not divide the sizes, symbolic sizes, zero tiles, infinities, NaN,
subnormals and amaxes next to powers of two. Bytes, scales, amaxes and dequantised values agree bit for bit (NaN with NaN):
each is one operation in f32, rounded once, on both sides.
"""
import kit
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

FORMATS = {TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2}
INPUTS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16, TensorProto.BFLOAT16: ml_dtypes.bfloat16}


def numbers(shape, seed):
    """Normal numbers of very different sizes, with a row of zeros and some special ones."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-12, 12, shape))).astype(np.float32)
    rows = x.reshape(-1, x.shape[-1])
    rows[0] = 0
    special = [448 * 2.0 ** -5, np.nextafter(np.float32(448), np.float32(449)), 57344 * 2.0 ** 3, 1e-41, np.inf, np.nan]
    for i, value in enumerate(special):
        row = rows[(1 + i) % len(rows)]
        row[np.abs(row) > abs(value)] = value  # the row's largest, where it is a number
        row[i % len(row)] = value
    return x


def build(kind, to, shape, open_sizes, **attributes):
    """x comes in f32 and is cast to `kind`; the scale of quantize_fp8 is an input."""
    dims = [f"n{i}" if open_sizes else size for i, size in enumerate(shape)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)]
    nodes = [helper.make_node("Cast", ["x"], ["narrow"], to=kind)]
    if "tile" in attributes:
        nodes += [helper.make_node("quantize_fp8_tiles", ["narrow"], ["q", "second"], domain="recast", to=to, **attributes),
                  helper.make_node("dequantize_fp8", ["q", "second"], ["d"], domain="recast", tile=attributes["tile"])]
    else:
        inputs.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
        nodes += [helper.make_node("quantize_fp8", ["narrow", "scale"], ["q", "second"], domain="recast", to=to),
                  helper.make_node("Reciprocal", ["scale"], ["inverse"]),
                  helper.make_node("DequantizeLinear", ["q", "inverse"], ["d"])]
    # NumPy has no 8-bit floats that onnxruntime would give: as f32 they lose nothing.
    nodes += [helper.make_node("Cast", ["q"], ["q.f32"], to=TensorProto.FLOAT),
              helper.make_node("Cast", ["second"], ["second.f32"], to=TensorProto.FLOAT)]
    second = [None] * len(shape) if any(attributes.get("tile", [])) else []
    outputs = [helper.make_tensor_value_info("q.f32", TensorProto.FLOAT, dims),
               helper.make_tensor_value_info("second.f32", TensorProto.FLOAT, second),
               helper.make_tensor_value_info("d", TensorProto.FLOAT, dims)]
    return helper.make_model(helper.make_graph(nodes, "fp8", inputs, outputs), ir_version=12,
                             opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("recast", 1)])


def same(got, want):
    """Bit for bit, but for NaN."""
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and bool(
        np.all((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))))


def check(test, label, model, inputs):
    calls, complete = test.temp / "calls.onnx", test.temp / "complete.onnx"
    onnx.save(model, str(calls))
    test.tool("recast-opt", calls, "--emit=forward", "-o", complete)
    model = onnx.load(str(complete))
    onnx.checker.check_model(model, full_check=True)
    native = kit.run_model(test, model, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(complete), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    body = dict(zip(names, session.run(names, inputs)))
    differ = [n for n in names if not same(native[n], body[n])]
    test.check(not differ, label + (f": {', '.join(differ)} differ" if differ else ""))
    return native


def main():
    test = kit.Test(__doc__)
    tilings = {(7, 50): [[0, 0], [1, 0], [0, 1], [1, 16], [4, 1], [4, 32], [0, 32]],
               (2, 5, 33): [[0, 0, 0], [1, 1, 32], [1, 2, 1], [1, 4, 16], [1, 1, 0]],
               (40,): [[0], [32]]}
    with np.errstate(all="ignore"):
        for to, dtype in FORMATS.items():
            for kind, source in INPUTS.items():
                for seed, shape in enumerate(tilings):
                    x = numbers(shape, seed).astype(source).astype(np.float32)
                    scale = np.array(448 / 3, np.float32)
                    got = check(test, f"quantize_fp8 of {np.dtype(source)}{list(shape)} to {np.dtype(dtype)}",
                                build(kind, to, shape, False), {"x": x, "scale": scale})
                    amax = np.abs(x).max()  # NaN where x has one
                    test.check(np.array_equal(got["second.f32"], amax, equal_nan=True), f"its amax is {amax}")
                    top = np.float32(ml_dtypes.finfo(dtype).max)
                    want = np.clip(x * scale, -top, top).astype(dtype).astype(np.float32)
                    test.check(same(got["q.f32"], want), "its values are those of ml_dtypes")
            for shape, tiles in tilings.items():
                for tile in tiles:
                    for rule in ("exact", "pow2", "mx_floor"):
                        e8m0 = TensorProto.FLOAT8E8M0 if rule != "exact" and sum(t > 1 for t in tile) == 1 else 1
                        for open_sizes in (False, True):
                            label = f"{np.dtype(dtype)} {list(shape)} tile {tile} {rule} scale type {e8m0}"
                            check(test, label + (", symbolic sizes" if open_sizes else ""),
                                  build(TensorProto.FLOAT, to, shape, open_sizes, tile=tile, rule=rule, scale_type=e8m0),
                                  {"x": numbers(shape, len(tile))})
    test.finish()


if __name__ == "__main__":
    main()
