// Bodies of the operators around the gradients: loss scaling, clipping, random masks. Scalars are computed in f64, as
// PyTorch does in Python, and rounded once to the type of the tensor that they multiply.
#include "ir/train/BodyHelpers.h"
#include <cmath>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

using Values = ArrayRef<Value>;
using Outputs = SmallVectorImpl<Value>;

Type f64(NodeBuilder &b) { return b.rewriter().getF64Type(); }
Type i64(NodeBuilder &b) { return b.rewriter().getI64Type(); }
Value asDouble(NodeBuilder &b, Value x) { return b.cast(x, f64(b)); }

LogicalResult scaleLoss(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value loss = widen(b, in[0]);
  out.push_back(b.castLike(b.mul(loss, b.castLike(in[1], loss)), in[0]));
  return success();
}

// x * 0 is 0, or NaN where x is not finite: one sum finds infinities and NaN. Every comparison with NaN is false.
Value foundNonFinite(NodeBuilder &b, Values gradients) {
  Value found;
  for (Value gradient : gradients) {
    Value zero = sumAll(b, b.mulScalar(widen(b, gradient), 0));
    Value bad = b.node("Not", {b.node("Less", {zero, b.scalarLike(zero, 1)})});
    found = found ? b.node("Or", {found, bad}) : bad;
  }
  return found ? found : b.scalar(b.rewriter().getI1Type(), 0);
}

LogicalResult unscale(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value inverse = b.node("Reciprocal", {asDouble(b, in.back())});
  for (Value gradient : in.drop_back()) {
    Value wide = widen(b, gradient);
    out.push_back(b.castLike(b.mul(wide, b.castLike(inverse, wide)), gradient));
  }
  out.push_back(foundNonFinite(b, in.drop_back()));
  return success();
}

LogicalResult checkFinite(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(foundNonFinite(b, in));
  return success();
}

// Inputs: found_inf loss_scale good_steps growth backoff interval min max hysteresis_left? hysteresis?. Growth that
// overflows is not taken; bounds hold for what changes.
LogicalResult updateLossScale(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value foundInf = in[0], scale = in[1], low = b.castLike(in[6], scale), high = b.castLike(in[7], scale);
  Value count = b.add(in[2], b.intScalar(1)), zero = b.intScalar(0);
  Value isDue = b.node("Equal", {count, in[5]});
  auto scaled = [&](Value factor) { return b.castLike(b.mul(asDouble(b, scale), asDouble(b, factor)), scale); };
  Value grown = scaled(in[3]), lowered = scaled(in[4]);
  Value isFinite = b.node("Less", {grown, b.scalarLike(grown, std::numeric_limits<double>::infinity())});
  grown = select(b, b.node("Greater", {grown, high}), high, grown);
  lowered = select(b, b.node("Less", {lowered, low}), low, lowered);
  Value hysteresisLeft;
  if (in.size() > 8 && in[8]) {
    Value left = b.sub(in[8], b.intScalar(1)),
          isUsedUp = b.node("Less", {asDouble(b, left), asDouble(b, b.intScalar(1))});
    lowered = select(b, isUsedUp, lowered, scale);
    hysteresisLeft = select(b, foundInf, select(b, isUsedUp, zero, left), select(b, isDue, in[9], in[8]));
  }
  Value kept = select(b, b.node("And", {isDue, isFinite}), grown, scale);
  out.push_back(select(b, foundInf, lowered, kept));
  out.push_back(select(b, b.node("Or", {foundInf, isDue}), zero, count));
  if (hysteresisLeft)
    out.push_back(hysteresisLeft);
  return success();
}

Value joined(NodeBuilder &b, StringRef op, Values values) {
  return values.size() == 1 ? values[0] : b.node(op, values);
}

// The norm of order `type` in f64: squares and sums of large f32 gradients would overflow.
Value norm(NodeBuilder &b, Values gradients, double type) {
  SmallVector<Value> parts, maxima;
  for (Value gradient : gradients) {
    Value wide = asDouble(b, gradient);
    if (type == 2) {
      parts.push_back(b.reduce("ReduceSumSquare", wide, {}, /*keepDims=*/false));
      continue;
    }
    Value size = b.node("Abs", {wide});
    if (std::isinf(type))
      maxima.push_back(b.reduce("ReduceMax", size, {}, /*keepDims=*/false));
    parts.push_back(sumAll(b, std::isinf(type) || type == 1 ? size : b.node("Pow", {size, b.scalarLike(size, type)})));
  }
  Value total = joined(b, "Sum", parts);
  if (std::isinf(type)) // Maxima may pass over a NaN; the sum of absolute values does not, and is never below 0.
    return select(b, b.node("Greater", {total, b.scalarLike(total, -1)}), joined(b, "Max", maxima), total);
  if (type == 2)
    return b.node("Sqrt", {total});
  return type == 1 ? total : b.node("Pow", {total, b.scalarLike(total, 1 / type)});
}

LogicalResult gradNorm(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(b.castLike(norm(b, in, op.getFloat("norm_type", 2)), in[0]));
  return success();
}

// The number of elements for which `holds`, which keeps the shape, is true.
Value countIf(NodeBuilder &b, Value holds) {
  return b.reduce("ReduceSum", b.cast(holds, f64(b)), {}, /*keepDims=*/false);
}

LogicalResult gradStats(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, 9)))
    return failure();
  SmallVector<Value> largest, nonFinite, small, sizes;
  for (Value gradient : in.drop_back()) {
    Value wide = asDouble(b, gradient), size = b.node("Abs", {wide});
    // NaN has no size: every comparison with it is false.
    Value isNumber = b.node("Greater", {size, b.scalarLike(size, -1)});
    Value known = b.where(isNumber, size, b.scalarLike(size, 0));
    largest.push_back(b.reduce("ReduceMax", known, {}, /*keepDims=*/false));
    // x * 0 is 0 where x is finite, and NaN elsewhere.
    nonFinite.push_back(countIf(b, b.node("Not", {b.node("Less", {b.mulScalar(wide, 0), b.scalarLike(wide, 1)})})));
    small.push_back(countIf(b, b.node("Less", {size, asDouble(b, in.back())})));
    sizes.push_back(asDouble(b, elementCount(b, gradient)));
  }
  out.push_back(b.castLike(norm(b, in.drop_back(), 2), in[0]));
  out.push_back(b.castLike(joined(b, "Max", largest), in[0]));
  out.push_back(b.cast(joined(b, "Sum", nonFinite), i64(b)));
  Value total = b.reshape(joined(b, "Sum", sizes), ArrayRef<int64_t>{});
  out.push_back(b.castLike(b.div(joined(b, "Sum", small), total), in[0]));
  return success();
}

LogicalResult clipGradNorm(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value total = norm(b, in.drop_back(), op.getFloat("norm_type", 2));
  Value ratio = b.div(asDouble(b, in.back()), b.addScalar(total, 1e-6)), one = b.scalarLike(ratio, 1);
  Value factor = select(b, b.node("Greater", {ratio, one}), one, ratio);
  for (Value gradient : in.drop_back()) {
    Value wide = widen(b, gradient);
    out.push_back(b.castLike(b.mul(wide, b.castLike(factor, wide)), gradient));
  }
  out.push_back(b.castLike(total, in[0]));
  return success();
}

LogicalResult clipGradValue(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, 9)))
    return failure();
  for (Value gradient : in.drop_back()) {
    Value wide = widen(b, gradient), high = b.castLike(in.back(), wide), low = b.neg(high);
    // Where and not Clip, which may turn NaN into a bound.
    Value fromBelow = b.where(b.node("Less", {wide, low}), low, wide);
    out.push_back(b.castLike(b.where(b.node("Greater", {wide, high}), high, fromBelow), gradient));
  }
  return success();
}

LogicalResult keepIf(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(select(b, in[0], in[1], in[2]));
  return success();
}

LogicalResult windowSum(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(b.node("Identity", {in[0]}));
  return success();
}

// A zero that only data shows to be one. It is there for an empty x too.
Value hiddenZero(NodeBuilder &b, Value x) {
  Type element = elementTypeOf(x), boolean = b.rewriter().getI1Type();
  if (isa<FloatType>(element) && element.getIntOrFloatBitWidth() < 16)
    x = b.cast(x, b.rewriter().getF32Type());
  Value first = b.cast(b.cast(b.slice(b.reshape(x, {-1}), {0}, {1}, {0}), boolean), i64(b));
  return b.mul(b.sum(first, {0}, /*keepDims=*/true), b.intScalar(0));
}

// A Reshape moves nothing, and takes every type of element.
LogicalResult barrier(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value zero = hiddenZero(b, in.back());
  for (Value x : in.take_front(op.numOutputs()))
    out.push_back(b.reshape(x, b.add(b.shapeOf(x), zero)));
  return success();
}

// Of one process; and wherever there is one memory.
LogicalResult identities(Node op, NodeBuilder &b, Values in, Outputs &out) {
  for (Value x : in)
    out.push_back(b.node("Identity", {x}));
  return success();
}

LogicalResult rank(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(b.intScalar(0));
  return success();
}

// Typing only: files do not show it.
LogicalResult markScaled(Node op, NodeBuilder &b, Values in, Outputs &out) {
  out.push_back(in[0]);
  return success();
}

// Random masks: docs/random.md. Runtimes have integer products for i64 and not for u64; they wrap around, and modulo
// 2^64 both are one.

Value int64Of(NodeBuilder &b, uint64_t word) { return b.intScalar(static_cast<int64_t>(word)); }

/// x mod 2^32, in [0, 2^32): a cast to fewer bits discards the upper ones.
Value lowHalf(NodeBuilder &b, Value x) {
  return b.cast(b.cast(x, IntegerType::get(b.context(), 32, IntegerType::Unsigned)), i64(b));
}
/// The upper 32 bits, in [0, 2^32): an exact division, then without the sign.
Value highHalf(NodeBuilder &b, Value x) {
  return lowHalf(b, b.div(b.sub(x, lowHalf(b, x)), int64Of(b, uint64_t(1) << 32)));
}

/// 1, 2, 4, ..., 2^31
SmallVector<int64_t> powersOfTwo() {
  return llvm::to_vector(llvm::map_range(llvm::seq(0, 32), [](int i) { return int64_t(1) << i; }));
}

/// Bits 0 to 63 of a scalar, as 64 numbers.
Value bitsOf(NodeBuilder &b, Value x) {
  SmallVector<Value> halves;
  for (Value half : {lowHalf(b, x), highHalf(b, x)}) {
    Value shifted = b.div(b.unsqueeze(half, {0}), b.ints(powersOfTwo())), two = b.intScalar(2);
    halves.push_back(b.sub(shifted, b.mul(b.div(shifted, two), two)));
  }
  return b.concat(halves, 0);
}

/// x ^ (x >> shift) of a scalar. Bitwise operators came in opset 18; without them each bit is a number.
Value xorShift(NodeBuilder &b, Value x, int64_t shift) {
  if (b.opset() >= 18) {
    Type u64 = IntegerType::get(b.context(), 64, IntegerType::Unsigned);
    Value word = b.cast(x, u64), by = b.cast(b.intScalar(shift), u64);
    Value shifted = b.node("BitShift", {word, by}, b.attr("direction", "RIGHT"));
    return b.cast(b.node("BitwiseXor", {word, shifted}), i64(b));
  }
  Value bits = bitsOf(b, x);
  Value shifted = b.concat({b.slice(bits, {shift}, {64}, {0}), b.ints(SmallVector<int64_t>(shift, 0))}, 0);
  Value isDifferent = b.cast(b.node("Not", {b.node("Equal", {bits, shifted})}), i64(b));
  // Each half by itself: runtimes sum i64 in f64.
  auto half = [&](int64_t first) {
    return sumAll(b, b.mul(b.slice(isDifferent, {first}, {first + 32}, {0}), b.ints(powersOfTwo())));
  };
  return b.add(half(0), b.mul(half(32), int64Of(b, uint64_t(1) << 32)));
}

/// splitmix64's output function of the seed, made odd.
Value squaresKey(NodeBuilder &b, Value seed) {
  Value z = b.add(seed, int64Of(b, 0x9e3779b97f4a7c15u));
  z = b.mul(xorShift(b, z, 30), int64Of(b, 0xbf58476d1ce4e5b9u));
  z = b.mul(xorShift(b, z, 27), int64Of(b, 0x94d049bb133111ebu));
  z = xorShift(b, z, 31);
  Value two = b.intScalar(2), parity = b.sub(z, b.mul(b.div(z, two), two)); // -1, 0 or 1
  return b.add(z, b.sub(b.intScalar(1), b.square(parity)));
}

/// squares32 at each place of a tensor of that shape, i64.
Value squares32(Node op, NodeBuilder &b, Value seed, Value shape) {
  Value key = squaresKey(b, b.cast(seed, i64(b)));
  Value first = int64Of(b, static_cast<uint64_t>(op.getInt("offset", 0)) << 40);
  Value counter = b.add(iotaOver(b, shape), first);

  Value x = b.mul(counter, key), y = x, z = b.add(y, key);
  auto squarePlus = [&](Value addend) { x = b.add(b.square(x), addend); };
  auto swapHalves = [&] { x = b.add(b.mul(lowHalf(b, x), int64Of(b, uint64_t(1) << 32)), highHalf(b, x)); };
  for (Value addend : {y, z, y}) {
    squarePlus(addend);
    swapHalves();
  }
  squarePlus(z);
  return highHalf(b, x);
}

LogicalResult dropoutMask(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, 9)))
    return failure();
  Value uniform = b.mulScalar(asDouble(b, squares32(op, b, in[0], in[1])), 0x1p-32);
  out.push_back(b.compare("GreaterOrEqual", uniform, asDouble(b, in[2])));
  return success();
}

LogicalResult randomUniform(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, 9)))
    return failure();
  Value upper = b.div(squares32(op, b, in[0], in[1]), b.intScalar(256)); // 24 bits, which f32 has room for.
  out.push_back(b.mulScalar(b.cast(upper, Float32Type::get(b.context())), 0x1p-24));
  return success();
}

} // namespace

ArrayRef<BodyEntry> stepBodies() {
  static const BodyEntry entries[] = {
      {"window_sum", windowSum},
      {"all_reduce", identities},
      {"rank", rank},
      {"scale_loss", scaleLoss},
      {"mark_scaled", markScaled},
      {"unscale", unscale},
      {"check_finite", checkFinite},
      {"update_loss_scale", updateLossScale},
      {"grad_norm", gradNorm},
      {"grad_stats", gradStats},
      {"clip_grad_norm", clipGradNorm},
      {"clip_grad_value", clipGradValue},
      {"keep_if", keepIf},
      {"barrier", barrier},
      {"offload", identities},
      {"fetch", identities},
      {"dropout_mask", dropoutMask},
      {"random_uniform", randomUniform},
  };
  return entries;
}

} // namespace recast::train
