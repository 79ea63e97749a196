// Convolutions and pools. The gradient operators take explicit pads: auto_pad is resolved here.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// Attributes of a window that slides over the spatial axes, with defaults filled in.
struct Window {
  Ints kernel, strides, dilations, pads;

  int64_t spatialRank() const { return static_cast<int64_t>(kernel.size()); }
  // The extent of the dilated kernel.
  int64_t extent(int64_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }
  SmallVector<NamedAttribute> attrs(NodeBuilder &b) const {
    return {b.attr("dilations", dilations), b.attr("kernel_shape", kernel), b.attr("pads", pads),
            b.attr("strides", strides)};
  }
};

// Sizes after batch and channel; null where one is open.
std::optional<Ints> spatialSizes(Value x) {
  auto type = rankedType(x);
  if (!type || type.getRank() < 2)
    return std::nullopt;
  Ints sizes(type.getShape().drop_front(2));
  return ShapedType::isDynamicShape(sizes) ? std::nullopt : std::optional(sizes);
}

// Splits `total` into begin and end; the odd one goes to the end for SAME_UPPER.
void setPads(Window &w, int64_t i, int64_t total, bool upper) {
  total = std::max<int64_t>(total, 0);
  int64_t begin = upper ? total / 2 : total - total / 2;
  w.pads[i] = begin;
  w.pads[w.spatialRank() + i] = total - begin;
}

LogicalResult readWindow(RuleContext &c, Value weight, Window &w) {
  if (auto kernel = c.node.getInts("kernel_shape")) {
    w.kernel = *kernel;
  } else {
    auto sizes = weight ? spatialSizes(weight) : std::nullopt;
    if (!sizes)
      return c.refuse("the gradient needs the kernel's shape, which is neither an attribute nor known from the weight");
    w.kernel = *sizes;
  }
  w.strides = c.node.getInts("strides").value_or(Ints(w.kernel.size(), 1));
  w.dilations = c.node.getInts("dilations").value_or(Ints(w.kernel.size(), 1));
  w.pads = c.node.getInts("pads").value_or(Ints(2 * w.kernel.size(), 0));
  return success();
}

bool isSame(RuleContext &c) { return c.node.getString("auto_pad", "NOTSET").starts_with("SAME"); }

// The window of Conv and of pools, whose output has ceil(size / stride) elements under SAME_*.
LogicalResult resolveWindow(RuleContext &c, Value weight, Window &w) {
  if (failed(readWindow(c, weight, w)))
    return failure();
  if (c.node.getString("auto_pad", "NOTSET") == "VALID")
    w.pads.assign(w.pads.size(), 0);
  if (!isSame(c))
    return success();
  auto sizes = spatialSizes(c.x());
  if (!sizes)
    return c.refuse("auto_pad = " + c.node.getString("auto_pad", "") + " needs fixed spatial sizes");
  for (int64_t i = 0; i < w.spatialRank(); ++i) {
    int64_t outputs = llvm::divideCeil((*sizes)[i], w.strides[i]);
    int64_t total = (outputs - 1) * w.strides[i] + w.extent(i) - (*sizes)[i];
    setPads(w, i, total, c.node.getString("auto_pad", "") == "SAME_UPPER");
  }
  return success();
}

// The pads of ConvTranspose, from the size of its output where auto_pad or output_shape leaves them open.
LogicalResult resolveTransposedWindow(RuleContext &c, Window &w) {
  if (failed(readWindow(c, c.x(1), w)))
    return failure();
  bool hasShape = c.node.hasAttr("output_shape");
  if (c.node.getString("auto_pad", "NOTSET") == "VALID" && !hasShape)
    w.pads.assign(w.pads.size(), 0);
  if (!isSame(c) && !hasShape)
    return success();
  auto sizes = spatialSizes(c.x()), results = spatialSizes(c.y());
  if (!sizes || !results)
    return c.refuse("auto_pad and output_shape need fixed spatial sizes");
  Ints outputPadding = c.node.getInts("output_padding").value_or(Ints(w.kernel.size(), 0));
  for (int64_t i = 0; i < w.spatialRank(); ++i) {
    int64_t total = w.strides[i] * ((*sizes)[i] - 1) + outputPadding[i] + w.extent(i) - (*results)[i];
    setPads(w, i, total, c.node.getString("auto_pad", "NOTSET") == "SAME_UPPER");
  }
  return success();
}

LogicalResult addBiasGrad(RuleContext &c, const Window &w) {
  if (c.needs(2))
    c.add(2, typed(c.b.sum(c.dy(), otherAxes(w.spatialRank() + 2, int64_t(1)), /*keepDims=*/false), c.x(2)));
  return success();
}

LogicalResult convGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Window w;
  if (failed(resolveWindow(c, c.x(1), w)))
    return failure();
  SmallVector<NamedAttribute> attrs = w.attrs(b);
  attrs.push_back(b.attr("group", c.node.getInt("group", 1)));
  if (c.needs(0)) {
    auto sizes = spatialSizes(c.x());
    bool isUnit = llvm::all_of(w.strides, [](int64_t stride) { return stride == 1; });
    if (sizes) {
      SmallVector<NamedAttribute> withSizes = attrs;
      withSizes.push_back(b.attr("input_spatial", *sizes));
      c.add(0, typed(b.node("train.conv_grad_input", {c.dy(), c.x(1)}, withSizes), c.x()));
    } else if (isUnit) {
      // With stride 1 the sizes follow from those of dy.
      c.add(0, typed(b.node("ConvTranspose", {c.dy(), c.x(1)}, attrs), c.x()));
    } else {
      return c.refuse("the gradient of a convolution with strides needs fixed spatial sizes");
    }
  }
  if (c.needs(1))
    c.add(1, typed(b.node("train.conv_grad_weight", {c.x(), c.dy()}, attrs), c.x(1)));
  return addBiasGrad(c, w);
}

// ConvTranspose is the input gradient of a convolution with the same weight: dx is that convolution of dy.
LogicalResult convTransposeGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Window w;
  if (failed(resolveTransposedWindow(c, w)))
    return failure();
  SmallVector<NamedAttribute> attrs = w.attrs(b);
  attrs.push_back(b.attr("group", c.node.getInt("group", 1)));
  if (c.needs(0)) {
    Value dx = b.node("Conv", {c.dy(), c.x(1)}, attrs);
    // An output padding of a stride or more makes the convolution see whole windows of padding.
    Ints outputPadding = c.node.getInts("output_padding").value_or(Ints(w.kernel.size(), 0));
    Ints ends, axes;
    auto sizes = spatialSizes(c.x());
    for (int64_t i = 0; i < w.spatialRank(); ++i) {
      if (outputPadding[i] < w.strides[i])
        continue;
      if (!sizes)
        return c.refuse("output_padding of a stride or more needs fixed spatial sizes");
      ends.push_back((*sizes)[i]);
      axes.push_back(i + 2);
    }
    c.add(0, typed(axes.empty() ? dx : b.slice(dx, Ints(axes.size(), 0), ends, axes), c.x()));
  }
  if (c.needs(1))
    c.add(1, typed(b.node("train.conv_grad_weight", {c.dy(), c.x()}, attrs), c.x(1)));
  return addBiasGrad(c, w);
}

LogicalResult maxPoolGrad(RuleContext &c) {
  Window w;
  if (!c.needs(0) || !c.dy())
    return success();
  if (failed(resolveWindow(c, {}, w)))
    return failure();
  SmallVector<NamedAttribute> attrs = w.attrs(c.b);
  attrs.push_back(c.b.attr("ceil_mode", c.node.getInt("ceil_mode", 0)));
  c.add(0, c.b.node("train.max_pool_grad", {c.dy(), c.x()}, attrs));
  return success();
}

LogicalResult averagePoolGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Window w;
  if (!c.needs(0))
    return success();
  if (failed(resolveWindow(c, {}, w)))
    return failure();
  auto sizes = spatialSizes(c.x());
  if (!sizes)
    return c.refuse("the gradient of AveragePool needs fixed spatial sizes");
  SmallVector<NamedAttribute> attrs = w.attrs(b);
  attrs.push_back(b.attr("ceil_mode", c.node.getInt("ceil_mode", 0)));
  attrs.push_back(b.attr("count_include_pad", c.node.getInt("count_include_pad", 0)));
  attrs.push_back(b.attr("input_spatial", *sizes));
  c.add(0, typed(b.node("train.average_pool_grad", {c.dy()}, attrs), c.x()));
  return success();
}

LogicalResult globalAveragePoolGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  auto type = rankedType(c.x());
  if (!c.needs(0))
    return success();
  if (!type)
    return c.refuse("the gradient needs the rank of the input");
  Value count;
  if (auto sizes = spatialSizes(c.x())) {
    count = b.scalarLike(c.dy(), static_cast<double>(ShapedType::getNumElements(*sizes)));
  } else {
    Value spatial =
        b.node("Gather", {b.shapeOf(c.x()), b.ints(otherAxes(type.getRank(), {0, 1}))}, b.attr("axis", int64_t(0)));
    count = b.castLike(b.reduce("ReduceProd", spatial, {}, /*keepDims=*/false), c.dy());
  }
  c.add(0, expandLike(b, b.div(c.dy(), count), c.x()));
  return success();
}

// The first maximum gets the gradient, as in MaxPool; with open sizes, equal maxima share it.
LogicalResult globalMaxPoolGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  auto type = rankedType(c.x());
  if (!c.needs(0))
    return success();
  if (!type)
    return c.refuse("the gradient needs the rank of the input");
  if (auto sizes = spatialSizes(c.x())) {
    Window w{*sizes, Ints(sizes->size(), 1), Ints(sizes->size(), 1), Ints(2 * sizes->size(), 0)};
    c.add(0, b.node("train.max_pool_grad", {c.dy(), c.x()}, w.attrs(b)));
    return success();
  }
  Value isBest = equal(b, c.x(), c.y());
  Value count = b.sum(b.castLike(isBest, c.dy()), otherAxes(type.getRank(), {0, 1}), /*keepDims=*/true);
  c.add(0, typed(select(b, isBest, b.div(c.dy(), count)), c.x()));
  return success();
}

const Rule kRules[] = {
    {"", "AveragePool", 1, kNewest, Kind::Rule, averagePoolGrad, 1},
    {"", "Conv", 1, kNewest, Kind::Rule, convGrad, 0b111},
    {"", "ConvTranspose", 1, kNewest, Kind::Rule, convTransposeGrad, 0b111},
    {"", "GlobalAveragePool", 1, kNewest, Kind::Rule, globalAveragePoolGrad, 1},
    {"", "GlobalMaxPool", 1, kNewest, Kind::Rule, globalMaxPoolGrad, 1},
    {"", "MaxPool", 1, kNewest, Kind::Rule, maxPoolGrad, 1},
};

} // namespace

ArrayRef<Rule> convolutionRules() { return kRules; }

} // namespace recast::gradient
