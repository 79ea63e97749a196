#include "ir/onnx/ResizeAxes.h"

using namespace mlir;
namespace recast::onnx_ir {

namespace {

constexpr int64_t kOptionalInputsOpset = 13;

bool isEmpty(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.getRank() == 1 && type.getDimSize(0) == 0;
}

} // namespace

ResizeAxes::ResizeAxes(Node node, NodeBuilder &b)
    : node(node), b(b), isUpsample(node.is("Upsample")), isOld(isUpsample || node.sinceVersion() < 11) {
  scales = node.input(isOld ? 1 : 2);
  sizes = isOld ? Value() : node.input(3);
  if (scales && isEmpty(scales)) // Before opset 13 what is left out is an empty tensor.
    scales = nullptr;
  int64_t rank = typeOf(node.input(0)).getRank();
  if (auto given = node.getInts("axes"))
    axisList = *given;
  else
    axisList = llvm::to_vector(llvm::seq<int64_t>(0, rank));
  for (int64_t &axis : axisList)
    axis += axis < 0 ? rank : 0;
  if (TensorAttr constant = scales ? constantOf(scales) : TensorAttr())
    knownScales = asDoubles(constant);
  else if (auto given = node->getAttrOfType<DenseF32ArrayAttr>("scales"))
    knownScales = llvm::to_vector_of<double>(given.asArrayRef());
}

std::string ResizeAxes::problem() const {
  if (!scales && !sizes && !knownScales)
    return "it has neither scales nor sizes";
  if (!scales && node.getString("keep_aspect_ratio_policy", "stretch") != "stretch")
    return "sizes with keep_aspect_ratio_policy have no gradient rule; give the scales instead";
  return "";
}

bool ResizeAxes::keeps(size_t at) const {
  if (crops() && !hasWholeRegion(at))
    return false;
  if (scales || knownScales)
    return knownScales && (*knownScales)[at] == 1;
  auto axis = static_cast<unsigned>(axisList[at]);
  return sameDim(typeOf(node.input(0)), axis, typeOf(node.output()), axis);
}

int64_t ResizeAxes::repeats(size_t at) const {
  auto axis = static_cast<unsigned>(axisList[at]);
  int64_t from = typeOf(node.input(0)).getDimSize(axis), to = typeOf(node.output()).getDimSize(axis);
  if (node.getString("mode", "nearest") != "nearest" || ShapedType::isDynamic(from) || ShapedType::isDynamic(to) ||
      from == 0 || to % from || (!sizes && (!knownScales || (*knownScales)[at] * static_cast<double>(from) != to)))
    return 0;
  StringRef rounding = isOld ? "floor" : node.getString("nearest_mode", "round_prefer_floor"), mode = coordinates();
  // (o + 0.5) / k - 0.5 is less than 0.5 away from o / k rounded down, so both ways of rounding to nearest agree.
  bool isHalfPixel = mode == "half_pixel" || mode == "pytorch_half_pixel" || mode == "half_pixel_symmetric";
  bool isFloor = mode == "asymmetric" || mode == "tf_half_pixel_for_nn";
  return (isFloor && rounding == "floor") || (isHalfPixel && rounding.starts_with("round")) ? to / from : 0;
}

Value ResizeAxes::matrix(size_t at, Type elementType) const {
  SmallVector<NamedAttribute> attrs;
  for (StringRef name :
       {"mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "antialias", "exclude_outside"})
    if (Attribute value = node->getAttr(name))
      attrs.push_back(b.rewriter().getNamedAttr(name, value));
  return resizedIdentity(at, elementType, attrs);
}

// Rounded to the nearest, each output inside is one element of its row.
Value ResizeAxes::isInside(size_t at) const {
  Type element = Float32Type::get(b.context());
  Value picked = resizedIdentity(at, element,
                                 {b.attr("mode", "nearest"), b.attr("coordinate_transformation_mode", coordinates())});
  return b.cast(b.sum(picked, {0}, /*keepDims=*/false), IntegerType::get(b.context(), 1));
}

Value ResizeAxes::resizedIdentity(size_t at, Type elementType, ArrayRef<NamedAttribute> attrs) const {
  int64_t axis = axisList[at];
  Type computed = elementType.isF64() ? elementType : Type(Float32Type::get(b.context()));
  Value n = sizeOf(node.input(0), axis), m = sizeOf(node.output(), axis);
  SmallVector<Value> inputs{b.node("EyeLike", {b.filled(b.concat({n, n}, 0), computed, 0)})};
  Value scale = scales ? scaleOf(at) : Value();
  if (isOld) {
    inputs.push_back(scale);
  } else {
    Value none = b.opset() < kOptionalInputsOpset ? noFloats() : Value();
    inputs.push_back(crops() ? region(at) : none);
    inputs.push_back(scale ? scale : none);
    if (!scale)
      inputs.push_back(b.concat({n, m}, 0));
  }
  return b.cast(b.node(isUpsample ? "Upsample" : "Resize", inputs, attrs), elementType);
}

bool ResizeAxes::hasWholeRegion(size_t at) const {
  TensorAttr constant = node.input(1) ? constantOf(node.input(1)) : TensorAttr();
  auto bounds = constant ? asDoubles(constant) : std::nullopt;
  return bounds && (*bounds)[at] == 0 && (*bounds)[axisList.size() + at] == 1;
}

RankedTensorType ResizeAxes::typeOf(Value value) const { return cast<RankedTensorType>(value.getType()); }

Value ResizeAxes::sizeOf(Value value, int64_t axis) const {
  auto type = typeOf(value);
  if (!type.isDynamicDim(static_cast<unsigned>(axis)))
    return b.ints(type.getDimSize(static_cast<unsigned>(axis)));
  return b.node("Gather", {b.shapeOf(value), b.ints(axis)}, b.attr("axis", int64_t(0)));
}

StringRef ResizeAxes::coordinates() const {
  return isOld ? "asymmetric" : node.getString("coordinate_transformation_mode", "half_pixel");
}

Value ResizeAxes::noFloats() const {
  return b.constant(makeTensor(RankedTensorType::get({0}, Float32Type::get(b.context())), {}));
}

Value ResizeAxes::element(Value list, int64_t at) const {
  return b.node("Gather", {list, b.ints(at)}, b.attr("axis", int64_t(0)));
}

// [1, the axis's scale].
Value ResizeAxes::scaleOf(size_t at) const {
  if (!knownScales)
    return b.concat({b.unsqueeze(b.scalarLike(scales, 1), {0}), element(scales, static_cast<int64_t>(at))}, 0);
  auto type = RankedTensorType::get({2}, Float32Type::get(b.context()));
  SmallVector<char> bytes;
  encode(type.getElementType(), {1.0, (*knownScales)[at]}, bytes);
  return b.constant(makeTensor(type, bytes));
}

// The whole of the identity's rows, and the part of the axis that is cropped.
Value ResizeAxes::region(size_t at) const {
  Value roi = node.input(1);
  auto count = static_cast<int64_t>(axisList.size()), i = static_cast<int64_t>(at);
  return b.concat({b.unsqueeze(b.scalarLike(roi, 0), {0}), element(roi, i), b.unsqueeze(b.scalarLike(roi, 1), {0}),
                   element(roi, count + i)},
                  0);
}

} // namespace recast::onnx_ir
