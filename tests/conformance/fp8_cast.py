"""Casts to and from the 8-bit floats, bit for bit: the corpus's tables, and the standard's own test cases.

A table holds the byte that each of the 65,536 patterns of bf16 or f16 becomes, saturating and not, and the float that
each byte is. Where a table has a NaN any NaN byte is right: signs and payloads of NaN are not defined. f32 and f64 copies
of the same numbers must give the same bytes. The cases of the standard come with their results from the onnx package.
"""
import kit
import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

FORMATS = {"e4m3fn": (ml_dtypes.float8_e4m3fn, TensorProto.FLOAT8E4M3FN),
           "e5m2": (ml_dtypes.float8_e5m2, TensorProto.FLOAT8E5M2),
           "e8m0fnu": (ml_dtypes.float8_e8m0fnu, TensorProto.FLOAT8E8M0)}
SOURCES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
EIGHT_BITS = {TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
              TensorProto.FLOAT8E5M2FNUZ, TensorProto.FLOAT8E8M0}
# Types that the runtime does not have.
FOREIGN = {TensorProto.STRING, TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT4E2M1, TensorProto.INT2,
           TensorProto.UINT2}
OPERATORS = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear"}


def cast_model(elements, source, target, **attributes):
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=target, **attributes)], "cast",
                              [helper.make_tensor_value_info("x", source, [elements])],
                              [helper.make_tensor_value_info("y", target, [elements])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=12)


def cast(test, x, target, **attributes):
    source = helper.np_dtype_to_tensor_dtype(x.dtype)
    return kit.run_model(test, cast_model(x.size, source, target, **attributes), {"x": x})["y"]


def same_bytes(got, want, dtype):
    """Equal bytes, or NaN in both."""
    both_nan = np.isnan(got.view(dtype).astype(np.float32)) & np.isnan(want.view(dtype).astype(np.float32))
    return (got.view(np.uint8) == want) | both_nan


def check_tables(test):
    tables = kit.load(test.corpus / "dynamics" / "fp8" / "cast.safetensors")
    for name, want in tables.items():
        if name.startswith("decode."):
            dtype, number = FORMATS[name.removeprefix("decode.")]
            got = cast(test, np.arange(256, dtype=np.uint8).view(dtype), TensorProto.FLOAT)
            test.check(np.array_equal(got, want, equal_nan=True), f"{name}: 256 floats")
            continue
        source, kind, mode = name.split(".")
        dtype, number = FORMATS[kind]
        narrow = np.arange(65536, dtype=np.uint16).view(SOURCES[source])
        for x in (narrow, narrow.astype(np.float32), narrow.astype(np.float64)):
            got = cast(test, x, number, saturate=int(mode == "saturate"))
            equal = same_bytes(got, want, dtype)
            first = "" if equal.all() else f"; first difference at pattern {np.argmin(equal):#06x}"
            test.check(equal.all(), f"{name} from {x.dtype}: {equal.sum()} of 65536 bytes{first}")


def check_e8m0(test):
    """Against the definition: the power of two above, below or nearest."""
    x = np.concatenate([2.0 ** np.arange(-130.0, 131), 1.4 * 2.0 ** np.arange(-130.0, 131),
                        1.6 * 2.0 ** np.arange(-130.0, 131)])
    exact = {"up": np.ceil(np.log2(x)), "down": np.floor(np.log2(x)), "nearest": np.floor(np.log2(x) + 1 - np.log2(1.5))}
    for mode, exponent in exact.items():
        for saturate in (0, 1):
            inside = np.abs(exponent) <= 127
            want = np.where(inside, exponent + 127, np.where(exponent > 0, 254, 0) if saturate else 255)
            got = cast(test, x, TensorProto.FLOAT8E8M0, saturate=saturate, round_mode=mode).view(np.uint8)
            test.check(np.array_equal(got, want.astype(np.uint8)), f"e8m0 {mode}, saturate={saturate}: {x.size} bytes")


def types_of(model):
    values = [*model.graph.input, *model.graph.output]
    return {v.type.tensor_type.elem_type for v in values}


def check_standard(test):
    count = 0
    for case in collect_testcases(None):
        if case.model is None or case.kind != "node" or len(case.model.graph.node) != 1:
            continue
        node, types = case.model.graph.node[0], types_of(case.model)
        if node.op_type not in OPERATORS or node.domain or types & FOREIGN:
            continue
        if node.op_type in ("Cast", "CastLike") and not types & EIGHT_BITS:
            continue
        for inputs, outputs in case.data_sets:
            names = [i.name for i in case.model.graph.input]
            arrays = {n: onnx.numpy_helper.to_array(v) if isinstance(v, TensorProto) else np.asarray(v)
                      for n, v in zip(names, inputs)}
            want = outputs[0]
            want = onnx.numpy_helper.to_array(want) if isinstance(want, TensorProto) else np.asarray(want)
            got = kit.run_model(test, case.model, arrays)[case.model.graph.output[0].name]
            dtype = want.dtype
            if dtype.itemsize == 1:
                equal = got.shape == want.shape and bool(
                    same_bytes(got, want.view(np.uint8), dtype).all() if dtype.kind not in "iu" else (got == want).all())
            else:
                equal = np.array_equal(got.astype(np.float64), want.astype(np.float64), equal_nan=True)
            count += 1
            if not equal:
                test.check(False, f"the standard's {case.name}: {got.ravel()[:8]} for {want.ravel()[:8]}")
    test.check(count > 50, f"{count} data sets of the standard's cases")


def main():
    test = kit.Test(__doc__)
    with np.errstate(all="ignore"):  # infinities and NaN are among the numbers
        check_tables(test)
        check_e8m0(test)
        check_standard(test)
    test.finish()


if __name__ == "__main__":
    main()
