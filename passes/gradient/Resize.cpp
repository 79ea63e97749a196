// Resize and Upsample. Both are linear, and separable: along an axis of n elements that become m, y = W^T x with a
// matrix W [n, m]. Row i of W is what the operator itself makes of the i-th unit vector, whatever its mode and its
// coordinates, so W is Resize(identity): a constant once the sizes are. The gradient is a product with W along each
// axis that changes. Whole repetitions of elements (nearest, by an integer) are sums over blocks instead.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

constexpr int64_t kOptionalInputsOpset = 13;

// What the node says about its axes, whatever its version.
struct Resizing {
  explicit Resizing(RuleContext &c) : c(c), b(c.b), isUpsample(c.node.is("Upsample")) {
    isOld = isUpsample || c.node.sinceVersion() < 11;
    scales = c.x(isOld ? 1 : 2);
    sizes = isOld ? Value() : c.x(3);
    // Before opset 13 what is left out is an empty tensor.
    if (scales && sizes)
      scales = isEmpty(scales) ? Value() : scales, sizes = scales ? Value() : sizes;
    int64_t rank = rankedType(c.x()).getRank();
    axes = c.node.getInts("axes").value_or(otherAxes(rank, {}));
    for (int64_t &axis : axes)
      axis = fromFront(axis, rank);
    if (TensorAttr constant = scales ? constantOf(scales) : TensorAttr())
      knownScales = asDoubles(constant);
  }

  static bool isEmpty(Value value) {
    auto type = rankedType(value);
    return type && type.getRank() == 1 && type.getDimSize(0) == 0;
  }

  StringRef coordinates() const {
    return isOld ? "asymmetric" : c.node.getString("coordinate_transformation_mode", "half_pixel");
  }
  bool crops() const { return coordinates() == "tf_crop_and_resize"; }

  // True where axis `at` of `axes` stays as it is.
  bool keeps(size_t at) const {
    if (crops())
      return false;
    if (scales)
      return knownScales && (*knownScales)[at] == 1;
    return sameDim(rankedType(c.x()), axes[at], rankedType(c.y()), axes[at]);
  }

  // How often each element of the axis is repeated, where the operator does nothing else; otherwise 0.
  int64_t repeats(size_t at) const {
    int64_t from = rankedType(c.x()).getDimSize(axes[at]), to = rankedType(c.y()).getDimSize(axes[at]);
    if (c.node.getString("mode", "nearest") != "nearest" || ShapedType::isDynamic(from) || ShapedType::isDynamic(to) ||
        from == 0 || to % from || (scales && (!knownScales || (*knownScales)[at] * from != to)))
      return 0;
    StringRef rounding = isOld ? "floor" : c.node.getString("nearest_mode", "round_prefer_floor");
    // (o + 0.5) / k - 0.5 is less than 0.5 away from o / k rounded down, so both ways of rounding to nearest agree.
    bool isBlocks = coordinates() == "asymmetric" || coordinates() == "tf_half_pixel_for_nn"
                        ? rounding == "floor"
                        : isHalfPixel(coordinates()) && rounding.starts_with("round");
    return isBlocks ? to / from : 0;
  }

  // W [n, m] of an axis, of dy's type.
  Value matrix(size_t at) const {
    int64_t axis = axes[at];
    Type element = elementTypeOf(c.dy());
    Type computed = element.isF64() ? element : Type(Float32Type::get(b.context()));
    Value n = dimOf(b, c.x(), axis), m = dimOf(b, c.y(), axis);
    Value identity = b.node("EyeLike", {b.filled(b.concat({n, n}, 0), computed, 0)});
    SmallVector<NamedAttribute> attrs;
    for (StringRef name : {"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "antialias",
                           "exclude_outside"})
      if (Attribute value = c.node->getAttr(name))
        attrs.push_back(b.rewriter().getNamedAttr(name, value));
    SmallVector<Value> inputs{identity};
    Value scale = scales ? pair(scales, 1, at) : Value();
    if (isOld) {
      inputs.push_back(scale);
    } else {
      Value none = b.opset() < kOptionalInputsOpset ? noFloats() : Value();
      inputs.push_back(crops() ? region(at) : none);
      inputs.push_back(scale ? scale : none);
      if (!scale)
        inputs.push_back(b.concat({n, m}, 0));
    }
    return b.cast(b.node(isUpsample ? "Upsample" : "Resize", inputs, attrs), element);
  }

  RuleContext &c;
  NodeBuilder &b;
  bool isUpsample, isOld = false;
  Value scales, sizes; ///< One of them.
  Ints axes;           ///< That the entries of either stand for.
  std::optional<SmallVector<double>> knownScales;

private:
  static bool isHalfPixel(StringRef mode) {
    return mode == "half_pixel" || mode == "pytorch_half_pixel" || mode == "half_pixel_symmetric";
  }
  Value noFloats() const {
    return b.constant(makeTensor(RankedTensorType::get({0}, Float32Type::get(b.context())), {}));
  }
  Value element(Value list, int64_t at) const {
    return b.node("Gather", {list, b.ints(at)}, b.attr("axis", int64_t(0)));
  }
  // [first, list[at]].
  Value pair(Value list, double first, size_t at) const {
    if (knownScales) {
      SmallVector<char> bytes;
      encode(Float32Type::get(b.context()), {first, (*knownScales)[at]}, bytes);
      return b.constant(makeTensor(RankedTensorType::get({2}, Float32Type::get(b.context())), bytes));
    }
    return b.concat({b.unsqueeze(b.scalarLike(list, first), {0}), element(list, static_cast<int64_t>(at))}, 0);
  }
  // The whole of the identity's rows, and the part of the axis that is cropped.
  Value region(size_t at) const {
    Value roi = c.x(1);
    auto count = static_cast<int64_t>(axes.size()), i = static_cast<int64_t>(at);
    return b.concat({b.unsqueeze(b.scalarLike(roi, 0), {0}), element(roi, i), b.unsqueeze(b.scalarLike(roi, 1), {0}),
                     element(roi, count + i)},
                    0);
  }
};

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

LogicalResult resizeGrad(RuleContext &c) {
  if (!c.needs(0))
    return success();
  if (!rankedType(c.x()) || !rankedType(c.y()))
    return c.refuse("the gradient needs the rank of the input");
  Resizing r(c);
  if (!r.scales && !r.sizes)
    return c.refuse("it has neither scales nor sizes");
  if (r.sizes && c.node.getString("keep_aspect_ratio_policy", "stretch") != "stretch")
    return c.refuse("sizes with keep_aspect_ratio_policy have no gradient rule; give the scales instead");
  int64_t rank = rankedType(c.x()).getRank();
  Value dx = c.dy();
  SmallVector<std::pair<int64_t, int64_t>> blocks;
  for (size_t at = 0; at < r.axes.size(); ++at) {
    if (r.keeps(at))
      continue;
    if (int64_t count = r.repeats(at); count > 0)
      blocks.emplace_back(r.axes[at], count);
    else
      dx = multiplyAlong(c.b, dx, r.matrix(at), r.axes[at], rank);
  }
  if (!blocks.empty())
    dx = sumBlocks(c, dx, blocks);
  c.add(0, typed(dx, c.x()));
  return success();
}

const Rule kRules[] = {
    {"", "Resize", 10, kNewest, Kind::Rule, resizeGrad, 1},
    {"", "Upsample", 9, kNewest, Kind::Rule, resizeGrad, 1},
};

} // namespace

ArrayRef<Rule> resizeRules() { return kRules; }

} // namespace recast::gradient
