"""Operators that a CUDA plan computes in its own way: as others (ir/onnx/Definitions.h), in a region, or in a kernel of
CUDA C++. The checking device against the CPU, for the operators and for gradients through them.

The reference is the plain evaluator, which has these operators as such. Tolerance. Functions of one number are a few
operations of f32 with errors of 2 units in the last place each: 16 units, 2^-19 of the result, are allowed. Sums add
up in another order: 2^-18 of the norm. What moves values (nearest neighbours) and what computes with integers is equal.
"""
import kit
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUNCTION, SUMS, EXACT, HALF = 2.0 ** -19, 2.0 ** -18, 0.0, 2.0 ** -10
RNG = np.random.Generator(np.random.PCG64(5))


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def numbers(low, high):
    """Spread over [low, high], and around zero and one, with both bounds."""
    small = np.concatenate([s * np.float32(2) ** np.arange(-40, 1) for s in (1, -1)])
    values = np.concatenate([np.linspace(low, high, 400), small, 1 + small / 8, [0, low, high]]).astype(np.float32)
    return values[(values >= low) & (values <= high)]


INF = np.array([np.inf, -np.inf, np.nan], np.float32)
TEXT = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16,
        np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32,
        np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.uint64): TensorProto.UINT64,
        np.dtype(bool): TensorProto.BOOL}


def case(op, inputs, tolerance, opset=17, constants=(), **attributes):
    return op, inputs, tolerance, opset, constants, attributes


def resize(mode, coordinates, opset=18, sizes=None, scales=None, shape=(2, 3, 5, 7), **more):
    constants = [np.array([], np.float32), np.array(scales or [], np.float32)] + ([np.array(sizes)] if sizes else [])
    return case("Resize", [normal(*shape)], EXACT if mode == "nearest" else SUMS, opset, constants, mode=mode,
                coordinate_transformation_mode=coordinates, **more)


def crop(mode, roi, sizes, **more):
    """Along the last axes; the others stay."""
    roi = np.array([0, 0, roi[0], roi[1], 1, 1, roi[2], roi[3]], np.float32)
    return case("Resize", [normal(2, 3, 6, 7)], EXACT if mode == "nearest" else SUMS, 19,
                [roi, np.array([], np.float32), np.array([2, 3, *sizes])], mode=mode,
                coordinate_transformation_mode="tf_crop_and_resize", **more)


def upsample(mode, opset, *scales):
    given = {"scales": list(map(float, scales))} if opset < 9 else {}
    return case("Upsample", [normal(2, 3, 4, 5)], EXACT if mode == "nearest" else SUMS, opset,
                [] if given else [np.array(scales, np.float32)], mode=mode, **given)


def whole(dtype, *shape, low=-40, high=40):
    return RNG.integers(low, high, shape, endpoint=True).astype(dtype)


def einsum(equation, *shapes):
    return case("Einsum", [normal(*s) for s in shapes], SUMS, equation=equation)


CASES = [
    *(case(op, [np.concatenate([numbers(*between), INF[:count]])], FUNCTION) for op, between, count in (
        ("Tan", (-1.5, 1.5), 0), ("Sinh", (-88, 88), 3), ("Cosh", (-88, 88), 3), ("Asinh", (-1e20, 1e20), 3),
        ("Asinh", (-4, 4), 0), ("Acosh", (1, 1e20), 1), ("Acosh", (1, 3), 0), ("Atanh", (-1, 1), 0),
        ("Atan", (-1e10, 1e10), 3), ("Atan", (-4, 4), 0), ("Asin", (-1, 1), 0), ("Acos", (-1, 1), 0))),
    case("Tan", [numbers(-1.5, 1.5).astype(np.float16)], HALF),
    case("InstanceNormalization", [normal(3, 4, 5, 6), normal(4), normal(4)], SUMS, epsilon=1e-3),
    case("InstanceNormalization", [normal(2, 3, 9) * 100, normal(3), normal(3)], SUMS),
    case("LpNormalization", [np.concatenate([normal(4, 7), np.zeros((1, 7), np.float32)])], SUMS, opset=22),
    case("LpNormalization", [normal(4, 7)], SUMS, axis=0, p=1),
    case("ReduceLogSumExp", [np.stack([normal(6), np.full(6, -np.inf), np.full(6, 200)]).astype(np.float32)], SUMS,
         axes=[1], keepdims=0),
    case("ReduceLogSumExp", [normal(3, 4, 5)], SUMS, opset=12),
    case("Hardmax", [np.round(normal(4, 9))], EXACT),
    case("Hardmax", [np.round(normal(4, 3, 5))], EXACT, axis=1),
    case("Hardmax", [np.round(normal(4, 3, 5))], EXACT, opset=12, axis=1),
    resize("nearest", "asymmetric", scales=[1, 1, 2, 3], nearest_mode="floor"),
    resize("nearest", "half_pixel", sizes=[2, 3, 4, 10]),
    resize("linear", "half_pixel", sizes=[2, 3, 9, 4]),
    resize("linear", "align_corners", scales=[1, 1, 1.5, 2]),
    resize("linear", "half_pixel", scales=[1, 1, 0.6, 0.6], antialias=1),
    resize("cubic", "half_pixel", sizes=[8, 5], axes=[-1, 2], cubic_coeff_a=-0.5),
    resize("linear", "pytorch_half_pixel", opset=11, scales=[1, 1, 2, 2]),
    case("Resize", [normal(1, 2, 3, 4)], EXACT, 10, [np.array([1, 1, 2, 2], np.float32)], mode="nearest"),
    crop("linear", (0.1, 0.2, 0.7, 0.9), (4, 5)), crop("nearest", (0.3, 0.1, 0.9, 0.4), (5, 3)),
    crop("cubic", (0, 0.25, 1, 0.75), (6, 9)), crop("linear", (-0.4, 0.5, 0.6, 1.7), (7, 8), extrapolation_value=-3.5),
    crop("nearest", (-0.5, -0.5, 1.5, 1.5), (9, 9)),
    upsample("nearest", 9, 1, 1, 2, 3), upsample("nearest", 9, 1, 1, 1.5, 1.7), upsample("linear", 9, 1, 1, 1.5, 2),
    upsample("nearest", 7, 1, 1, 3, 2),
    *(case("LRN", [normal(2, 7, 4, 3)], SUMS, size=size, alpha=0.3, beta=0.6, bias=1.5) for size in (1, 2, 3, 6, 20)),
    case("LRN", [normal(5, 4) * 30], SUMS, size=3), case("LRN", [normal(2, 5, 3).astype(np.float16)], HALF, size=3),
    *(case("ReduceProd", [x], SUMS, opset, **axes) for x in (normal(3, 4, 5), normal(3, 5000), normal(400, 6))
      for opset, axes in ((13, {"axes": [-1]}), (13, {"axes": [0], "keepdims": 0}), (13, {}))),
    case("ReduceProd", [normal(3, 4, 5, 2)], SUMS, 18, [np.array([1, 3])]),
    case("ReduceProd", [whole(np.int64, 4, 30, low=-9, high=9)], EXACT, 18, [np.array([1])]),
    case("Pow", [abs(normal(6, 50)), normal(50) * 5], FUNCTION),
    case("Pow", [np.array([-8, -1, -0.0, 0, 0.5, 1, 3, np.inf, np.nan], np.float32)[:, None],
                 np.array([0, 1, 2, 3, -1, -3, 0.5, 0.3, -0.3, 40, 1e9, np.inf, -np.inf, np.nan], np.float32)],
         FUNCTION),
    case("Pow", [numbers(0, 100)], FUNCTION, 15, [np.array(0.75, np.float32)]),
    case("Pow", [normal(40), whole(np.int64, 40, low=-5, high=9)], FUNCTION),
    case("Pow", [abs(normal(40)).astype(np.float16), normal(40).astype(np.float16)], HALF),
    case("Pow", [whole(np.int64, 9, 1), whole(np.int64, 12, low=-2, high=11)], EXACT),
    case("Pow", [whole(np.int32, 9, 1), whole(np.int32, 12, low=0, high=7).astype(np.float32)], EXACT),
    case("Div", [whole(np.int64, 5, 30), whole(np.int64, 30, low=1)], EXACT),
    *(case("Mod", [whole(np.int64, 5, 30), whole(np.int64, 1, high=-1)], EXACT, fmod=fmod) for fmod in (0, 1)),
    case("Mod", [normal(50, 1) * np.float32(2) ** whole(np.float32, 50, 1), normal(40)], EXACT, fmod=1),
    case("Mod", [normal(50).astype(np.float16), normal(50).astype(np.float16)], EXACT, fmod=1),
    *(case("BitShift", [whole(t, 40, 1, low=0, high=255), whole(t, 12, low=0, high=80)], EXACT, direction=to)
      for t in (np.uint8, np.uint64) for to in ("LEFT", "RIGHT")),
    *(case("BitShift", [whole(t, 40, 1), whole(t, 12, low=-3, high=70)], EXACT, opset=28, direction=to)
      for t in (np.int32, np.int64) for to in ("LEFT", "RIGHT")),
    case("Resize", [whole(np.int32, 1, 2, 5, 6)], EXACT, 19,
         [np.array([], np.float32), np.array([1, 1, 0.7, 1.6], np.float32)], mode="nearest"),
    case("ReverseSequence", [normal(6, 4, 3), np.array([1, 6, 0, 4])], EXACT),
    case("ReverseSequence", [whole(np.int32, 3, 5), np.array([5, 2, 3])], EXACT, time_axis=1, batch_axis=0),
    case("MeanVarianceNormalization", [normal(3, 4, 5, 6) * 9 + 2], SUMS),
    case("MeanVarianceNormalization", [normal(3, 40).astype(np.float16)], HALF, axes=[1]),
    case("ReduceMax", [normal(3, 0, 4)], EXACT, 18, [np.array([1])]), case("Abs", [normal(0, 3)], EXACT),
    *(case(op, [whole(np.int64, 40, 33, low=0, high=1).astype(bool)], EXACT, 20, [np.array(axes)])
      for op in ("ReduceMax", "ReduceMin") for axes in ([0], [1], [0, 1])),
    einsum("ij,jk->ik", (3, 4), (4, 5)), einsum("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    einsum("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)), einsum("...ij,...jk", (2, 3, 4), (2, 4, 5)),
    einsum("ij->ji", (3, 4)), einsum("ijk->k", (2, 3, 4)), einsum("i,j->ij", (3,), (4,)), einsum("i,i->", (5,), (5,)),
    einsum("ab,bc,cd->da", (2, 3), (3, 4), (4, 5)), einsum("ijx,jky->ik", (2, 3, 4), (3, 5, 2)),
    einsum("i,i,i->i", (5,), (5,), (5,)), einsum("bij,bj->bi", (2, 3, 4), (2, 4)),
]
REFUSED = [einsum("ii->i", (3, 3)), einsum("ij,jk->ik", (3, 4), (1, 5)),
           resize("linear", "half_pixel", sizes=[2, 3, 9, 9], opset=18, keep_aspect_ratio_policy="not_larger")]
# Through what a loss is the sum of weights times elements of.
GRADIENTS = [
    case("LRN", [normal(2, 7, 4, 3)], SUMS, size=4, alpha=0.3, beta=0.6, bias=1.5),
    case("ReduceProd", [np.where(whole(np.int64, 4, 6) % 5, normal(4, 6), np.float32(0))], SUMS, 13, axes=[1]),
    case("Pow", [abs(normal(6, 5)), normal(5)], SUMS),
    case("Pow", [abs(normal(6, 5))], SUMS, 15, [np.array(1.7, np.float32)]),
    case("Mod", [normal(6, 5), normal(5)], SUMS, fmod=1),
    upsample("nearest", 9, 1, 1, 2, 3), upsample("linear", 9, 1, 1, 1.5, 2), upsample("nearest", 7, 1, 1, 3, 2),
    crop("linear", (-0.1, 0.2, 0.7, 1.2), (4, 5), extrapolation_value=2.0),
]


def build(path, op, inputs, opset, constants, attributes):
    names = [f"x{i}" for i in range(len(inputs))] + [f"c{i}" for i in range(len(constants))]
    types = [helper.make_tensor_value_info(n, TEXT[x.dtype], x.shape) for n, x in zip(names, inputs)]
    fixed = [numpy_helper.from_array(c, n) for n, c in zip(names[len(inputs):], constants)]
    node = helper.make_node(op, names, ["y"], "op", **attributes)
    result = helper.make_tensor_value_info("y", TEXT[inputs[0].dtype], None)
    graph = helper.make_graph([node], "g", types, [result], fixed)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)]), str(path))
    return dict(zip(names, inputs))


def build_gradient(test, path, shape, op, inputs, opset, constants, attributes):
    """The gradients of sum(y w) for the inputs."""
    given = build(path, op, inputs, opset, constants, attributes)
    model = onnx.load(str(path))
    del model.graph.output[:]
    axes = {"axes": list(range(len(shape)))} if opset < 13 else {}
    model.graph.node.extend([helper.make_node("Mul", ["y", "w"], ["yw"]),
                             helper.make_node("ReduceSum", ["yw"], ["loss"], keepdims=0, **axes)])
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, shape))
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    onnx.save(model, str(path))
    test.tool("recast-opt", path, "--emit=gradient", f"--train={','.join(given)}", "-o", path)
    return {**given, "w": normal(*shape)}


def distance(want, got, tolerance):
    """How far apart they are, as the tolerance has it; infinite where what is not finite differs."""
    if tolerance == EXACT:
        return 0.0 if np.array_equal(want, got, equal_nan=True) else np.inf
    want, got = want.astype(np.float64), got.astype(np.float64)
    odd = ~np.isfinite(want)
    if want.shape != got.shape or not np.array_equal(want[odd], got[odd], equal_nan=True):
        return np.inf
    a, b = want[~odd], got[~odd]
    if tolerance == SUMS:
        return float(kit.norm(a - b) / max(kit.norm(a), 1e-30))
    return float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 2.0 ** -120), initial=0))


def main():
    test = kit.Test(__doc__)
    model, data, out = (test.temp / n for n in ("m.onnx", "d.safetensors", "o.safetensors"))

    def run(*flags, ok=True):
        done = test.tool("recast-run", model, f"--data={data}", "--data-layout=single", "--steps=1", f"--outputs={out}",
                         *flags, ok=ok)
        return {n: v[0] for n, v in kit.load(out).items()} if ok else done

    def compare(op, inputs, tolerance, opset, attributes):
        wants, gots = run("--kernels=reference"), run("--device=check")
        for name, want in wants.items():
            error = distance(want, gots[name], tolerance)
            line = f"{op} {opset} {attributes or ''} {[list(x.shape) for x in inputs]} {inputs[0].dtype} {name}"
            test.check(error <= tolerance, f"{line}: {error:.2g} apart, allowed {tolerance:.2g}")
        return wants

    for op, inputs, tolerance, opset, constants, attributes in CASES:
        kit.save(data, build(model, op, inputs, opset, constants, attributes))
        compare(op, inputs, tolerance, opset, attributes)
    for op, inputs, _, opset, constants, attributes in GRADIENTS:
        kit.save(data, build(model, op, inputs, opset, constants, attributes))
        shape = run("--kernels=reference")["y"].shape
        kit.save(data, build_gradient(test, model, shape, op, inputs, opset, constants, attributes))
        compare(f"gradient of {op}", inputs, SUMS, opset, attributes)
    for op, inputs, _, opset, constants, attributes in REFUSED:
        kit.save(data, build(model, op, inputs, opset, constants, attributes))
        done = run("--device=check", ok=False)
        test.check(done.returncode == 1 and f"'op' ({op})" in done.stderr,
                   f"{op} {attributes}: refused by name: {done.stderr.strip()[-120:]}")
    test.finish()


if __name__ == "__main__":
    main()
