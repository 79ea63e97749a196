// fp8 quantisation with amax, per tensor and per tile, and the history of amax.
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/source/Fp8.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include <algorithm>
#include <cmath>

namespace recast::cuda {
namespace {

bool isTrained(DType type) { return type == DType::F8E4M3FN || type == DType::F8E5M2; }
float largestOf(DType type) { return type == DType::F8E5M2 ? Float8E5M2::largest() : Float8E4M3FN::largest(); }

std::string refuseTypes(DType x, DType q) {
  if (!isFloat(x) || x == DType::F64)
    return unsupported(x);
  return isTrained(q) ? "" : unsupported(q);
}

void fill(Program &program, Operand to) {
  LaunchOf<FillArgs>("fill_zero", {.dst = nullptr, .bytes = static_cast<int64_t>(to.bytes)})
      .write(&FillArgs::dst, to)
      .grid(blocksFor(static_cast<int64_t>(to.bytes) / 16))
      .into(program);
}

/// The quantised tensor in both layouts: outputs 0 (perhaps) and 2. `amax` may be absent, of no bytes.
std::string quantizeTransposed(const StepSpec &spec, Program &program, QuantizeTransposedArgs args, Operand multipliers,
                               Operand amax) {
  const TensorType &x = spec.inputs[0], &transposed = spec.outputs[2];
  args.rows = spec.attrs.getInt("rows", 0), args.columns = spec.attrs.getInt("columns", 0);
  int64_t size = args.rows * args.columns;
  if (size <= 0 || x.elems() % size || transposed.elems() != x.elems())
    return "attributes rows and columns do not fit the tensor";
  LaunchOf<QuantizeTransposedArgs> launch("quantize_transposed" + typeSuffix(x.dtype) + typeSuffix(transposed.dtype),
                                          args);
  launch.read(&QuantizeTransposedArgs::x, input(0)).read(&QuantizeTransposedArgs::multipliers, multipliers);
  if (amax.bytes)
    launch.update(&QuantizeTransposedArgs::amax, amax);
  if (has(spec.outputs, 0))
    launch.write(&QuantizeTransposedArgs::q, output(0));
  launch.write(&QuantizeTransposedArgs::transposed, output(2));
  auto tiles = [](int64_t edge) { return (edge + kTransposeTile - 1) / kTransposeTile; };
  launch.grid(x.elems() / size * tiles(args.rows) * tiles(args.columns)).into(program);
  return "";
}
/// Of the quantised tensor, in whichever layout it is there.
DType quantisedType(const StepSpec &spec) { return spec.outputs[has(spec.outputs, 0) ? 0 : 2].dtype; }

std::string compileQuantize(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  DType q = quantisedType(spec);
  if (std::string refusal = refuseTypes(x.dtype, q); !refusal.empty())
    return refusal;
  if (spec.inputs[1].dtype != DType::F32)
    return "it takes x and a scale of f32";
  bool hasAmax = has(spec.outputs, 1);
  Operand bits = hasAmax ? program.reserve(16) : Operand();
  if (hasAmax)
    fill(program, bits);
  if (x.elems() && has(spec.outputs, 2)) {
    if (std::string refusal = quantizeTransposed(spec, program, {}, input(1), bits); !refusal.empty())
      return refusal;
  } else if (x.elems()) {
    LaunchOf<QuantizeArgs> launch("quantize_fp8" + typeSuffix(x.dtype) + typeSuffix(q),
                                  {.x = nullptr, .scale = nullptr, .q = nullptr, .amax = nullptr, .count = x.elems()});
    launch.read(&QuantizeArgs::x, input(0)).read(&QuantizeArgs::scale, input(1)).write(&QuantizeArgs::q, output(0));
    if (hasAmax)
      launch.update(&QuantizeArgs::amax, bits);
    launch.grid(blocksFor(x.elems())).into(program);
  }
  if (hasAmax)
    LaunchOf<AmaxArgs>("store_amax", {.bits = nullptr, .amax = nullptr})
        .read(&AmaxArgs::bits, bits)
        .write(&AmaxArgs::amax, output(1))
        .grid(1)
        .into(program);
  return "";
}

/// The tiling of `x`; the scale has one element a tile.
std::string tilingOf(const std::vector<int64_t> &tile, const TensorType &x, const TensorType &scale, Tiling &tiling) {
  if (tile.size() != x.dims.size() || tile.size() > kTileRank)
    return "attribute tile does not fit the rank";
  if (scale.dtype != DType::F32 && scale.dtype != DType::F8E8M0)
    return unsupported(scale.dtype);
  tiling.rank = static_cast<int>(tile.size());
  int64_t stride = 1;
  for (size_t d = tile.size(); d-- > 0;) {
    if (tile[d] < 0)
      return "attribute tile is negative";
    int64_t edge = tile[d] ? tile[d] : std::max<int64_t>(x.dims[d], 1);
    tiling.sizes.values[d] = x.dims[d];
    tiling.edges.values[d] = edge;
    tiling.strides.values[d] = stride;
    stride *= (x.dims[d] + edge - 1) / edge;
  }
  return stride == scale.elems() ? "" : "attribute tile does not fit the scale";
}

std::string compileQuantizeTiles(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &inverse = spec.outputs[1];
  DType q = quantisedType(spec);
  if (std::string refusal = refuseTypes(x.dtype, q); !refusal.empty())
    return refusal;
  TileArgs args{};
  if (std::string refusal = tilingOf(spec.attrs.getInts("tile"), x, inverse, args.tiling); !refusal.empty())
    return refusal;
  std::string rule = spec.attrs.getString("rule", "exact");
  bool isE8M0 = inverse.dtype == DType::F8E8M0;
  if (isE8M0 && rule != "pow2" && rule != "mx_floor")
    return "scales of e8m0 are powers of two";
  int64_t tiles = inverse.elems();
  if (tiles == 0)
    return "";
  auto bytes = static_cast<size_t>(tiles) * sizeof(float);
  Operand amax = program.reserve(bytes), multipliers = program.reserve(bytes);
  fill(program, amax);
  args.count = x.elems();
  if (args.count)
    LaunchOf<TileArgs>("tile_amax" + typeSuffix(x.dtype), args)
        .read(&TileArgs::x, input(0))
        .update(&TileArgs::amax, amax)
        .grid(blocksFor(args.count))
        .into(program);
  LaunchOf<TileScaleArgs>("tile_scale", {.amax = nullptr,
                                         .multipliers = nullptr,
                                         .inverse = nullptr,
                                         .count = tiles,
                                         .largest = largestOf(q),
                                         .rule = rule == "pow2"       ? ScaleRule::PowerOfTwo
                                                 : rule == "mx_floor" ? ScaleRule::MxFloor
                                                                      : ScaleRule::Exact,
                                         .isE8M0 = isE8M0})
      .read(&TileScaleArgs::amax, amax)
      .write(&TileScaleArgs::multipliers, multipliers)
      .write(&TileScaleArgs::inverse, output(1))
      .grid(blocksFor(tiles))
      .into(program);
  if (args.count && has(spec.outputs, 2)) {
    QuantizeTransposedArgs both{};
    both.tiling = args.tiling, both.isTiled = true;
    return quantizeTransposed(spec, program, both, multipliers, {});
  }
  if (args.count)
    LaunchOf<TileArgs>("tile_quantize" + typeSuffix(x.dtype) + typeSuffix(q), args)
        .read(&TileArgs::x, input(0))
        .read(&TileArgs::multipliers, multipliers)
        .write(&TileArgs::q, output(0))
        .grid(blocksFor(args.count))
        .into(program);
  return "";
}

std::string dequantize(const StepSpec &spec, const std::vector<int64_t> &tile, Program &program) {
  const TensorType &q = spec.inputs[0], &inverse = spec.inputs[1], &y = spec.outputs[0];
  if (!isTrained(q.dtype) || y.dtype != DType::F32)
    return unsupported(isTrained(q.dtype) ? y.dtype : q.dtype);
  DequantizeArgs args{};
  if (std::string refusal = tilingOf(tile, q, inverse, args.tiling); !refusal.empty())
    return refusal;
  args.count = q.elems();
  args.isE8M0 = inverse.dtype == DType::F8E8M0;
  if (args.count)
    LaunchOf<DequantizeArgs>("dequantize_fp8" + typeSuffix(q.dtype), args)
        .read(&DequantizeArgs::q, input(0))
        .read(&DequantizeArgs::inverse, input(1))
        .write(&DequantizeArgs::y, output(0))
        .grid(blocksFor(args.count))
        .into(program);
  return "";
}

std::string compileDequantize(const StepSpec &spec, Program &program) {
  return dequantize(spec, spec.attrs.getInts("tile"), program);
}

/// Of ONNX: one scale, or one for each index of an axis, or for each block of `block_size` along it.
std::string compileDequantizeLinear(const StepSpec &spec, Program &program) {
  const TensorType &q = spec.inputs[0], &scale = spec.inputs[1];
  if (has(spec.inputs, 2)) // The 8-bit floats have only 0 there.
    return "a zero point";
  std::vector<int64_t> tile(q.dims.size(), 0);
  if (scale.elems() != 1) {
    int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 1), q.rank());
    if (axis < 0)
      return "the axis is out of range";
    int64_t block = spec.attrs.getInt("block_size", 0);
    if (block)
      std::fill(tile.begin(), tile.end(), 1);
    tile[static_cast<size_t>(axis)] = block ? block : 1;
  }
  return dequantize(spec, tile, program);
}

std::string compileUpdateAmax(const StepSpec &spec, Program &program) {
  if (spec.inputs.size() != 4 || spec.inputs[0].dtype != DType::Bool || spec.inputs[1].dtype != DType::F32 ||
      spec.inputs[1].elems() == 0 || spec.inputs[2].dtype != DType::F32 || spec.inputs[3].dtype != DType::F32)
    return "it takes skip bool, amax_history f32 (not empty), scale f32 and amax f32";
  program.inPlace = {{0, 1}, {1, 2}};
  AmaxHistoryArgs args{};
  args.length = spec.inputs[1].elems();
  args.largest = largestOf(static_cast<DType>(spec.attrs.getInt("to", 0)));
  args.margin = std::ldexp(1.0f, static_cast<int>(spec.attrs.getInt("margin", 0)));
  args.ignoresNaN = spec.attrs.getString("nan", "propagate") == "ignore";
  args.takesLargest = spec.attrs.getString("algorithm", "max") == "max";
  LaunchOf<AmaxHistoryArgs>("update_amax", args)
      .read(&AmaxHistoryArgs::skip, input(0))
      .read(&AmaxHistoryArgs::history, input(1))
      .read(&AmaxHistoryArgs::scale, input(2))
      .read(&AmaxHistoryArgs::amax, input(3))
      .write(&AmaxHistoryArgs::newHistory, output(0))
      .write(&AmaxHistoryArgs::newScale, output(1))
      .grid(1, 32)
      .into(program);
  return "";
}

} // namespace

std::span<const Row> fp8Rows() {
  static constexpr Row rows[] = {
      {"recast", "quantize_fp8", 1, 1, compileQuantize},
      {"recast", "quantize_fp8_tiles", 1, 1, compileQuantizeTiles},
      {"recast", "dequantize_fp8", 1, 1, compileDequantize},
      {"", "DequantizeLinear", 10, INT64_MAX, compileDequantizeLinear},
      {"recast", "update_amax", 1, 1, compileUpdateAmax},
  };
  return rows;
}

} // namespace recast::cuda
