// Operators that move elements: the gradient moves them back, and sums where one element went to several places.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

LogicalResult reshapeGrad(RuleContext &c) {
  if (c.needs(0))
    c.add(0, reshapeLike(c.b, c.dy(), c.x()));
  return success();
}

LogicalResult squeezeGrad(RuleContext &c) {
  std::optional<Ints> axes = listOf(c, "axes", 1);
  if (!axes || axes->empty())
    return reshapeGrad(c);
  if (c.needs(0))
    c.add(0, typed(c.b.unsqueeze(c.dy(), *axes), c.x()));
  return success();
}

LogicalResult unsqueezeGrad(RuleContext &c) {
  std::optional<Ints> axes = listOf(c, "axes", 1);
  if (!axes)
    return reshapeGrad(c);
  if (c.needs(0))
    c.add(0, typed(c.b.squeeze(c.dy(), *axes), c.x()));
  return success();
}

LogicalResult transposeGrad(RuleContext &c) {
  if (!c.needs(0))
    return success();
  std::optional<Ints> perm = c.node.getInts("perm");
  if (!perm) {
    c.add(0, c.b.node("Transpose", {c.dy()}));
    return success();
  }
  Ints inverse(perm->size());
  for (auto [i, axis] : llvm::enumerate(*perm))
    inverse[axis] = static_cast<int64_t>(i);
  c.add(0, typed(c.b.transpose(c.dy(), inverse), c.x()));
  return success();
}

Value sliceAt(NodeBuilder &b, Value x, Value start, Value end, int64_t axis) {
  auto first = constantInts(start), last = constantInts(end);
  return first && last ? b.slice(x, *first, *last, axis) : b.node("Slice", {x, start, end, b.ints(axis)});
}

LogicalResult concatGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  unsigned n = c.node.numInputs();
  if (n == 1) {
    if (c.needs(0))
      c.add(0, c.dy());
    return success();
  }
  auto type = rankedType(c.y());
  if (!type)
    return c.refuse("the gradient of Concat needs the rank of its inputs");
  int64_t axis = fromFront(c.node.getInt("axis", 1), type.getRank());
  Value offset = b.ints(0);
  for (unsigned i = 0; i < n; ++i) {
    if (llvm::none_of(llvm::seq(i, n), [&](unsigned later) { return c.needs(later); }))
      break;
    Value size = dimOf(b, c.x(i), axis), end;
    auto from = constantInts(offset), length = constantInts(size);
    end = from && length ? b.ints(from->front() + length->front()) : b.add(offset, size);
    if (b.opset() < 10 && !constantInts(end))
      return c.refuse("before opset 10 the gradient of Concat needs the sizes of its inputs along the axis");
    if (c.needs(i))
      c.add(i, typed(sliceAt(b, c.dy(), offset, end, axis), c.x(i)));
    offset = end;
  }
  return success();
}

// The size of part i, as i64[1]; null where it is not known. Parts are even without `split`, the last one smaller.
Value splitSize(RuleContext &c, unsigned part, int64_t axis) {
  if (!isAbsent(c.y(part)) && rankedType(c.y(part)))
    return dimOf(c.b, c.y(part), axis);
  if (auto sizes = listOf(c, "split", 1))
    return c.b.ints((*sizes)[part]);
  if (c.x(1))
    return c.b.node("Gather", {c.x(1), c.b.ints(part)}, c.b.attr("axis", int64_t(0)));
  auto type = rankedType(c.x());
  if (type.isDynamicDim(axis))
    return {};
  int64_t parts = c.node.numOutputs(), whole = type.getDimSize(axis), chunk = (whole + parts - 1) / parts;
  return c.b.ints(std::min(chunk, whole - chunk * static_cast<int64_t>(part)));
}

// Outputs without a gradient give zeros.
LogicalResult splitGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  auto type = rankedType(c.x());
  if (!type)
    return c.refuse("the gradient of Split needs the rank of its input");
  int64_t axis = fromFront(c.node.getInt("axis", 0), type.getRank());
  SmallVector<Value> parts;
  for (unsigned i = 0; i < c.node.numOutputs(); ++i) {
    if (c.dy(i)) {
      parts.push_back(c.dy(i));
      continue;
    }
    SmallVector<Value> dims;
    for (int64_t d = 0; d < type.getRank(); ++d)
      dims.push_back(d == axis ? splitSize(c, i, axis) : dimOf(b, c.x(), d));
    if (!dims[axis])
      return c.refuse("the gradient needs the size of output " + Twine(i) + ", which is left out");
    parts.push_back(b.filled(joinShape(b, dims), type.getElementType(), 0));
  }
  c.add(0, parts.size() == 1 ? parts.front() : typed(b.concat(parts, axis), c.x()));
  return success();
}

// Where every step is 1 and the sizes are static, the pads that put dy back into x; null otherwise.
std::optional<Ints> padsOfSlice(RuleContext &c) {
  auto type = rankedType(c.x()), result = rankedType(c.y());
  auto starts = listOf(c, "starts", 1), axes = listOf(c, "axes", 3), steps = listOf(c, "steps", 4);
  if (!type || !result || !starts || (c.x(3) && !axes) || (c.x(4) && !steps))
    return std::nullopt;
  if (steps && llvm::any_of(*steps, [](int64_t step) { return step != 1; }))
    return std::nullopt;
  int64_t rank = type.getRank();
  Ints pads(2 * rank, 0);
  for (auto [i, start] : llvm::enumerate(*starts)) {
    int64_t axis = axes ? fromFront((*axes)[i], rank) : static_cast<int64_t>(i);
    if (type.isDynamicDim(axis) || result.isDynamicDim(axis))
      return std::nullopt;
    int64_t size = type.getDimSize(axis);
    pads[axis] = std::clamp<int64_t>(start < 0 ? start + size : start, 0, size);
    pads[rank + axis] = size - pads[axis] - result.getDimSize(axis);
    if (pads[rank + axis] < 0)
      return std::nullopt; // An empty slice.
  }
  return pads;
}

LogicalResult sliceGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  if (auto pads = padsOfSlice(c)) {
    bool isAll = llvm::all_of(*pads, [](int64_t pad) { return pad == 0; });
    c.add(0, isAll ? c.dy() : typed(padZeros(b, c.dy(), *pads), c.x()));
    return success();
  }
  SmallVector<Value> operands{c.dy(), b.shapeOf(c.x()), listValue(c, "starts", 1), listValue(c, "ends", 2)};
  Value axes = listValue(c, "axes", 3), steps = c.x(4);
  if (axes || steps)
    operands.push_back(axes);
  if (steps)
    operands.push_back(steps);
  c.add(0, typed(b.node("train.slice_grad", operands), c.x()));
  return success();
}

// Padding with a constant is undone by a slice; the other modes repeat elements.
LogicalResult padGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  StringRef mode = c.node.getString("mode", "constant");
  auto type = rankedType(c.x());
  auto pads = listOf(c, "pads", 1), axes = listOf(c, "axes", 3);
  bool isPlain = mode == "constant" && type && pads && (!c.x(3) || axes) &&
                 llvm::none_of(*pads, [](int64_t pad) { return pad < 0; });
  if (!isPlain) {
    SmallVector<Value> operands{c.dy(), b.shapeOf(c.x()), listValue(c, "pads", 1)};
    if (c.x(3))
      operands.push_back(c.x(3));
    c.add(0, typed(b.node("train.pad_grad", operands, b.attr("mode", mode)), c.x()));
    return success();
  }
  size_t n = pads->size() / 2;
  Ints starts, ends, padded;
  for (size_t i = 0; i < n; ++i) {
    int64_t begin = (*pads)[i], end = (*pads)[n + i];
    if (begin == 0 && end == 0)
      continue;
    padded.push_back(axes ? fromFront((*axes)[i], type.getRank()) : static_cast<int64_t>(i));
    starts.push_back(begin);
    ends.push_back(end == 0 ? INT64_MAX : -end);
  }
  c.add(0, padded.empty() ? c.dy() : typed(b.slice(c.dy(), starts, ends, padded), c.x()));
  return success();
}

LogicalResult expandGrad(RuleContext &c) {
  if (c.needs(0))
    c.addReduced(0, c.dy());
  return success();
}

// dy as [r0, d0, r1, d1, ...], summed over the repeats r.
LogicalResult tileGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  auto type = rankedType(c.x());
  if (!type)
    return c.refuse("the gradient of Tile needs the rank of its input");
  int64_t rank = type.getRank();
  std::optional<Ints> repeats = knownInts(b, c.x(1));
  SmallVector<Value> shape;
  Ints summed;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (!repeats || (*repeats)[axis] != 1) {
      summed.push_back(static_cast<int64_t>(shape.size()));
      shape.push_back(repeats ? b.ints((*repeats)[axis])
                              : b.node("Gather", {c.x(1), b.ints(axis)}, b.attr("axis", int64_t(0))));
    }
    shape.push_back(dimOf(b, c.x(), axis));
  }
  if (summed.empty())
    c.add(0, c.dy());
  else
    c.add(0, typed(b.sum(b.reshape(c.dy(), joinShape(b, shape)), summed, /*keepDims=*/false), c.x()));
  return success();
}

LogicalResult triluGrad(RuleContext &c) {
  if (c.needs(0)) {
    SmallVector<Value> operands{c.dy()};
    if (c.x(1))
      operands.push_back(c.x(1));
    c.add(0, c.b.node("Trilu", operands, c.b.attr("upper", c.node.getInt("upper", 1))));
  }
  return success();
}

LogicalResult depthToSpaceGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  int64_t block = c.node.getInt("blocksize", 1);
  if (c.node.getString("mode", "DCR") == "DCR") {
    c.add(0, typed(b.node("SpaceToDepth", {c.dy()}, b.attr("blocksize", block)), c.x()));
    return success();
  }
  // CRD: [n, c, h s, w s] -> [n, c, h, s, w, s] -> [n, c, s, s, h, w] -> [n, c s s, h, w]
  Value x = c.x(), side = b.ints(block);
  Value shape = joinShape(b, {dimOf(b, c.dy(), 0), dimOf(b, c.dy(), 1), dimOf(b, x, 2), side, dimOf(b, x, 3), side});
  c.add(0, reshapeLike(b, b.transpose(b.reshape(c.dy(), shape), Ints{0, 1, 3, 5, 2, 4}), x));
  return success();
}

// The order of SpaceToDepth's channels is what DepthToSpace calls DCR, its default and, before version 11, its only
// one.
LogicalResult spaceToDepthGrad(RuleContext &c) {
  if (c.needs(0))
    c.add(0, typed(c.b.node("DepthToSpace", {c.dy()}, c.b.attr("blocksize", c.node.getInt("blocksize", 1))), c.x()));
  return success();
}

const Rule kRules[] = {
    {"", "Concat", 4, kNewest, Kind::Rule, concatGrad},
    {"", "ConstantOfShape", 9, kNewest, Kind::Zero},
    {"", "DepthToSpace", 1, kNewest, Kind::Rule, depthToSpaceGrad, 1},
    {"", "Expand", 8, kNewest, Kind::Rule, expandGrad, 1},
    {"", "EyeLike", 9, kNewest, Kind::Zero},
    {"", "Flatten", 1, kNewest, Kind::Rule, reshapeGrad, 1},
    {"", "OneHot", 9, kNewest, Kind::Zero},
    {"", "Pad", 2, kNewest, Kind::Rule, padGrad, 1},
    {"", "Range", 11, kNewest, Kind::Zero},
    {"", "Reshape", 5, kNewest, Kind::Rule, reshapeGrad, 1},
    {"", "Shape", 1, kNewest, Kind::Zero},
    {"", "Size", 1, kNewest, Kind::Zero},
    {"", "Slice", 1, kNewest, Kind::Rule, sliceGrad, 1},
    {"", "SpaceToDepth", 1, kNewest, Kind::Rule, spaceToDepthGrad, 1},
    {"", "Split", 2, kNewest, Kind::Rule, splitGrad, 1},
    {"", "Squeeze", 1, kNewest, Kind::Rule, squeezeGrad, 1},
    {"", "Tile", 6, kNewest, Kind::Rule, tileGrad, 1},
    {"", "Transpose", 1, kNewest, Kind::Rule, transposeGrad, 1},
    {"", "Trilu", 14, kNewest, Kind::Rule, triluGrad, 1},
    {"", "Unsqueeze", 1, kNewest, Kind::Rule, unsqueezeGrad, 1},
};

} // namespace

ArrayRef<Rule> shapeRules() { return kRules; }

} // namespace recast::gradient
