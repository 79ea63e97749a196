// Steps that move elements: transposes, slices, concatenations, broadcasts, paddings.
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include "runtime/reference/ShapeCopy.h"
#include <algorithm>
#include <bit>

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

/// The loops of a strided copy, from the outermost to the innermost; neighbours that both sides walk as one are merged.
class Loops {
public:
  explicit Loops(int64_t srcOffset = 0, int64_t dstOffset = 0) : srcOffset(srcOffset), dstOffset(dstOffset) {}

  void add(int64_t size, int64_t srcStride, int64_t dstStride) {
    count *= size;
    if (size == 1)
      return;
    if (!loops.empty() && loops.back().src == srcStride * size && loops.back().dst == dstStride * size)
      loops.back() = {loops.back().size * size, srcStride, dstStride};
    else
      loops.push_back({size, srcStride, dstStride});
  }

  /// Appends the copy from an input to an output, as a plain or a transposing copy where it is one.
  std::string into(Program &program, DType type, Operand from, Operand to) const {
    if (count == 0)
      return "";
    size_t element = byteSize(type);
    auto bytes = [&](int64_t elems) { return elems * static_cast<int64_t>(element); };
    bool isDense = loops.empty() || (loops.size() == 1 && loops[0].src == 1 && loops[0].dst == 1);
    if (isDense && bytes(srcOffset) % 16 == 0 && bytes(dstOffset) % 16 == 0) {
      from.offset += static_cast<size_t>(bytes(srcOffset));
      to.offset += static_cast<size_t>(bytes(dstOffset));
      copyWhole(program, from, to, static_cast<size_t>(bytes(count)));
      return "";
    }
    if (srcOffset == 0 && dstOffset == 0 && transpose(program, type, from, to))
      return "";
    if (loops.size() > kMaxLoops)
      return "more than " + std::to_string(kMaxLoops) + " loops";
    StridedCopyArgs args{.src = nullptr,
                         .dst = nullptr,
                         .srcOffset = srcOffset,
                         .dstOffset = dstOffset,
                         .count = count,
                         .rank = static_cast<int>(loops.size()),
                         .sizes = {},
                         .srcStrides = {},
                         .dstStrides = {}};
    for (size_t d = 0; d < loops.size(); ++d) {
      args.sizes.values[d] = loops[d].size;
      args.srcStrides.values[d] = loops[d].src;
      args.dstStrides.values[d] = loops[d].dst;
    }
    LaunchOf<StridedCopyArgs>("copy_strided" + sizeSuffix(type), args)
        .read(&StridedCopyArgs::src, from)
        .write(&StridedCopyArgs::dst, to)
        .grid(blocksFor(count))
        .into(program);
    return "";
  }

private:
  struct Loop {
    int64_t size, src, dst;
  };

  /// [batch,] rows, columns with src = [batch,] columns, rows: true where the copy is that, and was appended.
  bool transpose(Program &program, DType type, Operand from, Operand to) const {
    if (loops.size() != 2 && loops.size() != 3)
      return false;
    Loop batch = loops.size() == 3 ? loops[0] : Loop{1, 0, 0}, row = loops[loops.size() - 2], column = loops.back();
    if (row.src != 1 || column.src != row.size || column.dst != 1 || row.dst != column.size)
      return false;
    int64_t matrix = row.size * column.size;
    if (loops.size() == 3 && (batch.src != matrix || batch.dst != matrix))
      return false;
    constexpr int64_t kTile = 32;
    auto tiles = [](int64_t size) { return (size + kTile - 1) / kTile; };
    int64_t blocks = batch.size * tiles(row.size) * tiles(column.size);
    if (blocks > INT32_MAX)
      return false;
    LaunchOf<TransposeArgs>(
        "copy_transposed" + sizeSuffix(type),
        {.src = nullptr, .dst = nullptr, .batches = batch.size, .rows = row.size, .columns = column.size})
        .read(&TransposeArgs::src, from)
        .write(&TransposeArgs::dst, to)
        .grid(blocks)
        .into(program);
    return true;
  }

  int64_t srcOffset, dstOffset, count = 1;
  std::vector<Loop> loops;
};

std::string copyInput(const StepSpec &spec, Program &program, size_t i) {
  if (spec.inputs[i].elems() != spec.outputs[i].elems())
    return "the output has another number of elements than the input";
  if (spec.outputs[i].bytes())
    copyWhole(program, input(i), output(i), spec.outputs[i].bytes());
  program.inPlace.push_back({i, i});
  return "";
}

std::string compileView(const StepSpec &spec, Program &program) { return copyInput(spec, program, 0); }

/// Every output is the input of the same number.
std::string compileBarrier(const StepSpec &spec, Program &program) {
  for (size_t i = 0; i < spec.outputs.size(); ++i)
    if (has(spec.outputs, i))
      if (std::string refusal = copyInput(spec, program, i); !refusal.empty())
        return refusal;
  return "";
}

/// Between two memories: never in place.
std::string compileTransfer(const StepSpec &spec, Program &program) {
  std::string refusal = copyInput(spec, program, 0);
  program.inPlace.clear();
  return refusal;
}

std::string compileKeepIf(const StepSpec &spec, Program &program) {
  if (spec.inputs[0].dtype != DType::Bool)
    return unsupported(spec.inputs[0].dtype);
  size_t bytes = spec.outputs[0].bytes();
  program.inPlace = {{0, 1}, {0, 2}};
  if (bytes)
    LaunchOf<SelectArgs>("select_bytes", {.condition = nullptr,
                                          .whenTrue = nullptr,
                                          .whenFalse = nullptr,
                                          .dst = nullptr,
                                          .bytes = static_cast<int64_t>(bytes)})
        .read(&SelectArgs::condition, input(0))
        .read(&SelectArgs::whenTrue, input(1))
        .read(&SelectArgs::whenFalse, input(2))
        .write(&SelectArgs::dst, output(0))
        .grid(blocksFor(static_cast<int64_t>(bytes) / 16))
        .into(program);
  return "";
}

std::string compileTranspose(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  std::vector<int64_t> perm = spec.attrs.getInts("perm");
  std::vector<int64_t> from = denseStrides(x.dims), to = denseStrides(y.dims);
  Loops loops;
  for (int64_t d = 0; d < y.rank(); ++d) {
    auto at = static_cast<size_t>(d);
    int64_t axis = perm.empty() ? y.rank() - 1 - d : normalizeAxis(perm[at], x.rank());
    if (axis < 0 || x.dims[static_cast<size_t>(axis)] != y.dims[at])
      return "perm does not fit the input and the output";
    loops.add(y.dims[at], from[static_cast<size_t>(axis)], to[at]);
  }
  return loops.into(program, y.dtype, input(0), output(0));
}

std::string compileConcat(const StepSpec &spec, Program &program) {
  const TensorType &y = spec.outputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 1), y.rank());
  if (axis < 0)
    return "axis is outside the rank";
  int64_t outer = product(y.dims, 0, axis), row = product(y.dims, axis, y.rank()), offset = 0;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    int64_t part = product(spec.inputs[i].dims, axis, y.rank());
    Loops loops(0, offset);
    loops.add(outer, part, row);
    loops.add(part, 1, 1);
    if (std::string refusal = loops.into(program, y.dtype, input(i), output(0)); !refusal.empty())
      return refusal;
    offset += part;
  }
  return offset == row ? "" : "the inputs are not as long as the output";
}

std::string compileSplit(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 0), x.rank());
  if (axis < 0)
    return "axis is outside the rank";
  std::vector<int64_t> given;
  constantInts(spec, 1, given);
  int64_t outer = product(x.dims, 0, axis), row = product(x.dims, axis, x.rank()), offset = 0;
  int64_t inner = product(x.dims, axis + 1, x.rank());
  for (size_t i = 0; i < spec.outputs.size(); ++i) {
    // An output that nothing reads has no type, but its part still counts.
    if (!has(spec.outputs, i) && i >= given.size())
      return "output " + std::to_string(i) + " is absent and its size unknown";
    int64_t part = has(spec.outputs, i) ? product(spec.outputs[i].dims, axis, x.rank()) : given[i] * inner;
    if (offset + part > row)
      return "the outputs are longer than the input";
    if (has(spec.outputs, i)) {
      Loops loops(offset, 0);
      loops.add(outer, row, part);
      loops.add(part, 1, 1);
      if (std::string refusal = loops.into(program, x.dtype, input(0), output(i)); !refusal.empty())
        return refusal;
    }
    offset += part;
  }
  return "";
}

std::string compileExpand(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  std::vector<int64_t> from = denseStrides(x.dims), to = denseStrides(y.dims);
  size_t skip = y.dims.size() - x.dims.size();
  Loops loops;
  for (size_t d = 0; d < y.dims.size(); ++d) {
    bool repeats = d < skip || x.dims[d - skip] == 1;
    if (!repeats && x.dims[d - skip] != y.dims[d])
      return "cannot expand " + toString(x) + " to " + toString(y);
    loops.add(y.dims[d], repeats ? 0 : from[d - skip], to[d]);
  }
  return loops.into(program, y.dtype, input(0), output(0));
}

std::string compileTile(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  std::vector<int64_t> from = denseStrides(x.dims), to = denseStrides(y.dims);
  Loops loops;
  for (size_t d = 0; d < y.dims.size(); ++d) {
    if (x.dims[d] == 0)
      return "";
    loops.add(y.dims[d] / x.dims[d], 0, x.dims[d] * to[d]);
    loops.add(x.dims[d], from[d], to[d]);
  }
  return loops.into(program, y.dtype, input(0), output(0));
}

/// The part of a tensor that a Slice takes: first element, step and size along each axis.
struct SliceRange {
  std::vector<int64_t> start, step, size;
};

/// Reads starts, ends, axes and steps, which are attributes (Slice 1) or constant inputs from `first` on.
std::string resolveSlice(const StepSpec &spec, std::span<const int64_t> dims, size_t first, SliceRange &range) {
  int64_t rank = static_cast<int64_t>(dims.size());
  range.start.assign(dims.size(), 0);
  range.step.assign(dims.size(), 1);
  range.size.assign(dims.begin(), dims.end());
  std::vector<int64_t> lists[4];
  constexpr const char *kNames[] = {"starts", "ends", "axes", "steps"};
  bool fromInputs = has(spec.inputs, first);
  for (size_t k = 0; k < 4; ++k)
    if (!fromInputs)
      lists[k] = spec.attrs.getInts(kNames[k]);
    else if (has(spec.inputs, first + k) && !constantInts(spec, first + k, lists[k]))
      return std::string(kNames[k]) + " depends on data";
  for (size_t i = 0; i < lists[0].size(); ++i) {
    int64_t axis = normalizeAxis(lists[2].empty() ? static_cast<int64_t>(i) : lists[2][i], rank);
    if (axis < 0)
      return "an axis is outside the rank";
    auto a = static_cast<size_t>(axis);
    int64_t size = dims[a], step = lists[3].empty() ? 1 : lists[3][i], start = lists[0][i], end = lists[1][i];
    if (step == 0)
      return "a step of 0";
    start += start < 0 ? size : 0;
    end += end < 0 ? size : 0;
    start = std::clamp<int64_t>(start, 0, step > 0 ? size : std::max<int64_t>(size - 1, 0));
    end = step > 0 ? std::clamp<int64_t>(end, 0, size) : std::clamp<int64_t>(end, -1, size - 1);
    // The distance divided by the step, rounded up; a step far beyond the size would overflow its negation.
    step = std::clamp<int64_t>(step, -size - 1, size + 1);
    int64_t distance = step > 0 ? end - start : start - end, stride = step > 0 ? step : -step;
    range.start[a] = start;
    range.step[a] = step;
    range.size[a] = size == 0 || distance <= 0 ? 0 : (distance + stride - 1) / stride;
  }
  return "";
}

int64_t offsetOf(const SliceRange &range, const std::vector<int64_t> &strides) {
  int64_t offset = 0;
  for (size_t d = 0; d < strides.size(); ++d)
    offset += range.start[d] * strides[d];
  return offset;
}

std::string compileSlice(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  SliceRange range;
  if (std::string refusal = resolveSlice(spec, x.dims, 1, range); !refusal.empty())
    return refusal;
  if (range.size != y.dims)
    return "the slice has another size than the output";
  std::vector<int64_t> from = denseStrides(x.dims), to = denseStrides(y.dims);
  Loops loops(offsetOf(range, from), 0);
  for (size_t d = 0; d < x.dims.size(); ++d)
    loops.add(range.size[d], range.step[d] * from[d], to[d]);
  return loops.into(program, y.dtype, input(0), output(0));
}

std::string compileSliceGrad(const StepSpec &spec, Program &program) {
  const TensorType &dy = spec.inputs[0], &dx = spec.outputs[0];
  SliceRange range;
  if (std::string refusal = resolveSlice(spec, dx.dims, 2, range); !refusal.empty())
    return refusal;
  if (range.size != dy.dims)
    return "the slice has another size than the gradient";
  fillZero(program, spec, 0);
  std::vector<int64_t> from = denseStrides(dy.dims), to = denseStrides(dx.dims);
  Loops loops(0, offsetOf(range, to));
  for (size_t d = 0; d < dx.dims.size(); ++d)
    loops.add(range.size[d], from[d], range.step[d] * to[d]);
  return loops.into(program, dx.dtype, input(0), output(0));
}

/// Elements before each axis. Pads come as attributes or as constant inputs.
std::string resolvePads(const StepSpec &spec, const TensorType &inner, const TensorType &outer, size_t padsInput,
                        std::vector<int64_t> &before) {
  std::vector<int64_t> pads = spec.attrs.getInts("pads"), axes;
  if (pads.empty())
    pads = spec.attrs.getInts("paddings"); // Pad 1
  if (has(spec.inputs, padsInput) && !(pads.clear(), constantInts(spec, padsInput, pads)))
    return "pads depend on data";
  size_t axesInput = padsInput == 1 ? 3 : padsInput + 1;
  if (has(spec.inputs, axesInput) && !constantInts(spec, axesInput, axes))
    return "axes depend on data";
  if (!has(spec.inputs, axesInput))
    for (int64_t d = 0; d < inner.rank(); ++d)
      axes.push_back(d);
  if (pads.size() != 2 * axes.size())
    return std::to_string(pads.size()) + " pads for " + std::to_string(axes.size()) + " axes";
  before.assign(inner.dims.size(), 0);
  std::vector<int64_t> sizes = inner.dims;
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t axis = normalizeAxis(axes[i], inner.rank());
    if (axis < 0)
      return "an axis is outside the rank";
    before[static_cast<size_t>(axis)] = pads[i];
    sizes[static_cast<size_t>(axis)] += pads[i] + pads[axes.size() + i];
  }
  return sizes == outer.dims ? "" : "pads do not lead from " + toString(inner) + " to " + toString(outer);
}

std::string compilePad(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  std::vector<int64_t> before;
  if (std::string refusal = resolvePads(spec, x, y, 1, before); !refusal.empty())
    return refusal;
  std::string mode = spec.attrs.getString("mode", "constant");
  bool isConstant = mode == "constant";
  if (!isConstant && mode != "edge" && mode != "reflect" && mode != "wrap")
    return "mode " + mode + " is not supported";
  if (spec.attrs.getFloat("value", 0) != 0)
    return "a value that is an attribute is not supported";
  if (x.elems() == 0 && y.elems() && !isConstant)
    return "the input is empty: there is nothing to repeat";
  if (x.rank() > kMaxLoops)
    return "rank " + std::to_string(x.rank());
  if (y.elems() == 0)
    return "";
  PadArgs args{.src = nullptr,
               .value = nullptr,
               .dst = nullptr,
               .count = y.elems(),
               .rank = static_cast<int>(x.rank()),
               .mode = isConstant       ? PadMode::Constant
                       : mode == "edge" ? PadMode::Edge
                       : mode == "wrap" ? PadMode::Wrap
                                        : PadMode::Reflect,
               .sizes = {},
               .srcSizes = {},
               .before = {}};
  for (size_t d = 0; d < x.dims.size(); ++d) {
    args.sizes.values[d] = y.dims[d];
    args.srcSizes.values[d] = x.dims[d];
    args.before.values[d] = before[d];
  }
  LaunchOf<PadArgs> launch("pad" + sizeSuffix(y.dtype), args);
  launch.read(&PadArgs::src, input(0)).write(&PadArgs::dst, output(0));
  if (has(spec.inputs, 2))
    launch.read(&PadArgs::value, input(2));
  launch.grid(blocksFor(y.elems())).into(program);
  return "";
}

std::string compilePadGrad(const StepSpec &spec, Program &program) {
  const TensorType &dy = spec.inputs[0], &dx = spec.outputs[0];
  if (std::string mode = spec.attrs.getString("mode", "constant"); mode != "constant")
    return "mode " + mode + " is not supported";
  std::vector<int64_t> before;
  if (std::string refusal = resolvePads(spec, dx, dy, 2, before); !refusal.empty())
    return refusal;
  fillZero(program, spec, 0);
  std::vector<int64_t> from = denseStrides(dy.dims), to = denseStrides(dx.dims);
  int64_t srcOffset = 0, dstOffset = 0;
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < dx.dims.size(); ++d) {
    int64_t first = std::max<int64_t>(0, -before[d]);
    sizes.push_back(std::max<int64_t>(0, std::min(dx.dims[d], dy.dims[d] - before[d]) - first));
    srcOffset += (first + before[d]) * from[d];
    dstOffset += first * to[d];
  }
  Loops loops(srcOffset, dstOffset);
  for (size_t d = 0; d < sizes.size(); ++d)
    loops.add(sizes[d], from[d], to[d]);
  return loops.into(program, dx.dtype, input(0), output(0));
}

template <bool toDepth> std::string compileDepthSpace(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  Loops loops;
  std::string problem =
      reference::addDepthLoops(spec.attrs, toDepth ? y.dims : x.dims, toDepth ? x.dims : y.dims,
                               [&](int64_t size, int64_t deepStride, int64_t wideStride) {
                                 loops.add(size, toDepth ? wideStride : deepStride, toDepth ? deepStride : wideStride);
                               });
  return problem.empty() ? loops.into(program, x.dtype, input(0), output(0)) : problem;
}

std::string compileTrilu(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  if (x.rank() < 2)
    return "the input needs at least two dimensions";
  program.inPlace = {{0, 0}};
  if (x.elems() == 0)
    return "";
  LaunchOf<TriluArgs> launch("trilu" + sizeSuffix(x.dtype), {.src = nullptr,
                                                             .k = nullptr,
                                                             .dst = nullptr,
                                                             .count = x.elems(),
                                                             .rows = x.dims[x.dims.size() - 2],
                                                             .columns = x.dims.back(),
                                                             .isUpper = spec.attrs.getInt("upper", 1) != 0});
  launch.read(&TriluArgs::src, input(0)).write(&TriluArgs::dst, output(0));
  if (has(spec.inputs, 1))
    launch.read(&TriluArgs::k, input(1));
  launch.grid(blocksFor(x.elems())).into(program);
  return "";
}

std::string compileRange(const StepSpec &spec, Program &program) {
  const TensorType &y = spec.outputs[0];
  if (!isFloat(y.dtype) && y.dtype != DType::I32 && y.dtype != DType::I64)
    return unsupported(y.dtype);
  if (y.elems())
    LaunchOf<RangeArgs>("range" + typeSuffix(y.dtype),
                        {.start = nullptr, .delta = nullptr, .dst = nullptr, .count = y.elems()})
        .read(&RangeArgs::start, input(0))
        .read(&RangeArgs::delta, input(2))
        .write(&RangeArgs::dst, output(0))
        .grid(blocksFor(y.elems()))
        .into(program);
  return "";
}

std::string compileEyeLike(const StepSpec &spec, Program &program) {
  const TensorType &y = spec.outputs[0];
  if (y.rank() != 2)
    return "the input needs two dimensions";
  if (isFloat8(y.dtype))
    return unsupported(y.dtype);
  if (y.elems() == 0)
    return "";
  uint64_t one = 1;
  if (isFloat(y.dtype))
    dispatchFloat(y.dtype, [&]<typename T>() {
      T value(1.0);
      one = 0;
      std::memcpy(&one, &value, sizeof(T));
    });
  LaunchOf<EyeArgs>(
      "eye" + sizeSuffix(y.dtype),
      {.dst = nullptr, .count = y.elems(), .columns = y.dims[1], .k = spec.attrs.getInt("k", 0), .one = one})
      .write(&EyeArgs::dst, output(0))
      .grid(blocksFor(y.elems()))
      .into(program);
  return "";
}

} // namespace

void copyWhole(Program &program, Operand from, Operand to, size_t bytes) {
  from.bytes = to.bytes = bytes;
  LaunchOf<CopyArgs>("copy_bytes", {.src = nullptr, .dst = nullptr, .bytes = static_cast<int64_t>(bytes)})
      .read(&CopyArgs::src, from)
      .write(&CopyArgs::dst, to)
      .grid(blocksFor(static_cast<int64_t>(bytes) / 16))
      .into(program);
}

void fillZero(Program &program, const StepSpec &spec, size_t i) {
  size_t bytes = spec.outputs[i].bytes();
  if (bytes)
    LaunchOf<FillArgs>("fill_zero", {.dst = nullptr, .bytes = static_cast<int64_t>(bytes)})
        .write(&FillArgs::dst, output(i))
        .grid(blocksFor(static_cast<int64_t>(bytes) / 16))
        .into(program);
}

std::span<const Row> copyRows() {
  static constexpr Row rows[] = {
      {"", "Reshape", 1, kNewest, compileView},
      {"", "Flatten", 1, kNewest, compileView},
      {"", "Squeeze", 1, kNewest, compileView},
      {"", "Unsqueeze", 1, kNewest, compileView},
      {"", "Identity", 1, kNewest, compileView},
      {"", "Transpose", 1, kNewest, compileTranspose},
      {"", "Concat", 4, kNewest, compileConcat},
      {"", "Split", 1, kNewest, compileSplit},
      {"", "Slice", 1, kNewest, compileSlice},
      {"", "Pad", 1, kNewest, compilePad},
      {"", "Expand", 8, kNewest, compileExpand},
      {"", "Tile", 6, kNewest, compileTile},
      {"", "Range", 11, kNewest, compileRange},
      {"", "Trilu", 14, kNewest, compileTrilu},
      {"", "EyeLike", 9, kNewest, compileEyeLike},
      {"", "DepthToSpace", 1, kNewest, compileDepthSpace<false>},
      {"", "SpaceToDepth", 1, kNewest, compileDepthSpace<true>},
      {"recast", "barrier", 1, 1, compileBarrier},
      {"recast", "offload", 1, 1, compileTransfer}, // Where memory of the host takes part, the executor copies.
      {"recast", "fetch", 1, 1, compileTransfer},
      {"recast", "window_sum", 1, 1, compileBarrier}, // A window of one micro-batch.
      {"recast", "keep_if", 1, 1, compileKeepIf},
      {"recast", "slice_grad", 1, kNewest, compileSliceGrad},
      {"recast", "pad_grad", 1, kNewest, compilePadGrad},
  };
  return rows;
}

} // namespace recast::cuda
