// Reductions over any axes, rounding to tf32, Dropout that drops nothing, and the collectives of a process that is
// alone.
#include "runtime/kernels/cuda/source/AnyReduce.h"
#include "runtime/kernels/cuda/source/Rounding.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include <optional>

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

/// `isReduced` one a dimension of the input.
std::string reduceOver(const StepSpec &spec, const std::vector<bool> &isReduced, ReduceKind kind, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  bool isExtreme = kind == ReduceKind::Max || kind == ReduceKind::Min;
  bool isKnown =
      isFloat(x.dtype) || x.dtype == DType::I32 || x.dtype == DType::I64 || (isExtreme && x.dtype == DType::Bool);
  if (!isKnown || (kind == ReduceKind::Mean && !isFloat(x.dtype)))
    return unsupported(x.dtype);
  if (!y.elems())
    return "";
  AnyReduceArgs args{};
  args.kind = kind;
  args.count = y.elems();
  args.reducedCount = x.elems() / y.elems();
  std::vector<int64_t> strides = denseStrides(x.dims);
  for (size_t d = 0; d < x.dims.size(); ++d) {
    int &rank = isReduced[d] ? args.reducedRank : args.keptRank;
    auto &sizes = isReduced[d] ? args.reducedSizes : args.keptSizes;
    auto &steps = isReduced[d] ? args.reducedStrides : args.keptStrides;
    if (x.dims[d] == 1)
      continue;
    if (rank && steps[rank - 1] == strides[d] * x.dims[d]) { // Goes on where the dimension before ends.
      sizes[rank - 1] *= x.dims[d];
      steps[rank - 1] = strides[d];
      continue;
    }
    if (rank == kMaxReduceDims)
      return "too many dimensions";
    sizes[rank] = x.dims[d];
    steps[rank] = strides[d];
    ++rank;
  }
  LaunchOf<AnyReduceArgs>("reduce_any" + typeSuffix(x.dtype), args)
      .read(&AnyReduceArgs::src, input(0))
      .write(&AnyReduceArgs::dst, output(0))
      .grid(blocksFor(args.count))
      .into(program);
  return "";
}

template <ReduceKind kind> std::string compileReduce(const StepSpec &spec, Program &program) {
  int64_t rank = spec.inputs[0].rank();
  std::vector<int64_t> axes = spec.attrs.getInts("axes");
  if (has(spec.inputs, 1) && !constantInts(spec, 1, axes))
    return "axes are not constant";
  if (axes.empty() && spec.attrs.getInt("noop_with_empty_axes", 0)) {
    copyWhole(program, input(0), output(0), spec.outputs[0].bytes());
    return "";
  }
  std::vector<bool> isReduced(static_cast<size_t>(rank), axes.empty());
  for (int64_t axis : axes) {
    int64_t at = normalizeAxis(axis, rank);
    if (at < 0)
      return "axis " + std::to_string(axis) + " is out of range";
    isReduced[static_cast<size_t>(at)] = true;
  }
  return reduceOver(spec, isReduced, kind, program);
}

/// The axes along which dy was broadcast.
std::string compileReduceTo(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  int64_t skip = x.rank() - y.rank();
  if (skip < 0)
    return "the shape has more dimensions than dy";
  std::vector<bool> isReduced;
  for (int64_t d = 0; d < x.rank(); ++d) {
    int64_t size = x.dims[static_cast<size_t>(d)], to = d < skip ? 1 : y.dims[static_cast<size_t>(d - skip)];
    if (size != to && to != 1)
      return "dimension " + std::to_string(d) + " was not broadcast";
    isReduced.push_back(d < skip || size != to);
  }
  return reduceOver(spec, isReduced, ReduceKind::Sum, program);
}

/// In inference form, or with a ratio of 0. The mask holds true everywhere.
std::string compileDropout(const StepSpec &spec, Program &program) {
  auto number = [&](size_t i, double fallback) {
    if (!has(spec.inputs, i))
      return std::optional(fallback);
    if (i >= spec.constants.size() || !spec.constants[i].data)
      return std::optional<double>();
    return std::optional(dispatchAny(spec.constants[i].dtype, [&]<typename T>() {
      return static_cast<double>(*static_cast<const T *>(spec.constants[i].data));
    }));
  };
  bool drops = spec.version >= 12 ? number(2, 0) != 0 && number(1, 0.5) != 0
                                  : spec.version < 7 && !spec.attrs.getInt("is_test", 0);
  if (drops)
    return "it draws its mask itself: recast-opt makes a mask of its own from it";
  if (has(spec.outputs, 1))
    return "a mask where nothing is dropped";
  copyWhole(program, input(0), output(0), spec.outputs[0].bytes());
  return "";
}

std::string compileRoundTf32(const StepSpec &spec, Program &program) {
  if (spec.inputs[0].dtype != DType::F32)
    return unsupported(spec.inputs[0].dtype);
  program.inPlace = {{0, 0}};
  int64_t count = spec.outputs[0].elems();
  if (count)
    LaunchOf<RoundArgs>("round_tf32", {.x = nullptr, .y = nullptr, .count = count})
        .read(&RoundArgs::x, input(0))
        .write(&RoundArgs::y, output(0))
        .grid(blocksFor(count))
        .into(program);
  return "";
}

} // namespace

std::span<const Row> reduceRows() {
  static const Row rows[] = {
      {"", "ReduceSum", 1, kNewest, compileReduce<ReduceKind::Sum>},
      {"", "ReduceMean", 1, kNewest, compileReduce<ReduceKind::Mean>},
      {"", "ReduceProd", 1, kNewest, compileReduce<ReduceKind::Prod>},
      {"", "ReduceMax", 1, kNewest, compileReduce<ReduceKind::Max>},
      {"", "ReduceMin", 1, kNewest, compileReduce<ReduceKind::Min>},
      {"", "Dropout", 1, kNewest, compileDropout},
      {"recast", "reduce_to", 1, 1, compileReduceTo},
      {"recast", "round_tf32", 1, 1, compileRoundTf32},
  };
  return rows;
}

} // namespace recast::cuda
