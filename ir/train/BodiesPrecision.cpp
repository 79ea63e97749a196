// Bodies of operators that round: what their runtimes need no bits for.
#include "ir/train/BodyHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

constexpr double kLargestF32 = 0x1.fffffep+127, kSmallestNormalF32 = 0x1p-126;

// To nearest even on 10 mantissa bits, by rounding in f64, where every f32 and every result is a normal number.
// Veltkamp's splitting, c = (2^42 + 1) x and c - (c - x), keeps the upper 53 - 42 = 11 bits; its ties go to even where
// x has at most 24 bits. Below f32's normal range tf32 has the fixed step 2^-136, to which adding and taking off 1.5 *
// 2^(52 - 136) rounds. What rounds beyond the largest f32 becomes infinite in the cast back.
LogicalResult roundTf32(Node op, NodeBuilder &b, ArrayRef<Value> in, SmallVectorImpl<Value> &out) {
  if (failed(needsOpset(op, b, 9)))
    return failure();
  Value x = b.cast(in[0], b.rewriter().getF64Type()), size = b.node("Abs", {x});
  Value scaled = b.mulScalar(x, 0x1p+42 + 1);
  Value normal = b.sub(scaled, b.sub(scaled, x));
  Value shift = b.scalarLike(x, 0x1.8p-84);
  Value subnormal = b.sub(b.add(x, shift), shift);
  Value rounded = b.where(b.node("Less", {size, b.scalarLike(x, kSmallestNormalF32)}), subnormal, normal);
  // Infinities and NaN stay: a comparison with NaN is false.
  Value isFinite = b.node("Less", {size, b.scalarLike(x, 2 * kLargestF32)});
  out.push_back(b.castLike(b.where(isFinite, rounded, x), in[0]));
  return success();
}

} // namespace

ArrayRef<BodyEntry> precisionBodies() {
  static const BodyEntry entries[] = {{"round_tf32", roundTf32}};
  return entries;
}

} // namespace recast::train
