// Gather and its relatives, scatters, and the gradient of Gather.
#include "runtime/kernels/cuda/source/Indexing.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include <bit>

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

std::string refuseIndices(const TensorType &indices) {
  if (indices.dtype != DType::I64 && indices.dtype != DType::I32)
    return "indices of " + unsupported(indices.dtype);
  return indices.rank() > kMaxRank ? "rank " + std::to_string(indices.rank()) : "";
}
bool isWide(const TensorType &indices) { return indices.dtype == DType::I64; }

std::string compileGather(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &indices = spec.inputs[1], &y = spec.outputs[0];
  if (std::string refusal = refuseIndices(indices); !refusal.empty())
    return refusal;
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), x.rank());
  if (axis < 0)
    return "axis is outside the rank";
  if (y.elems() == 0)
    return "";
  // The widest pieces that rows consist of.
  auto rowBytes = product(x.dims, axis + 1, x.rank()) * static_cast<int64_t>(byteSize(x.dtype));
  int64_t piece = 16;
  while (rowBytes % piece)
    piece /= 2;
  LaunchOf<GatherArgs>("gather_" + std::to_string(piece), {.src = nullptr,
                                                           .indices = nullptr,
                                                           .dst = nullptr,
                                                           .fault = nullptr,
                                                           .outer = product(x.dims, 0, axis),
                                                           .size = x.dims[static_cast<size_t>(axis)],
                                                           .count = indices.elems(),
                                                           .inner = rowBytes / piece,
                                                           .isWide = isWide(indices)})
      .read(&GatherArgs::src, input(0))
      .read(&GatherArgs::indices, input(1))
      .write(&GatherArgs::dst, output(0))
      .update(&GatherArgs::fault, {Operand::Fault})
      .grid(blocksFor(static_cast<int64_t>(y.bytes()) / piece))
      .into(program);
  return "";
}

/// Sizes of the space that indices span, and strides of the tensor that they go into: 0 along the axis.
template <typename Args> void setSpace(Args &args, const TensorType &tensor, const TensorType &indices, int64_t axis) {
  std::vector<int64_t> strides = denseStrides(tensor.dims);
  args.rank = static_cast<int>(indices.rank());
  args.axisSize = tensor.dims[static_cast<size_t>(axis)];
  args.axisStride = strides[static_cast<size_t>(axis)];
  args.isWide = isWide(indices);
  for (size_t d = 0; d < indices.dims.size(); ++d) {
    args.sizes.values[d] = indices.dims[d];
    args.strides.values[d] = static_cast<int64_t>(d) == axis ? 0 : strides[d];
  }
}

std::string compileGatherElements(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &indices = spec.inputs[1];
  if (std::string refusal = refuseIndices(indices); !refusal.empty())
    return refusal;
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), x.rank());
  if (axis < 0)
    return "axis is outside the rank";
  if (indices.elems() == 0)
    return "";
  GatherElementsArgs args{};
  args.count = indices.elems();
  setSpace(args, x, indices, axis);
  LaunchOf<GatherElementsArgs>("gather_elements" + sizeSuffix(x.dtype), args)
      .read(&GatherElementsArgs::src, input(0))
      .read(&GatherElementsArgs::indices, input(1))
      .write(&GatherElementsArgs::dst, output(0))
      .update(&GatherElementsArgs::fault, {Operand::Fault})
      .grid(blocksFor(args.count))
      .into(program);
  return "";
}

std::string compileGatherNd(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &indices = spec.inputs[1], &y = spec.outputs[0];
  if (std::string refusal = refuseIndices(indices); !refusal.empty())
    return refusal;
  int64_t batchDims = spec.attrs.getInt("batch_dims", 0), width = indices.dims.back();
  if (batchDims < 0 || batchDims + width > x.rank() || batchDims >= indices.rank())
    return "the indices do not fit the rank";
  if (y.elems() == 0)
    return "";
  std::vector<int64_t> strides = denseStrides(x.dims);
  int64_t batches = product(x.dims, 0, batchDims), tuples = product(indices.dims, 0, indices.rank() - 1);
  GatherNdArgs args{};
  args.tuples = tuples;
  args.width = width;
  args.slice = product(x.dims, batchDims + width, x.rank());
  args.perBatch = tuples / batches;
  args.batchElems = product(x.dims, batchDims, x.rank());
  args.isWide = isWide(indices);
  for (int64_t k = 0; k < width; ++k) {
    args.sizes.values[k] = x.dims[static_cast<size_t>(batchDims + k)];
    args.strides.values[k] = strides[static_cast<size_t>(batchDims + k)];
  }
  LaunchOf<GatherNdArgs> launch("gather_nd" + sizeSuffix(x.dtype), args);
  launch.read(&GatherNdArgs::src, input(0)).write(&GatherNdArgs::dst, output(0));
  if (width)
    launch.read(&GatherNdArgs::indices, input(1));
  launch.update(&GatherNdArgs::fault, {Operand::Fault}).grid(blocksFor(y.elems())).into(program);
  return "";
}

std::string compileOneHot(const StepSpec &spec, Program &program) {
  const TensorType &indices = spec.inputs[0], &y = spec.outputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", -1), y.rank());
  if (axis < 0)
    return "axis is outside the rank";
  if (!isFloat(indices.dtype) && indices.dtype != DType::I32 && indices.dtype != DType::I64)
    return "indices of " + unsupported(indices.dtype);
  int64_t depth = y.dims[static_cast<size_t>(axis)];
  std::vector<int64_t> given;
  if (spec.constants.size() <= 1 || !spec.constants[1].data)
    return "the depth depends on data";
  if (constantInts(spec, 1, given) && (given.size() != 1 || given[0] != depth))
    return "the depth is not that of the output";
  if (y.elems() == 0)
    return "";
  LaunchOf<OneHotArgs>("one_hot" + sizeSuffix(y.dtype), {.indices = nullptr,
                                                         .values = nullptr,
                                                         .dst = nullptr,
                                                         .count = y.elems(),
                                                         .depth = depth,
                                                         .inner = product(y.dims, axis + 1, y.rank()),
                                                         .indexType = static_cast<int>(indices.dtype)})
      .read(&OneHotArgs::indices, input(0))
      .read(&OneHotArgs::values, input(2))
      .write(&OneHotArgs::dst, output(0))
      .grid(blocksFor(y.elems()))
      .into(program);
  return "";
}

/// Sorts what a keys_* kernel makes and applies the updates: input `updates`, rows of `inner` elements.
std::string scatter(Program &program, const std::string &keysKernel, KeyArgs keys, size_t indicesInput,
                    ScatterArgs args, DType type, size_t updates) {
  if (args.rows >= kNoRow || args.count >= kNoRow)
    return std::to_string(args.rows) + " rows and " + std::to_string(args.count) +
           " updates are more than 32 bits count";
  auto bytes = static_cast<size_t>(args.count) * sizeof(uint32_t);
  int64_t tiles = (args.count + kSortTile - 1) / kSortTile;
  Operand from[] = {program.reserve(bytes), program.reserve(bytes)};
  Operand to[] = {program.reserve(bytes), program.reserve(bytes)};
  Operand counts = program.reserve(static_cast<size_t>(tiles) * kDigits * sizeof(uint32_t));
  LaunchOf<KeyArgs> makeKeys(keysKernel, keys);
  if (!keysKernel.ends_with("tuples") || keys.width)
    makeKeys.read(&KeyArgs::indices, input(indicesInput));
  makeKeys.write(&KeyArgs::keys, from[0])
      .write(&KeyArgs::positions, from[1])
      .update(&KeyArgs::fault, {Operand::Fault})
      .grid(blocksFor(keys.count))
      .into(program);
  // Every bit that a row or, with all bits set, no row can have.
  int bits = static_cast<int>(std::bit_width(static_cast<uint32_t>(args.rows)));
  for (int shift = 0; shift < bits; shift += 8) {
    RadixArgs radix{};
    radix.count = args.count;
    radix.tiles = tiles;
    radix.shift = shift;
    LaunchOf<RadixArgs>("radix_count", radix)
        .read(&RadixArgs::keys, from[0])
        .write(&RadixArgs::counts, counts)
        .grid(tiles, kDigits)
        .into(program);
    LaunchOf<ScanArgs>("radix_scan", {.values = nullptr, .count = tiles * kDigits})
        .update(&ScanArgs::values, counts)
        .grid(1, 1024)
        .into(program);
    LaunchOf<RadixArgs>("radix_place", radix)
        .read(&RadixArgs::keys, from[0])
        .read(&RadixArgs::positions, from[1])
        .write(&RadixArgs::keysOut, to[0])
        .write(&RadixArgs::positionsOut, to[1])
        .read(&RadixArgs::counts, counts)
        .grid(tiles, kDigits)
        .into(program);
    std::swap(from, to);
  }
  // Bytes that are only put somewhere are those of an unsigned integer.
  if (args.combine == Combine::None)
    type = byteSize(type) == 1   ? DType::U8
           : byteSize(type) == 2 ? DType::U16
           : byteSize(type) == 4 ? DType::U32
                                 : DType::U64;
  LaunchOf<ScatterArgs>("scatter" + typeSuffix(type), args)
      .read(&ScatterArgs::keys, from[0])
      .read(&ScatterArgs::positions, from[1])
      .read(&ScatterArgs::updates, input(updates))
      .update(&ScatterArgs::y, output(0))
      .grid(blocksFor(args.outer * args.count * args.inner))
      .into(program);
  return "";
}

std::string compileGatherGrad(const StepSpec &spec, Program &program) {
  const TensorType &indices = spec.inputs[1], &dx = spec.outputs[0];
  if (std::string refusal = refuseIndices(indices); !refusal.empty())
    return refusal;
  if (!isFloat(dx.dtype))
    return unsupported(dx.dtype);
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), dx.rank());
  if (axis < 0)
    return "axis is outside the rank";
  fillZero(program, spec, 0);
  if (spec.inputs[0].elems() == 0)
    return "";
  KeyArgs keys{};
  keys.count = indices.elems();
  keys.axisSize = dx.dims[static_cast<size_t>(axis)];
  keys.isWide = isWide(indices);
  return scatter(program, "keys_rows", keys, 1,
                 {.keys = nullptr,
                  .positions = nullptr,
                  .updates = nullptr,
                  .y = nullptr,
                  .count = indices.elems(),
                  .rows = keys.axisSize,
                  .outer = product(dx.dims, 0, axis),
                  .inner = product(dx.dims, axis + 1, dx.rank()),
                  .combine = Combine::Add},
                 dx.dtype, 0);
}

std::string combineOf(const StepSpec &spec, Combine &combine) {
  std::string reduction = spec.attrs.getString("reduction", "none");
  constexpr std::string_view kNames[] = {"none", "add", "mul", "max", "min"};
  for (size_t i = 0; i < std::size(kNames); ++i)
    if (reduction == kNames[i]) {
      combine = static_cast<Combine>(i);
      return i > 0 && spec.outputs[0].dtype == DType::Bool ? "bool tensors have no reduction" : "";
    }
  return "reduction " + reduction + " is not supported";
}

/// What both scatters begin with: y becomes the data, where it does not lie there.
std::string beginScatter(const StepSpec &spec, Program &program, Combine &combine) {
  if (std::string refusal = refuseIndices(spec.inputs[1]); !refusal.empty())
    return refusal;
  if (std::string refusal = combineOf(spec, combine); !refusal.empty())
    return refusal;
  if (isFloat8(spec.outputs[0].dtype))
    return unsupported(spec.outputs[0].dtype);
  program.inPlace = {{0, 0}};
  if (spec.outputs[0].bytes())
    copyWhole(program, input(0), output(0), spec.outputs[0].bytes());
  return "";
}

std::string compileScatterElements(const StepSpec &spec, Program &program) {
  const TensorType &data = spec.inputs[0], &indices = spec.inputs[1];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), data.rank());
  if (axis < 0)
    return "axis is outside the rank";
  for (int64_t d = 0; d < data.rank(); ++d)
    if (d != axis && indices.dims[static_cast<size_t>(d)] > data.dims[static_cast<size_t>(d)])
      return "there are more indices than data along an axis";
  Combine combine;
  if (std::string refusal = beginScatter(spec, program, combine); !refusal.empty())
    return refusal;
  if (indices.elems() == 0)
    return "";
  KeyArgs keys{};
  keys.count = indices.elems();
  setSpace(keys, data, indices, axis);
  return scatter(program, "keys_elements", keys, 1,
                 {.keys = nullptr,
                  .positions = nullptr,
                  .updates = nullptr,
                  .y = nullptr,
                  .count = keys.count,
                  .rows = data.elems(),
                  .outer = 1,
                  .inner = 1,
                  .combine = combine},
                 data.dtype, 2);
}

std::string compileScatterNd(const StepSpec &spec, Program &program) {
  const TensorType &data = spec.inputs[0], &indices = spec.inputs[1];
  int64_t width = indices.dims.back();
  if (width > data.rank())
    return "the indices do not fit the rank";
  Combine combine;
  if (std::string refusal = beginScatter(spec, program, combine); !refusal.empty())
    return refusal;
  if (spec.inputs[2].elems() == 0)
    return "";
  int64_t slice = product(data.dims, width, data.rank());
  std::vector<int64_t> strides = denseStrides(data.dims);
  KeyArgs keys{};
  keys.count = product(indices.dims, 0, indices.rank() - 1);
  keys.width = width;
  keys.isWide = isWide(indices);
  for (size_t k = 0; k < static_cast<size_t>(width); ++k) {
    keys.sizes.values[k] = data.dims[k];
    keys.strides.values[k] = strides[k] / slice;
  }
  return scatter(program, "keys_tuples", keys, 1,
                 {.keys = nullptr,
                  .positions = nullptr,
                  .updates = nullptr,
                  .y = nullptr,
                  .count = keys.count,
                  .rows = data.elems() / slice,
                  .outer = 1,
                  .inner = slice,
                  .combine = combine},
                 data.dtype, 2);
}

} // namespace

std::span<const Row> indexingRows() {
  static constexpr Row rows[] = {
      {"", "Gather", 1, kNewest, compileGather},           {"", "GatherElements", 11, kNewest, compileGatherElements},
      {"", "GatherND", 11, kNewest, compileGatherNd},      {"", "OneHot", 9, kNewest, compileOneHot},
      {"", "Scatter", 9, kNewest, compileScatterElements}, {"", "ScatterElements", 11, kNewest, compileScatterElements},
      {"", "ScatterND", 11, kNewest, compileScatterNd},    {"recast", "gather_grad", 1, kNewest, compileGatherGrad},
  };
  return rows;
}

} // namespace recast::cuda
