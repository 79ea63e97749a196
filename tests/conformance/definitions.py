"""Operators that a CUDA plan writes as others (ir/onnx/Definitions.h): the checking device against the CPU.

The reference is the plain evaluator, which has these operators as such. Tolerance. Functions of one number are a few
operations of f32 with errors of 2 units in the last place each: 16 units, 2^-19 of the result, are allowed. Sums add
up in another order: 2^-18 of the norm. What moves values (nearest neighbours) is equal.
"""
import kit
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FUNCTION, SUMS, EXACT = 2.0 ** -19, 2.0 ** -18, 0.0
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
        np.dtype(np.int64): TensorProto.INT64, np.dtype(np.int32): TensorProto.INT32}


def case(op, inputs, tolerance, opset=17, constants=(), **attributes):
    return op, inputs, tolerance, opset, constants, attributes


def resize(mode, coordinates, opset=18, sizes=None, scales=None, shape=(2, 3, 5, 7), **more):
    constants = [np.array([], np.float32), np.array(scales or [], np.float32)] + ([np.array(sizes)] if sizes else [])
    return case("Resize", [normal(*shape)], EXACT if mode == "nearest" else SUMS, opset, constants, mode=mode,
                coordinate_transformation_mode=coordinates, **more)


def einsum(equation, *shapes):
    return case("Einsum", [normal(*s) for s in shapes], SUMS, equation=equation)


CASES = [
    *(case(op, [np.concatenate([numbers(*between), INF[:count]])], FUNCTION) for op, between, count in (
        ("Tan", (-1.5, 1.5), 0), ("Sinh", (-88, 88), 3), ("Cosh", (-88, 88), 3), ("Asinh", (-1e20, 1e20), 3),
        ("Asinh", (-4, 4), 0), ("Acosh", (1, 1e20), 1), ("Acosh", (1, 3), 0), ("Atanh", (-1, 1), 0),
        ("Atan", (-1e10, 1e10), 3), ("Atan", (-4, 4), 0), ("Asin", (-1, 1), 0), ("Acos", (-1, 1), 0))),
    case("Tan", [numbers(-1.5, 1.5).astype(np.float16)], 2.0 ** -10),
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
    einsum("ij,jk->ik", (3, 4), (4, 5)), einsum("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    einsum("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)), einsum("...ij,...jk", (2, 3, 4), (2, 4, 5)),
    einsum("ij->ji", (3, 4)), einsum("ijk->k", (2, 3, 4)), einsum("i,j->ij", (3,), (4,)), einsum("i,i->", (5,), (5,)),
    einsum("ab,bc,cd->da", (2, 3), (3, 4), (4, 5)), einsum("ijx,jky->ik", (2, 3, 4), (3, 5, 2)),
    einsum("i,i,i->i", (5,), (5,), (5,)), einsum("bij,bj->bi", (2, 3, 4), (2, 4)),
]
REFUSED = [einsum("ii->i", (3, 3)), einsum("ij,jk->ik", (3, 4), (1, 5)),
           resize("linear", "tf_crop_and_resize", sizes=[2, 3, 4, 4], opset=18)]


def build(path, op, inputs, opset, constants, attributes):
    names = [f"x{i}" for i in range(len(inputs))] + [f"c{i}" for i in range(len(constants))]
    types = [helper.make_tensor_value_info(n, TEXT[x.dtype], x.shape) for n, x in zip(names, inputs)]
    fixed = [numpy_helper.from_array(c, n) for n, c in zip(names[len(inputs):], constants)]
    node = helper.make_node(op, names, ["y"], "op", **attributes)
    graph = helper.make_graph([node], "g", types, [helper.make_tensor_value_info("y", TEXT[inputs[0].dtype], None)], fixed)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)]), str(path))
    return dict(zip(names, inputs))


def main():
    test = kit.Test(__doc__)
    model, data, out = (test.temp / n for n in ("m.onnx", "d.safetensors", "o.safetensors"))

    def run(*flags, ok=True):
        done = test.tool("recast-run", model, f"--data={data}", "--data-layout=single", "--steps=1", f"--outputs={out}",
                         *flags, ok=ok)
        return kit.load(out)["y"][0] if ok else done

    for op, inputs, tolerance, opset, constants, attributes in CASES:
        kit.save(data, build(model, op, inputs, opset, constants, attributes))
        want, got = run("--kernels=reference").astype(np.float64), run("--device=check").astype(np.float64)
        line = f"{op} {opset} {attributes or ''} {[list(x.shape) for x in inputs]}"
        odd = ~np.isfinite(want)
        same = np.array_equal(want[odd], got[odd], equal_nan=True) and want.shape == got.shape
        a, b = want[~odd], got[~odd]
        if tolerance in (EXACT, SUMS):
            error = float(kit.norm(a - b) / max(kit.norm(a), 1e-30))
        else:
            error = float(np.max(np.abs(a - b) / np.maximum(np.abs(a), 2.0 ** -120), initial=0))
        test.check(same and error <= tolerance, f"{line}: {error:.2g} apart, allowed {tolerance:.2g}")
    for op, inputs, _, opset, constants, attributes in REFUSED:
        kit.save(data, build(model, op, inputs, opset, constants, attributes))
        done = run("--device=check", ok=False)
        test.check(done.returncode == 1 and f"'op' ({op})" in done.stderr,
                   f"{op} {attributes}: refused by name: {done.stderr.strip()[-120:]}")
    test.finish()


if __name__ == "__main__":
    main()
