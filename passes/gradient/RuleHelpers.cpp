#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

Ints otherAxes(int64_t rank, ArrayRef<int64_t> axes) {
  Ints others;
  for (int64_t axis = 0; axis < rank; ++axis)
    if (llvm::none_of(axes, [&](int64_t a) { return fromFront(a, rank) == axis; }))
      others.push_back(axis);
  return others;
}

std::optional<Ints> knownInts(NodeBuilder &b, Value value) {
  if (auto ints = constantInts(value))
    return ints;
  const onnx::TensorShapeProto *known = b.inference().knownInts(value);
  if (!known)
    return std::nullopt;
  Ints ints;
  for (const auto &dim : known->dim()) {
    if (!dim.has_dim_value())
      return std::nullopt;
    ints.push_back(dim.dim_value());
  }
  return ints;
}

std::optional<Ints> listOf(RuleContext &c, StringRef attribute, unsigned input) {
  if (auto ints = c.node.getInts(attribute))
    return ints;
  return c.x(input) ? knownInts(c.b, c.x(input)) : std::nullopt;
}

Value listValue(RuleContext &c, StringRef attribute, unsigned input) {
  if (auto ints = c.node.getInts(attribute))
    return c.b.ints(*ints);
  return c.x(input);
}

Value equal(NodeBuilder &b, Value lhs, Value rhs) {
  if (b.opset() >= 11)
    return b.node("Equal", {lhs, rhs});
  return b.node("Not", {b.node("Or", {b.node("Less", {lhs, rhs}), b.node("Greater", {lhs, rhs})})});
}

Value equalTo(NodeBuilder &b, Value x, double value) { return equal(b, x, b.scalarLike(x, value)); }

Value both(NodeBuilder &b, Value lhs, Value rhs) { return b.node("And", {lhs, rhs}); }

Value choose(NodeBuilder &b, Value condition, Value whenTrue, Value whenFalse) {
  if (b.opset() >= 9)
    return b.where(condition, whenTrue, whenFalse);
  return b.add(select(b, condition, whenTrue), unless(b, condition, whenFalse));
}

Value select(NodeBuilder &b, Value condition, Value value) {
  if (b.opset() >= 9)
    return b.where(condition, value, b.scalarLike(value, 0));
  return b.mul(b.castLike(condition, value), value);
}

Value unless(NodeBuilder &b, Value condition, Value value) {
  if (b.opset() >= 9)
    return b.where(condition, b.scalarLike(value, 0), value);
  return select(b, b.node("Not", {condition}), value);
}

Value signOf(NodeBuilder &b, Value x) {
  if (b.opset() >= 9)
    return b.node("Sign", {x});
  Value zero = b.scalarLike(x, 0);
  return b.sub(b.castLike(b.node("Greater", {x, zero}), x), b.castLike(b.node("Less", {x, zero}), x));
}

// ConstantOfShape exists since opset 9, and for bf16 since 20.
Value dimOf(NodeBuilder &b, Value x, int64_t axis) {
  auto type = rankedType(x);
  if (type && !type.isDynamicDim(axis))
    return b.ints(type.getDimSize(axis));
  return b.node("Gather", {b.shapeOf(x), b.ints(axis)}, b.attr("axis", int64_t(0)));
}

Value joinShape(NodeBuilder &b, ArrayRef<Value> parts) {
  SmallVector<Value> merged;
  Ints pending;
  auto flush = [&] {
    if (!pending.empty())
      merged.push_back(b.ints(pending));
    pending.clear();
  };
  for (Value part : parts) {
    if (auto ints = constantInts(part)) {
      pending.append(*ints);
      continue;
    }
    flush();
    merged.push_back(part);
  }
  if (merged.empty())
    return b.ints(pending);
  flush();
  return merged.size() == 1 ? merged.front() : b.concat(merged, 0);
}

Value typed(Value gradient, Value like) {
  auto known = rankedType(gradient), wanted = rankedType(like);
  if (!wanted || !gradient.getDefiningOp() || !elementTypeOf(gradient))
    return gradient;
  if (!known || (!known.hasStaticShape() && known.getRank() == wanted.getRank()))
    gradient.setType(withElementType(wanted, elementTypeOf(gradient)));
  return gradient;
}

Value reshapeLike(NodeBuilder &b, Value gradient, Value like) {
  auto type = rankedType(like);
  // A 0 in Reshape's shape copies a size, unless allowzero says otherwise; an open size may be 0.
  bool mayHaveZero = !type || !type.hasStaticShape() || llvm::is_contained(type.getShape(), 0);
  if (mayHaveZero && b.opset() >= 14)
    return typed(b.node("Reshape", {gradient, b.shapeOf(like)}, b.attr("allowzero", int64_t(1))), like);
  return typed(b.reshape(gradient, b.shapeOf(like)), like);
}

Value expandLike(NodeBuilder &b, Value gradient, Value like) {
  if (gradient.getType() == like.getType() && rankedType(like) && rankedType(like).hasStaticShape())
    return gradient;
  if (b.opset() >= 8 || !rankedType(like) || !rankedType(like).hasStaticShape())
    return typed(b.expand(gradient, b.shapeOf(like)), like);
  return b.add(gradient, b.constant(splatTensor(withoutSymbols(rankedType(like)), 0)));
}

Value padZeros(NodeBuilder &b, Value x, ArrayRef<int64_t> pads) {
  return b.opset() >= 11 ? b.node("Pad", {x, b.ints(pads)}) : b.node("Pad", {x}, b.attr("pads", pads));
}

// The number of elements, 0-d.
static Value countOf(NodeBuilder &b, Value x) {
  auto type = rankedType(x);
  return type && type.hasStaticShape() ? b.intScalar(type.getNumElements()) : b.node("Size", {x});
}

Value flatIndices(NodeBuilder &b, Value x) {
  return reshapeLike(b, b.node("Range", {b.intScalar(0), countOf(b, x), b.intScalar(1)}), x);
}

Value scatterFlat(NodeBuilder &b, Value dy, Value flat, Value x) {
  Value all = b.ints(-1);
  Value sums = b.node("train.gather_grad", {b.reshape(dy, all), b.reshape(flat, all), b.unsqueeze(countOf(b, x), {0})},
                      b.attr("axis", int64_t(0)));
  return reshapeLike(b, sums, x);
}

} // namespace recast::gradient
