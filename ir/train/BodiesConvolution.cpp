// Bodies of the gradients of convolutions and pools. Spatial sizes of dx are attributes; batch and channels may be
// open.
#include "ir/train/BodyHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

using Values = ArrayRef<Value>;
using Outputs = SmallVectorImpl<Value>;
using Sizes = SmallVector<int64_t>;

/// Attributes of the operator: output o reads inputs o * stride - padBegin + k * dilation, 0 <= k < kernel.
struct Window {
  Sizes kernel, strides, dilations, pads;
  bool ceilMode;

  explicit Window(Node op) : kernel(*op.getInts("kernel_shape")), ceilMode(op.getInt("ceil_mode", 0)) {
    strides = op.getInts("strides").value_or(Sizes(rank(), 1));
    dilations = op.getInts("dilations").value_or(Sizes(rank(), 1));
    pads = op.getInts("pads").value_or(Sizes(2 * rank(), 0));
  }
  size_t rank() const { return kernel.size(); }
  int64_t extent(size_t i) const { return (kernel[i] - 1) * dilations[i] + 1; }

  /// Output sizes for the input sizes `in`.
  Sizes outputs(ArrayRef<int64_t> in) const {
    Sizes out;
    for (size_t i = 0; i < rank(); ++i) {
      int64_t room = in[i] + pads[i] + pads[rank() + i] - extent(i);
      int64_t size = (room + (ceilMode ? strides[i] - 1 : 0)) / strides[i] + 1;
      // A window that would start in the end padding is left out.
      if (ceilMode && (size - 1) * strides[i] >= in[i] + pads[i])
        --size;
      out.push_back(size);
    }
    return out;
  }
  /// Every input belongs to one window at most.
  bool disjoint() const {
    for (size_t i = 0; i < rank(); ++i)
      if (strides[i] < extent(i))
        return false;
    return true;
  }
};

LogicalResult checkWindow(Node op) {
  if (op.getInts("kernel_shape"))
    return success();
  return op->emitError() << "node " << op.describe() << " lacks the attribute kernel_shape";
}

/// From outputs of sizes `out` back to inputs of sizes `in`; w is [M, C/group, kernel...].
Value transposedConvolution(NodeBuilder &b, Value dy, Value w, const Window &window, ArrayRef<int64_t> in,
                            ArrayRef<int64_t> out, int64_t group) {
  Sizes pads(window.pads), outputPadding;
  for (size_t i = 0; i < window.rank(); ++i) {
    // Inputs from here on belong to no window.
    int64_t covered = (out[i] - 1) * window.strides[i] + window.extent(i) - pads[i];
    pads[window.rank() + i] = std::max<int64_t>(covered - in[i], 0);
    outputPadding.push_back(std::max<int64_t>(in[i] - covered, 0));
  }
  SmallVector<NamedAttribute> attrs = {b.attr("strides", ArrayRef(window.strides)),
                                       b.attr("dilations", ArrayRef(window.dilations)), b.attr("pads", ArrayRef(pads)),
                                       b.attr("group", group), b.attr("kernel_shape", ArrayRef(window.kernel))};
  if (llvm::any_of(outputPadding, [](int64_t size) { return size != 0; }))
    attrs.push_back(b.attr("output_padding", ArrayRef(outputPadding)));
  return b.node("ConvTranspose", {dy, w}, attrs);
}

LogicalResult convGradInput(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto spatial = op.getInts("input_spatial");
  if (failed(checkWindow(op)))
    return failure();
  if (!spatial)
    return op->emitError() << "node " << op.describe() << " lacks the attribute input_spatial";
  Window window(op);
  Value dx = transposedConvolution(b, widen(b, in[0]), widen(b, in[1]), window, *spatial, window.outputs(*spatial),
                                   op.getInt("group", 1));
  out.push_back(b.castLike(dx, in[0]));
  return success();
}

// A convolution that slides dy over x: batch and channels change places, and so do strides and dilations.
LogicalResult convGradWeight(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(checkWindow(op)) || !rankedType(op, in[0]) || !rankedType(op, in[1]))
    return failure();
  Window window(op);
  int64_t group = op.getInt("group", 1), rank = static_cast<int64_t>(window.rank());
  auto spatialAxes = [&](int64_t first) { return llvm::to_vector(llvm::seq<int64_t>(first, first + rank)); };
  auto swapFirst = [&](Value value) {
    Sizes perm = {1, 0};
    llvm::append_range(perm, spatialAxes(2));
    return b.transpose(value, perm);
  };

  Value x = widen(b, in[0]);
  if (group == 1) {
    x = swapFirst(x);
  } else {
    // [N, group, C/group, ...] -> [C/group, group * N, ...]: the batch is what is summed within each group.
    SmallVector<Value> split = {sizeOf(b, x, 0), b.ints({group, -1})}, joined = {b.ints({0, -1})};
    for (int64_t axis : spatialAxes(2))
      for (SmallVector<Value> *shape : {&split, &joined})
        shape->push_back(sizeOf(b, x, axis));
    Sizes perm = {2, 1, 0};
    llvm::append_range(perm, spatialAxes(3));
    x = b.reshape(b.transpose(b.reshape(x, joinShape(b, split)), perm), joinShape(b, joined));
  }
  Value dw = b.node("Conv", {x, swapFirst(widen(b, in[1]))},
                    {b.attr("strides", ArrayRef(window.dilations)), b.attr("dilations", ArrayRef(window.strides)),
                     b.attr("pads", ArrayRef(window.pads)), b.attr("group", group)});
  // Inputs beyond the last window would give further taps.
  dw = b.slice(dw, Sizes(rank, 0), window.kernel, spatialAxes(2));
  out.push_back(b.castLike(swapFirst(dw), in[1]));
  return success();
}

/// A part of x: every `steps`-th element from `starts` on, along the spatial axes. Opset 10.
Value everyNth(NodeBuilder &b, Value x, ArrayRef<int64_t> starts, ArrayRef<int64_t> steps) {
  auto axes = llvm::to_vector(llvm::seq<int64_t>(2, 2 + static_cast<int64_t>(starts.size())));
  return b.node("Slice", {x, b.ints(starts), b.ints(Sizes(starts.size(), INT64_MAX)), b.ints(axes), b.ints(steps)});
}

// MaxPool tells where the maxima are, in the flattened x.
LogicalResult maxPoolGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(checkWindow(op)))
    return failure();
  Window window(op);
  bool canAdd = b.opset() >= 16;
  if (failed(needsOpset(op, b, window.disjoint() ? 9 : 10)))
    return failure();
  SmallVector<NamedAttribute> attrs = {b.attr("kernel_shape", ArrayRef(window.kernel)),
                                       b.attr("strides", ArrayRef(window.strides)),
                                       b.attr("pads", ArrayRef(window.pads))};
  if (window.ceilMode)
    attrs.push_back(b.attr("ceil_mode", int64_t(1)));
  if (llvm::any_of(window.dilations, [](int64_t d) { return d != 1; }))
    attrs.push_back(b.attr("dilations", ArrayRef(window.dilations)));
  Value x = widen(b, in[1]), dy = b.castLike(in[0], x);
  Value winners = b.node("MaxPool", {x}, 2, attrs)->getResult(1), count = elementCount(b, x), dx;
  auto flat = [&](Value value) { return b.reshape(value, {-1}); };
  if (canAdd) {
    dx = b.node("ScatterElements", {b.filled(count, elementTypeOf(dy), 0), flat(winners), flat(dy)},
                {b.attr("axis", int64_t(0)), b.attr("reduction", "add")});
  } else if (window.disjoint()) {
    dx = scatterDistinct(b, count, flat(winners), flat(dy));
  } else {
    // Windows that are `steps` apart share no input: every set of those is scattered by itself.
    Sizes steps, starts(window.rank(), 0);
    for (size_t i = 0; i < window.rank(); ++i)
      steps.push_back((window.extent(i) + window.strides[i] - 1) / window.strides[i]);
    for (bool more = true; more;) {
      Value part =
          scatterDistinct(b, count, flat(everyNth(b, winners, starts, steps)), flat(everyNth(b, dy, starts, steps)));
      dx = dx ? b.add(dx, part) : part;
      more = false;
      for (size_t i = 0; i < window.rank() && !more; ++i) {
        starts[i] = (starts[i] + 1) % steps[i];
        more = starts[i] != 0;
      }
    }
  }
  out.push_back(b.castLike(b.reshape(dx, b.shapeOf(in[1])), in[1]));
  return success();
}

/// How many elements each window averages, [1, 1, out...].
TensorAttr windowCounts(Type type, const Window &window, ArrayRef<int64_t> in, ArrayRef<int64_t> out,
                        bool countPadding) {
  SmallVector<double> counts = {1};
  for (size_t i = 0; i < window.rank(); ++i) {
    int64_t begin = countPadding ? -window.pads[i] : 0;
    int64_t end = in[i] + (countPadding ? window.pads[window.rank() + i] : 0);
    SmallVector<double> product;
    for (double outer : counts)
      for (int64_t o = 0; o < out[i]; ++o) {
        int64_t taps = 0;
        for (int64_t k = 0; k < window.kernel[i]; ++k) {
          int64_t at = o * window.strides[i] - window.pads[i] + k * window.dilations[i];
          taps += at >= begin && at < end;
        }
        product.push_back(outer * static_cast<double>(taps));
      }
    counts = std::move(product);
  }
  Sizes dims = {1, 1};
  llvm::append_range(dims, out);
  if (llvm::all_equal(counts) && !counts.empty())
    return splatTensor(RankedTensorType::get({}, type), counts.front());
  SmallVector<char> bytes;
  encode(type, counts, bytes);
  return makeTensor(RankedTensorType::get(dims, type), bytes);
}

// Each window's share goes back to its elements: a transposed convolution with ones, plane by plane.
LogicalResult averagePoolGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto spatial = op.getInts("input_spatial");
  RankedTensorType type = rankedType(op, in[0]);
  if (failed(checkWindow(op)) || !type)
    return failure();
  if (!spatial)
    return op->emitError() << "node " << op.describe() << " lacks the attribute input_spatial";
  Window window(op);
  Sizes sizes = window.outputs(*spatial);
  for (size_t i = 0; i < window.rank(); ++i)
    if (!type.isDynamicDim(2 + i))
      sizes[i] = type.getDimSize(2 + i);
  Value dy = widen(b, in[0]);
  Type element = elementTypeOf(dy);
  Value share =
      b.div(dy, b.constant(windowCounts(element, window, *spatial, sizes, op.getInt("count_include_pad", 0))));
  Sizes planes = {-1, 1}, ones = {1, 1};
  llvm::append_range(planes, sizes);
  llvm::append_range(ones, window.kernel);
  Value kernel = b.constant(splatTensor(RankedTensorType::get(ones, element), 1));
  Value dx = transposedConvolution(b, b.reshape(share, planes), kernel, window, *spatial, sizes, 1);
  Value shape = joinShape(b, {sizeOf(b, in[0], 0), sizeOf(b, in[0], 1), b.ints(*spatial)});
  out.push_back(b.castLike(b.reshape(dx, shape), in[0]));
  return success();
}

} // namespace

ArrayRef<BodyEntry> convolutionBodies() {
  static const BodyEntry entries[] = {
      {"conv_grad_input", convGradInput},
      {"conv_grad_weight", convGradWeight},
      {"max_pool_grad", maxPoolGrad},
      {"average_pool_grad", averagePoolGrad},
  };
  return entries;
}

} // namespace recast::train
