// Resize and Upsample: the gradient is a product with the transposed matrix of ResizeAxes along each axis that changes.
// Whole repetitions of elements (nearest, by an integer) are sums over blocks instead.
#include "ir/onnx/ResizeAxes.h"
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// Sums over the blocks [k] that each element of these axes was repeated to.
Value sumBlocks(RuleContext &c, Value dy, ArrayRef<std::pair<int64_t, int64_t>> repeats) {
  NodeBuilder &b = c.b;
  auto x = rankedType(c.x());
  SmallVector<Value> parts;
  Ints blocks;
  for (int64_t axis = 0; axis < x.getRank(); ++axis) {
    parts.push_back(dimOf(b, c.x(), axis));
    for (auto [at, count] : repeats)
      if (at == axis) {
        blocks.push_back(static_cast<int64_t>(parts.size()));
        parts.push_back(b.ints(count));
      }
  }
  return b.sum(b.reshape(dy, joinShape(b, parts)), blocks, /*keepDims=*/false);
}

// The product of dy with W^T along an axis.
Value multiplyAlong(NodeBuilder &b, Value dy, Value matrix, int64_t axis, int64_t rank) {
  if (axis == rank - 2)
    return b.node("MatMul", {matrix, dy});
  Value turned = b.matrixTranspose(matrix);
  if (axis == rank - 1)
    return b.node("MatMul", {dy, turned});
  Ints order = otherAxes(rank, {});
  std::swap(order[static_cast<size_t>(axis)], order.back());
  return b.transpose(b.node("MatMul", {b.transpose(dy, order), turned}), order);
}

constexpr int64_t kEyeLikeOpset = 9; // Makes the matrices.

LogicalResult resizeGrad(RuleContext &c) {
  if (!c.needs(0))
    return success();
  if (!rankedType(c.x()) || !rankedType(c.y()))
    return c.refuse("the gradient needs the rank of the input");
  ResizeAxes resized(c.node, c.b);
  if (std::string problem = resized.problem(); !problem.empty())
    return c.refuse(problem);
  int64_t rank = rankedType(c.x()).getRank();
  Value dx = c.dy();
  SmallVector<std::pair<int64_t, int64_t>> blocks;
  for (auto [at, axis] : llvm::enumerate(resized.axes())) {
    if (resized.keeps(at))
      continue;
    if (int64_t count = resized.repeats(at); count > 0)
      blocks.emplace_back(axis, count);
    else if (c.b.opset() < kEyeLikeOpset)
      return c.refuse("before opset 9 only whole repetitions of elements have a gradient rule");
    else
      dx = multiplyAlong(c.b, dx, resized.matrix(at, elementTypeOf(dx)), axis, rank);
  }
  if (!blocks.empty())
    dx = sumBlocks(c, dx, blocks);
  c.add(0, typed(dx, c.x()));
  return success();
}

const Rule kRules[] = {
    {"", "Resize", 10, kNewest, Kind::Rule, resizeGrad, 1},
    {"", "Upsample", 7, kNewest, Kind::Rule, resizeGrad, 1},
};

} // namespace

ArrayRef<Rule> resizeRules() { return kRules; }

} // namespace recast::gradient
