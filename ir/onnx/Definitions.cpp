#include "ir/onnx/Definitions.h"
#include "ir/onnx/Formulas.h"
#include "ir/onnx/ResizeAxes.h"
#include <cmath>
#include <limits>

using namespace mlir;
namespace recast::onnx_ir {

namespace {

using Ints = SmallVector<int64_t>;

// A matrix of a definition stays a constant of a plan up to this size, in elements: from 1,024 to 4,096 along an axis.
constexpr int64_t kLargestMatrix = 1 << 22;

RankedTensorType staticType(Value value) {
  auto type = value ? dyn_cast<RankedTensorType>(value.getType()) : RankedTensorType();
  return type && type.hasStaticShape() && !llvm::is_contained(type.getShape(), 0) ? type : RankedTensorType();
}

// --- InstanceNormalization: (x - mean) / sqrt(variance + epsilon) * scale + B over the spatial axes ---

Value instanceNormalization(Node node, NodeBuilder &b) {
  Value x = node.input(0);
  int64_t rank = cast<RankedTensorType>(x.getType()).getRank();
  Ints spatial = llvm::to_vector(llvm::seq<int64_t>(2, rank)), after = llvm::to_vector(llvm::seq<int64_t>(1, rank - 1));
  auto mean = [&](Value v) { return b.reduce("ReduceMean", v, spatial, /*keepDims=*/true); };
  Value centred = b.sub(x, mean(x));
  Value deviation = b.node("Sqrt", {b.addScalar(mean(b.square(centred)), node.getFloat("epsilon", 1e-5))});
  Value scaled = b.mul(b.div(centred, deviation), b.unsqueeze(node.input(1), after));
  return b.add(scaled, b.unsqueeze(node.input(2), after));
}

// --- ReduceLogSumExp: m + log(sum(exp(x - m))), m the largest, or 0 where that is infinite. ONNX's body computes in
// double without it, which overflows and which GPUs are slow at. ---

std::optional<Ints> axesOf(Node node) {
  if (node.sinceVersion() < 18)
    return node.getInts("axes").value_or(Ints());
  if (!node.input(1))
    return Ints();
  auto axes = constantInts(node.input(1));
  return axes ? std::optional(Ints(*axes)) : std::nullopt;
}

Value reduceLogSumExp(Node node, NodeBuilder &b) {
  Value x = node.input(0);
  Ints axes = *axesOf(node);
  Value largest = b.reduce("ReduceMax", x, axes, /*keepDims=*/true);
  Value limit = b.scalarLike(x, std::numeric_limits<double>::infinity());
  Value isFinite = b.node("Less", {b.node("Abs", {largest}), limit});
  Value m = b.where(isFinite, largest, b.scalarLike(x, 0));
  bool keeps = node.getInt("keepdims", 1) != 0;
  Value sum = b.reduce("ReduceSum", b.node("Exp", {b.sub(x, m)}), axes, keeps);
  return b.add(b.node("Log", {sum}), keeps ? m : b.reduce("ReduceSum", m, axes, /*keepDims=*/false));
}

// --- GridSample: x [N, C, sizes...] at the points grid [N, points..., k], whose last entry is along the last axis ---

class GridSampler {
public:
  GridSampler(Node node, NodeBuilder &b) : node(node), b(b), x(staticType(node.input(0))), k(x.getRank() - 2) {
    Ints points(staticType(node.input(1)).getShape().drop_front().drop_back());
    count = ShapedType::getNumElements(points);
  }

  Value build() {
    Value flat = b.reshape(node.input(0), {x.getDimSize(0), x.getDimSize(1), -1});
    for (int64_t axis = 0; axis < k; ++axis)
      positions.push_back(position(axis));
    bool isNearest = node.getString("mode", "linear") == "nearest";
    Value sum;
    for (int64_t corner = 0; corner < (isNearest ? 1 : int64_t(1) << k); ++corner) {
      Value weight, index;
      for (int64_t axis = 0; axis < k; ++axis) {
        Value at = isNearest ? b.node("Round", {positions[axis]}) : b.node("Floor", {positions[axis]});
        if (!isNearest) {
          Value part = b.sub(positions[axis], at);
          bool isUpper = corner >> axis & 1;
          multiply(weight, isUpper ? part : b.sub(b.scalarLike(part, 1), part));
          at = isUpper ? b.addScalar(at, 1) : at;
        }
        Value last = b.scalarLike(at, static_cast<double>(size(axis) - 1));
        Value inside = clamp(at, last);
        // Zeros outside; other kinds of padding have brought the position inside, but for an upper corner of weight 0.
        multiply(weight, b.castLike(b.node("Equal", {at, inside}), at));
        index = index ? b.add(b.mulScalar(index, static_cast<double>(size(axis))), inside) : inside;
      }
      Value whole = b.cast(b.unsqueeze(index, {1}), IntegerType::get(b.context(), 64));
      Value picked =
          b.node("GatherElements", {flat, b.expand(whole, b.ints({x.getDimSize(0), x.getDimSize(1), count}))},
                 b.attr("axis", int64_t(2)));
      Value term = b.mul(picked, b.castLike(b.unsqueeze(weight, {1}), picked));
      sum = sum ? b.add(sum, term) : term;
    }
    Ints shape{x.getDimSize(0), x.getDimSize(1)};
    llvm::append_range(shape, staticType(node.input(1)).getShape().drop_front().drop_back());
    return b.reshape(sum, shape);
  }

private:
  int64_t size(int64_t axis) const { return x.getDimSize(static_cast<unsigned>(axis + 2)); }
  void multiply(Value &product, Value factor) { product = product ? b.mul(product, factor) : factor; }
  Value clamp(Value v, Value last) { return b.node("Min", {b.node("Max", {v, b.scalarLike(v, 0)}), last}); }

  // The coordinate [N, points] along an axis, in elements; padding "border" and "reflection" bring it inside.
  Value position(int64_t axis) {
    bool aligned = node.getInt("align_corners", 0) != 0;
    Value grid = b.reshape(node.input(1), {x.getDimSize(0), -1, k});
    Value u = b.squeeze(b.slice(grid, {k - 1 - axis}, {k - axis}, {2}), {2});
    auto n = static_cast<double>(size(axis));
    // [-1, 1] spans the centres of the outer elements, or all of them.
    double low = aligned ? 0 : -0.5, span = aligned ? n - 1 : n;
    Value at = b.addScalar(b.mulScalar(b.addScalar(u, 1), span / 2), low);
    StringRef padding = node.getString("padding_mode", "zeros");
    if (padding == "reflection" && span > 0) {
      // A wave of period 2 span: distance from low, folded back at span.
      Value from = b.node("Abs", {b.addScalar(at, -low)});
      Value turns = b.node("Floor", {b.mulScalar(from, 1 / (2 * span))});
      Value rest = b.sub(from, b.mulScalar(turns, 2 * span));
      at = b.addScalar(b.sub(b.scalarLike(at, span), b.node("Abs", {b.addScalar(rest, -span)})), low);
    }
    return padding == "zeros" ? at : clamp(at, b.scalarLike(at, n - 1));
  }

  Node node;
  NodeBuilder &b;
  RankedTensorType x;
  int64_t k, count;
  SmallVector<Value> positions;
};

bool samplesGrid(Node node) {
  RankedTensorType x = staticType(node.input(0)), grid = staticType(node.input(1));
  StringRef mode = node.getString("mode", "linear");
  return x && grid && x.getRank() >= 3 && grid.getRank() == x.getRank() && grid.getShape().back() == x.getRank() - 2 &&
         mode != "cubic" && mode != "bicubic";
}

// --- AffineGrid: theta [N, k, k + 1] times the homogeneous coordinates of every point ---

std::optional<Ints> gridSizes(Node node) {
  auto sizes = constantInts(node.input(1));
  if (!sizes || sizes->size() < 3 || llvm::any_of(*sizes, [](int64_t size) { return size <= 0; }))
    return std::nullopt;
  return Ints(*sizes);
}

Value affineGrid(Node node, NodeBuilder &b) {
  Ints sizes = *gridSizes(node), points(ArrayRef(sizes).drop_front(2));
  auto k = static_cast<int64_t>(points.size());
  bool aligned = node.getInt("align_corners", 0) != 0;
  int64_t count = ShapedType::getNumElements(points);
  SmallVector<double> base;
  for (int64_t point = 0; point < count; ++point) {
    SmallVector<double> row(static_cast<size_t>(k) + 1, 1);
    int64_t rest = point;
    for (int64_t axis = k; axis-- > 0;) {
      auto n = static_cast<double>(points[static_cast<size_t>(axis)]),
           i = static_cast<double>(rest % points[static_cast<size_t>(axis)]);
      rest /= points[static_cast<size_t>(axis)];
      // The last axis comes first.
      row[static_cast<size_t>(k - 1 - axis)] = !aligned ? (2 * i + 1) / n - 1 : n == 1 ? 0 : 2 * i / (n - 1) - 1;
    }
    base.append(row);
  }
  auto type = RankedTensorType::get({count, k + 1}, elementTypeOf(node.input(0)));
  SmallVector<char> bytes;
  encode(type.getElementType(), base, bytes);
  Value turned = b.transpose(node.input(0), {0, 2, 1});
  Ints shape{sizes[0]};
  shape.append(points);
  shape.push_back(k);
  return b.reshape(b.node("MatMul", {b.constant(makeTensor(type, bytes)), turned}), shape);
}

// --- Resize and Upsample: repetition or choice of elements, or a product along each axis ---

constexpr int64_t kExpandOpset = 8, kEyeLikeOpset = 9;

/// True where Upsample repeats elements: before opset 9 no EyeLike makes matrices.
bool repeatsElements(Node node) {
  auto scales = node->getAttrOfType<DenseF32ArrayAttr>("scales");
  return scales && node.getString("mode", "nearest") == "nearest" &&
         llvm::all_of(scales.asArrayRef(), [](float scale) { return scale >= 1 && scale == std::floor(scale); });
}

bool isProductOfMatrices(Node node) {
  RankedTensorType x = staticType(node.input(0)), y = staticType(node.output());
  Operation *made = x ? node.input(0).getDefiningOp() : nullptr;
  // The matrices themselves are made by Resize.
  bool isNearest = node.getString("mode", "nearest") == "nearest";
  if (!x || !y || !(isNearest || isa<FloatType>(x.getElementType())) || (made && isa<EyeLikeOp>(made)) ||
      (node.is("Upsample") && node.opset() < kEyeLikeOpset && !repeatsElements(node)) ||
      (node.getString("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize" &&
       !(node.input(1) && constantOf(node.input(1)))) ||
      node.getString("keep_aspect_ratio_policy", "stretch") != "stretch")
    return false;
  return llvm::all_of(llvm::zip(x.getShape(), y.getShape()),
                      [](auto sizes) { return std::get<0>(sizes) * std::get<1>(sizes) <= kLargestMatrix; });
}

Value resize(Node node, NodeBuilder &b) {
  ResizeAxes resized(node, b);
  auto x = staticType(node.input(0));
  int64_t rank = x.getRank();
  Value y = node.input(0);
  Ints split, times, blown, joined;
  SmallVector<int64_t> repeats(static_cast<size_t>(rank), 1);
  for (auto [at, axis] : llvm::enumerate(resized.axes()))
    if (!resized.keeps(at))
      repeats[static_cast<size_t>(axis)] = std::max<int64_t>(resized.repeats(at), 1);
  for (int64_t axis = 0; axis < rank; ++axis) {
    int64_t n = x.getDimSize(static_cast<unsigned>(axis)), count = repeats[static_cast<size_t>(axis)];
    split.push_back(n);
    times.push_back(1);
    blown.push_back(n);
    joined.push_back(n * count);
    if (count > 1) {
      split.push_back(1);
      times.push_back(count);
      blown.push_back(count);
    }
  }
  if (split.size() > static_cast<size_t>(rank)) {
    y = b.reshape(y, split);
    y = b.opset() < kExpandOpset ? b.node("Tile", {y, b.ints(times)}) : b.expand(y, b.ints(blown));
    y = b.reshape(y, joined);
  }
  for (auto [at, axis] : llvm::enumerate(resized.axes())) {
    if (resized.keeps(at) || repeats[static_cast<size_t>(axis)] > 1)
      continue;
    if (node.getString("mode", "nearest") == "nearest") {
      Value picked = b.node("ArgMax", {resized.matrix(at, Float32Type::get(b.context()))},
                            {b.attr("axis", int64_t(0)), b.attr("keepdims", int64_t(0))});
      y = b.node("Gather", {y, picked}, b.attr("axis", axis));
      continue;
    }
    Value matrix = resized.matrix(at, elementTypeOf(y));
    Ints order = llvm::to_vector(llvm::seq<int64_t>(0, rank));
    std::swap(order[static_cast<size_t>(axis)], order.back());
    bool isLast = axis == rank - 1;
    y = b.node("MatMul", {isLast ? y : b.transpose(y, order), matrix});
    y = isLast ? y : b.transpose(y, order);
  }
  if (!resized.crops())
    return y;
  Value inside;
  for (auto [at, axis] : llvm::enumerate(resized.axes())) {
    if (resized.keeps(at))
      continue;
    Ints along(static_cast<size_t>(rank), 1);
    along[static_cast<size_t>(axis)] = -1;
    Value here = b.reshape(resized.isInside(at), along);
    inside = inside ? b.node("And", {inside, here}) : here;
  }
  return inside ? b.where(inside, y, b.scalarLike(y, node.getFloat("extrapolation_value", 0))) : y;
}

bool acceptsInstanceNormalization(Node node) {
  auto type = dyn_cast<RankedTensorType>(node.input(0).getType());
  return type && type.getRank() >= 3;
}

bool acceptsReduceLogSumExp(Node node) {
  auto axes = axesOf(node);
  return isFloatTensor(node.input(0)) && axes && !(axes->empty() && node.getInt("noop_with_empty_axes", 0));
}

constexpr Definition kDefinitions[] = {
    {"InstanceNormalization", acceptsInstanceNormalization, instanceNormalization},
    {"ReduceLogSumExp", acceptsReduceLogSumExp, reduceLogSumExp},
    {"GridSample", samplesGrid, [](Node node, NodeBuilder &b) { return GridSampler(node, b).build(); }},
    {"AffineGrid", [](Node node) { return gridSizes(node).has_value(); }, affineGrid},
    {"Resize", isProductOfMatrices, resize},
    {"Upsample", isProductOfMatrices, resize},
};

const Definition *findDefinition(Node node) {
  if (node.domain().empty())
    for (ArrayRef<Definition> list : {ArrayRef(kDefinitions), formulas()})
      for (const Definition &definition : list)
        if (definition.op == node.opType())
          return &definition;
  return nullptr;
}

} // namespace

bool mayHaveDefinition(Node node) { return findDefinition(node) != nullptr; }

bool hasDefinition(Node node) {
  const Definition *definition = findDefinition(node);
  return definition && definition->accepts(node);
}

LogicalResult buildDefinition(Node node, NodeBuilder &b, SmallVectorImpl<Value> &outputs) {
  outputs.push_back(findDefinition(node)->build(node, b));
  return failure(b.failed());
}

} // namespace recast::onnx_ir
