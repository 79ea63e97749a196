#include "ir/train/BodyHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {

Type computeType(Type elementType) {
  return elementType.isF64() ? elementType : Float32Type::get(elementType.getContext());
}

Value widen(NodeBuilder &b, Value x) { return b.cast(x, computeType(elementTypeOf(x))); }

LogicalResult needsOpset(Node op, NodeBuilder &b, int64_t opset) {
  if (b.opset() >= opset)
    return success();
  return op->emitError() << "node " << op.describe() << " needs opset " << opset << " or later to be written, and the "
                         << "model imports " << b.opset() << ": convert the model to a newer opset";
}

RankedTensorType rankedType(Node op, Value x) {
  auto type = dyn_cast<RankedTensorType>(x.getType());
  if (!type)
    op->emitError() << "node " << op.describe() << " has an operand of unknown rank";
  return type;
}

Value select(NodeBuilder &b, Value condition, Value a, Value c) {
  Type type = elementTypeOf(a);
  // Where came in opset 9, and runtimes have it for these types only.
  if (b.opset() >= 9 && (type.isF64() || type.isF32() || type.isF16() || type.isInteger(64) || type.isInteger(32)))
    return b.where(condition, a, c);
  Value both = b.concat({b.unsqueeze(c, {0}), b.unsqueeze(a, {0})}, 0);
  return b.node("Gather", {both, b.cast(condition, b.rewriter().getI64Type())}, b.attr("axis", int64_t(0)));
}

Value sumAll(NodeBuilder &b, Value x) { return b.sum(x, {}, /*keepDims=*/false); }

Value sizeOf(NodeBuilder &b, Value x, int64_t axis) {
  auto type = dyn_cast<RankedTensorType>(x.getType());
  if (type && !type.isDynamicDim(axis))
    return b.ints({type.getDimSize(axis)});
  return b.slice(b.node("Shape", {x}), {axis}, {axis + 1}, {0});
}

Value elementCount(NodeBuilder &b, Value x) {
  auto type = dyn_cast<RankedTensorType>(x.getType());
  if (type && type.hasStaticShape())
    return b.ints({type.getNumElements()});
  return b.unsqueeze(b.node("Size", {x}), {0});
}

Value joinShape(NodeBuilder &b, ArrayRef<Value> parts) {
  SmallVector<int64_t> sizes;
  SmallVector<Value> kept;
  bool allConstant = true;
  for (Value part : parts) {
    auto known = constantInts(part);
    allConstant &= known.has_value();
    if (known)
      sizes.append(*known);
    if (!known || !known->empty())
      kept.push_back(part);
  }
  if (allConstant)
    return b.ints(sizes);
  return kept.size() == 1 ? kept.front() : b.concat(kept, 0);
}

Value toShape(NodeBuilder &b, Value x, Value shape) {
  auto sizes = constantInts(shape);
  if (b.opset() < 14 || (sizes && !llvm::is_contained(*sizes, 0)))
    return b.reshape(x, shape);
  return b.node("Reshape", {x, shape}, b.attr("allowzero", int64_t(1)));
}

static Value asScalar(NodeBuilder &b, Value size) {
  auto known = constantInts(size);
  return known ? b.intScalar(known->front()) : b.squeeze(size, {0});
}

Value iota(NodeBuilder &b, Value size) {
  if (b.opset() >= 11)
    return b.node("Range", {b.intScalar(0), asScalar(b, size), b.intScalar(1)});
  return b.reshape(b.node("NonZero", {b.filled(size, b.rewriter().getI64Type(), 1)}), {-1});
}

Value iotaOver(NodeBuilder &b, Value shape) {
  if (auto sizes = constantInts(shape)) {
    int64_t count = 1;
    for (int64_t size : *sizes)
      count *= size;
    return toShape(b, iota(b, b.ints({count})), shape);
  }
  return toShape(b, iota(b, b.reduce("ReduceProd", shape, {0}, /*keepDims=*/true)), shape);
}

// `dims`: where they are 1, x is summed; other sizes do not matter.
static Value reduceToDims(NodeBuilder &b, Value x, ArrayRef<int64_t> dims) {
  auto type = cast<RankedTensorType>(x.getType());
  SmallVector<int64_t> leading, ones;
  int64_t skip = type.getRank() - static_cast<int64_t>(dims.size());
  for (int64_t i = 0; i < skip; ++i)
    leading.push_back(i);
  for (auto [i, size] : llvm::enumerate(dims))
    if (size == 1 && type.getDimSize(skip + i) != 1)
      ones.push_back(i);
  if (!leading.empty())
    x = b.sum(x, leading, /*keepDims=*/false);
  return ones.empty() ? x : b.sum(x, ones, /*keepDims=*/true);
}

Value reduceToShape(NodeBuilder &b, Value x, Value shape) {
  if (auto dims = constantInts(shape))
    return reduceToDims(b, x, *dims);
  int64_t rank = cast<RankedTensorType>(x.getType()).getRank();
  int64_t targetRank = cast<RankedTensorType>(shape.getType()).getDimSize(0);
  if (targetRank == 0)
    return sumAll(b, x);
  // Every axis of x is split in two: the part that was broadcast, of x's size or 1, and the part that stays.
  Value target = joinShape(b, {b.ints(SmallVector<int64_t>(rank - targetRank, 1)), shape});
  Value isOne = b.cast(b.node("Equal", {target, b.ints({1})}), b.rewriter().getI64Type());
  // 1 + isOne * (size - 1): the size where the target is 1, else 1.
  Value summed = b.add(b.ints({1}), b.mul(isOne, b.sub(b.shapeOf(x), b.ints({1}))));
  Value pairs = b.concat({b.unsqueeze(summed, {1}), b.unsqueeze(target, {1})}, 1);
  SmallVector<int64_t> axes;
  for (int64_t i = 0; i < rank; ++i)
    axes.push_back(2 * i);
  Value sum = b.sum(toShape(b, x, b.reshape(pairs, {2 * rank})), axes, /*keepDims=*/false);
  return rank == targetRank ? sum : toShape(b, sum, shape);
}

Value reduceToLike(NodeBuilder &b, Value x, Value like) {
  auto from = cast<RankedTensorType>(x.getType()), to = cast<RankedTensorType>(like.getType());
  int64_t skip = from.getRank() - to.getRank();
  for (int64_t i = 0; i < to.getRank(); ++i)
    if (to.isDynamicDim(i) && !sameDim(from, i + skip, to, i))
      return reduceToShape(b, x, b.shapeOf(like));
  return reduceToDims(b, x, to.getShape());
}

Value scatterDistinct(NodeBuilder &b, Value size, Value indices, Value updates) {
  return b.node(b.opset() >= 11 ? "ScatterElements" : "Scatter",
                {b.filled(size, elementTypeOf(updates), 0), indices, updates}, b.attr("axis", int64_t(0)));
}

} // namespace recast::train
