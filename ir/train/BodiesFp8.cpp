// Bodies of the fp8 operators. Scales are f32, as in the native kernels; powers of two are found in f64, where the
// logarithm is off by less than a step, which two comparisons put right.
#include "ir/train/BodyHelpers.h"
#include <cmath>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

using Values = ArrayRef<Value>;
using Outputs = SmallVectorImpl<Value>;

Type f32(NodeBuilder &b) { return b.rewriter().getF32Type(); }
Type f64(NodeBuilder &b) { return b.rewriter().getF64Type(); }
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargestFloat = static_cast<double>(std::numeric_limits<float>::max());

// fp8 came in opset 19, E8M0 in 24.
constexpr int64_t kOpsetOfFp8 = 19, kOpsetOfE8M0 = 24;

llvm::APFloat largestOf(Type type) { return llvm::APFloat::getLargest(cast<FloatType>(type).getFloatSemantics()); }
double largestNumber(Node op) {
  llvm::APFloat value = largestOf(elementTypeFromOnnx(op->getContext(), static_cast<int>(op.getInt("to", 0))));
  bool inexact;
  value.convert(llvm::APFloat::IEEEdouble(), llvm::APFloat::rmNearestTiesToEven, &inexact);
  return value.convertToDouble();
}

Value saturatingCast(Node op, NodeBuilder &b, Value x) {
  return b.node("Cast", {x}, {b.attr("to", op.getInt("to", 0)), b.attr("saturate", int64_t(1))});
}

// The maximum of magnitudes over `axes`; `ifNaN` where one of them is NaN. Runtimes differ in what a maximum with NaN
// is.
Value amaxOver(NodeBuilder &b, Value x, ArrayRef<int64_t> axes, double ifNaN) {
  Value isNaN = b.node("IsNaN", {x});
  Value peak = b.reduce("ReduceMax", b.where(isNaN, b.scalarLike(x, 0), b.node("Abs", {x})), axes, /*keepDims=*/false);
  Value sawNaN = b.reduce("ReduceMax", b.cast(isNaN, f32(b)), axes, /*keepDims=*/false);
  return b.where(b.node("Greater", {sawNaN, b.scalarLike(sawNaN, 0)}), b.scalarLike(peak, ifNaN), peak);
}

LogicalResult quantizeFp8(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, kOpsetOfFp8)))
    return failure();
  Value x = b.cast(in[0], f32(b));
  out.push_back(saturatingCast(op, b, b.mul(x, in[1])));
  if (op.numOutputs() > 1)
    out.push_back(amaxOver(b, x, {}, kNaN));
  return success();
}

// --- Tiles ---

bool isOneTile(ArrayRef<int64_t> tile) {
  return llvm::all_of(tile, [](int64_t edge) { return edge == 0; });
}

// The size of an axis as a number or as a value with one element.
struct Size {
  std::optional<int64_t> known;
  Value value;
};
Size sizeAlong(NodeBuilder &b, Value x, int64_t axis) {
  Value size = sizeOf(b, x, axis);
  auto known = constantInts(size);
  return {known ? std::optional(known->front()) : std::nullopt, size};
}
// The number of tiles of `edge` elements that cover the axis.
Value tileCount(NodeBuilder &b, const Size &size, int64_t edge) {
  if (size.known)
    return b.ints({(*size.known + edge - 1) / edge});
  return b.div(b.add(size.value, b.ints({edge - 1})), b.ints({edge}));
}

// x with every tiled axis split in two: the tile's number and the place in it. Added places hold 0.
Value splitInTiles(NodeBuilder &b, Value x, ArrayRef<int64_t> tile, SmallVectorImpl<int64_t> &inTile) {
  SmallVector<Value> shape, padding;
  bool pads = false;
  int64_t axis = 0;
  for (auto [i, edge] : llvm::enumerate(tile)) {
    Size size = sizeAlong(b, x, static_cast<int64_t>(i));
    Value added = b.ints({0});
    if (edge == 1) {
      shape.push_back(size.value);
      ++axis;
    } else {
      Value count = edge == 0 ? b.ints({1}) : tileCount(b, size, edge);
      shape.append({count, edge == 0 ? size.value : b.ints({edge})});
      inTile.push_back(axis + 1);
      axis += 2;
      if (edge != 0 && !(size.known && *size.known % edge == 0)) {
        pads = true;
        added =
            size.known ? b.ints({(edge - *size.known % edge) % edge}) : b.sub(b.mul(count, b.ints({edge})), size.value);
      }
    }
    padding.push_back(added);
  }
  if (pads)
    x = b.node("Pad", {x, joinShape(b, {b.ints(SmallVector<int64_t>(tile.size(), 0)), joinShape(b, padding)})});
  return b.reshape(x, joinShape(b, shape));
}

// One value a tile, repeated so that it broadcasts to x.
Value spread(NodeBuilder &b, Value scale, Value x, ArrayRef<int64_t> tile) {
  for (auto [i, edge] : llvm::enumerate(tile)) {
    if (edge <= 1)
      continue;
    auto axis = static_cast<int64_t>(i);
    Value places = b.div(iota(b, sizeOf(b, x, axis)), b.intScalar(edge));
    scale = b.node("Gather", {scale, places}, b.attr("axis", axis));
  }
  return scale;
}

// 2^ceil(log2(x)), or 2^floor(log2(x)), of f64.
Value powerOfTwo(NodeBuilder &b, Value x, bool up) {
  Value log = b.mulScalar(b.node("Log", {x}), 1 / std::log(2.0));
  Value power = b.node("Pow", {b.scalarLike(x, 2), b.node(up ? "Ceil" : "Floor", {log})});
  Value half = b.mulScalar(power, 0.5), twice = b.mulScalar(power, 2);
  if (up) {
    power = b.where(b.compare("GreaterOrEqual", half, x), half, power);
    return b.where(b.node("Less", {power, x}), b.mulScalar(power, 2), power);
  }
  power = b.where(b.compare("GreaterOrEqual", x, twice), twice, power);
  return b.where(b.node("Greater", {power, x}), b.mulScalar(power, 0.5), power);
}

LogicalResult quantizeFp8Tiles(Node op, NodeBuilder &b, Values in, Outputs &out) {
  int64_t scaleType = op.getInt("scale_type", onnx::TensorProto::FLOAT);
  bool isE8M0 = scaleType == onnx::TensorProto::FLOAT8E8M0;
  if (failed(needsOpset(op, b, isE8M0 ? kOpsetOfE8M0 : kOpsetOfFp8)))
    return failure();
  SmallVector<int64_t> tile = op.getInts("tile").value_or(SmallVector<int64_t>());
  StringRef rule = op.getString("rule", "exact");
  double largest = largestNumber(op);
  Value x = b.cast(in[0], f32(b)), amax;
  if (isOneTile(tile)) {
    amax = amaxOver(b, x, {}, largest);
  } else {
    SmallVector<int64_t> inTile;
    Value split = splitInTiles(b, x, tile, inTile);
    amax = amaxOver(b, split, inTile, largest);
  }
  amax = b.where(b.node("Greater", {amax, b.scalarLike(amax, 0)}), amax, b.scalarLike(amax, largest));
  Value multiplier, inverse;
  if (rule == "exact") {
    multiplier = b.node("Min", {b.div(b.scalarLike(amax, largest), amax), b.scalarLike(amax, kLargestFloat)});
    inverse = b.node("Reciprocal", {multiplier});
  } else {
    Value wide = b.cast(amax, f64(b));
    Value power = rule == "mx_floor"
                      ? b.mulScalar(powerOfTwo(b, wide, false), std::exp2(-std::floor(std::log2(largest))))
                      : powerOfTwo(b, b.mulScalar(wide, 1 / largest), true);
    power = b.node("Max", {b.node("Min", {power, b.scalarLike(power, 0x1p127)}), b.scalarLike(power, 0x1p-127)});
    inverse = b.cast(power, f32(b));
    multiplier = b.cast(b.node("Reciprocal", {power}), f32(b));
  }
  out.push_back(saturatingCast(op, b, b.mul(x, spread(b, multiplier, x, tile))));
  out.push_back(isE8M0 ? b.node("Cast", {inverse}, b.attr("to", scaleType)) : inverse);
  return success();
}

// DequantizeLinear where one axis is cut into blocks; it has no tiles of two dimensions.
LogicalResult dequantizeFp8(Node op, NodeBuilder &b, Values in, Outputs &out) {
  bool isE8M0 = isa<Float8E8M0FNUType>(elementTypeOf(in[1]));
  if (failed(needsOpset(op, b, isE8M0 ? kOpsetOfE8M0 : kOpsetOfFp8)))
    return failure();
  SmallVector<int64_t> tile = op.getInts("tile").value_or(SmallVector<int64_t>());
  Value q = in[0], scale = b.cast(in[1], f32(b));
  if (isOneTile(tile)) {
    out.push_back(b.node("DequantizeLinear", {q, scale}));
    return success();
  }
  SmallVector<int64_t> cut;
  for (auto [i, edge] : llvm::enumerate(tile))
    if (edge != 1)
      cut.push_back(static_cast<int64_t>(i));
  auto type = dyn_cast<RankedTensorType>(q.getType());
  constexpr int64_t kOpsetOfBlocks = 21;
  if (cut.size() == 1 && b.opset() >= kOpsetOfBlocks && type) {
    int64_t size = type.getDimSize(cut[0]), edge = tile[cut[0]] ? tile[cut[0]] : size;
    if (!ShapedType::isDynamic(edge) && edge > 0) {
      out.push_back(b.node("DequantizeLinear", {q, scale}, {b.attr("axis", cut[0]), b.attr("block_size", edge)}));
      return success();
    }
  }
  out.push_back(b.mul(b.cast(q, f32(b)), spread(b, scale, q, tile)));
  return success();
}

// --- The history ---

LogicalResult updateAmax(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value skip = in[0], history = in[1], scale = in[2], amax = b.reshape(in[3], {1});
  auto type = rankedType(op, history);
  if (!type || type.isDynamicDim(0))
    return op->emitError() << "node " << op.describe() << ": the length of amax_history is not known";
  int64_t length = type.getDimSize(0);
  Value seen = amax;
  if (op.getString("algorithm", "max") == "max" && length > 1)
    seen = b.concat({amax, b.slice(history, {1}, {length}, {0})}, 0);
  Value isNaN = b.node("IsNaN", {seen});
  Value peak = b.reduce("ReduceMax", b.where(isNaN, b.scalarLike(seen, 0), seen), {}, /*keepDims=*/false);
  Value zero = b.scalarLike(peak, 0);
  Value isUsable =
      b.node("And", {b.node("Greater", {peak, zero}), b.node("Less", {peak, b.scalarLike(peak, kInfinity)})});
  if (op.getString("nan", "propagate") == "propagate") {
    Value sawNaN = b.node("Greater", {b.reduce("ReduceMax", b.cast(isNaN, f32(b)), {}, /*keepDims=*/false), zero});
    isUsable = b.node("And", {isUsable, b.node("Not", {sawNaN})});
  }
  Value next = b.div(b.scalarLike(peak, largestNumber(op)), peak);
  next = b.div(next, b.scalarLike(peak, std::exp2(static_cast<double>(op.getInt("margin", 0)))));
  next = b.node("Min", {next, b.scalarLike(peak, kLargestFloat)});
  SmallVector<Value> entries{b.filled(b.ints({1}), f32(b), 0)};
  if (length > 2)
    entries.push_back(b.slice(history, {2}, {length}, {0}));
  if (length > 1)
    entries.push_back(amax);
  Value shifted = entries.size() == 1 ? entries.front() : b.concat(entries, 0);
  out.push_back(select(b, skip, history, shifted));
  out.push_back(select(b, skip, scale, select(b, isUsable, next, scale)));
  return success();
}

} // namespace

ArrayRef<BodyEntry> fp8Bodies() {
  static const BodyEntry entries[] = {
      {"quantize_fp8", quantizeFp8},
      {"quantize_fp8_tiles", quantizeFp8Tiles},
      {"dequantize_fp8", dequantizeFp8},
      {"update_amax", updateAmax},
  };
  return entries;
}

} // namespace recast::train
