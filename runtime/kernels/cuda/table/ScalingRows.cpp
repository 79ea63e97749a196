// Steps over lists of gradients, the loss scale, and random masks.
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/source/Scaling.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include <cmath>

namespace recast::cuda {
namespace {

int code(const TensorType &type) { return static_cast<int>(type.dtype); }

std::string refuseFloats(const StepSpec &spec, size_t count) {
  for (size_t k = 0; k < count; ++k)
    if (!isFloat(spec.inputs[k].dtype))
      return unsupported(spec.inputs[k].dtype);
  return "";
}

/// The inputs [first, first + n) as one list. Those without elements take part without a block.
TensorList listOf(const StepSpec &spec, size_t first, size_t n) {
  TensorList list{};
  int32_t blocks = 0;
  for (size_t k = 0; k < n; ++k) {
    const TensorType &x = spec.inputs[first + k];
    list.elems.values[k] = x.elems();
    list.xTypes.values[k] = list.yTypes.values[k] = static_cast<uint8_t>(x.dtype);
    list.firstBlock.values[k] = blocks;
    blocks += static_cast<int32_t>((x.elems() + kListBlock - 1) / kListBlock);
  }
  // Blocks look for the tensor that ends after them: the rest of the list ends with the last.
  for (size_t k = n; k <= kListTensors; ++k)
    list.firstBlock.values[k] = blocks;
  return list;
}
int64_t blocksOf(const TensorList &list) { return list.firstBlock.values[kListTensors]; }

/// Calls body(list, first, n) for the lists that `count` inputs make.
template <typename Body> void forEachList(const StepSpec &spec, size_t count, Body &&body) {
  for (size_t first = 0; first < count; first += kListTensors) {
    size_t n = std::min<size_t>(kListTensors, count - first);
    TensorList list = listOf(spec, first, n);
    if (blocksOf(list))
      body(list, first, n);
  }
}

/// The pointers of a list in arguments that begin with one.
template <typename Args>
void setPointers(LaunchOf<Args> &launch, const StepSpec &spec, size_t first, size_t n, bool writes) {
  static_assert(offsetof(Args, list) == 0);
  for (size_t k = 0; k < n; ++k) {
    if (spec.inputs[first + k].elems() == 0)
      continue;
    launch.pointer(offsetof(TensorList, x) + k * sizeof(void *), input(first + k), Use::Read);
    if (writes)
      launch.pointer(offsetof(TensorList, y) + k * sizeof(void *), output(first + k), Use::Write);
  }
}

struct MapOperands {
  ListMap map = ListMap::Check;
  const size_t *scalarInput = nullptr;
  const Operand *factor = nullptr, *found = nullptr;
};
void mapLists(const StepSpec &spec, Program &program, size_t count, const MapOperands &operands) {
  forEachList(spec, count, [&](TensorList &list, size_t first, size_t n) {
    bool writes = operands.map != ListMap::Check;
    for (size_t k = 0; k < n && writes; ++k)
      list.yTypes.values[k] = static_cast<uint8_t>(spec.outputs[first + k].dtype);
    LaunchOf<ListMapArgs> launch("list_map",
                                 {.list = list,
                                  .scalar = nullptr,
                                  .factor = nullptr,
                                  .found = nullptr,
                                  .scalarType = operands.scalarInput ? code(spec.inputs[*operands.scalarInput]) : 0,
                                  .map = operands.map});
    if (operands.scalarInput)
      launch.read(&ListMapArgs::scalar, input(*operands.scalarInput));
    setPointers(launch, spec, first, n, writes);
    if (operands.factor)
      launch.read(&ListMapArgs::factor, *operands.factor);
    if (operands.found)
      launch.update(&ListMapArgs::found, *operands.found);
    launch.grid(blocksOf(list)).into(program);
  });
}

/// A flag that list_map raises, and that becomes output `i`.
Operand beginFlag(Program &program) {
  Operand found = program.reserve(16);
  LaunchOf<FillArgs>("fill_zero", {.dst = nullptr, .bytes = 16}).write(&FillArgs::dst, found).grid(1).into(program);
  return found;
}
void endFlag(Program &program, Operand found, size_t i) {
  LaunchOf<FlagArgs>("store_flag", {.found = nullptr, .flag = nullptr})
      .read(&FlagArgs::found, found)
      .write(&FlagArgs::flag, output(i))
      .grid(1)
      .into(program);
}

std::string compileUnscale(const StepSpec &spec, Program &program) {
  size_t count = spec.outputs.size() - 1;
  if (std::string refusal = refuseFloats(spec, count); !refusal.empty())
    return refusal;
  for (size_t k = 0; k < count; ++k)
    if (byteSize(spec.inputs[k].dtype) == byteSize(spec.outputs[k].dtype))
      program.inPlace.push_back({k, k});
  Operand found = beginFlag(program);
  mapLists(spec, program, count, {.map = ListMap::Unscale, .scalarInput = &count, .found = &found});
  endFlag(program, found, count);
  return "";
}

std::string compileCheckFinite(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseFloats(spec, spec.inputs.size()); !refusal.empty())
    return refusal;
  Operand found = beginFlag(program);
  mapLists(spec, program, spec.inputs.size(), {.map = ListMap::Check, .found = &found});
  endFlag(program, found, 0);
  return "";
}

std::string compileClipValue(const StepSpec &spec, Program &program) {
  size_t count = spec.inputs.size() - 1;
  if (std::string refusal = refuseFloats(spec, count); !refusal.empty())
    return refusal;
  for (size_t k = 0; k < count; ++k)
    program.inPlace.push_back({k, k});
  mapLists(spec, program, count, {.map = ListMap::Clamp, .scalarInput = &count});
  return "";
}

/// Partial sums of the first `count` inputs, joined into output `norm`; a limit (an input) gives a factor too.
void normOfLists(const StepSpec &spec, Program &program, size_t count, size_t norm, const size_t *limit,
                 Operand *factor) {
  double p = spec.attrs.getFloat("norm_type", 2);
  int64_t blocks = 0;
  forEachList(spec, count, [&](TensorList &list, size_t, size_t) { blocks += blocksOf(list); });
  Operand partial = program.reserve(static_cast<size_t>(blocks) * sizeof(double));
  size_t offset = partial.offset;
  forEachList(spec, count, [&](TensorList &list, size_t first, size_t n) {
    LaunchOf<ListNormArgs> launch("list_norm", {.list = list, .partial = nullptr, .p = p});
    setPointers(launch, spec, first, n, false);
    size_t bytes = static_cast<size_t>(blocksOf(list)) * sizeof(double);
    launch.write(&ListNormArgs::partial, workspace(offset, bytes)).grid(blocksOf(list)).into(program);
    offset += bytes;
  });
  LaunchOf<NormJoinArgs> join("norm_join", {.partial = nullptr,
                                            .limit = nullptr,
                                            .norm = nullptr,
                                            .factor = nullptr,
                                            .count = blocks,
                                            .p = p,
                                            .limitType = limit ? code(spec.inputs[*limit]) : 0,
                                            .normType = code(spec.outputs[norm])});
  if (blocks)
    join.read(&NormJoinArgs::partial, partial);
  join.write(&NormJoinArgs::norm, output(norm));
  if (limit) {
    *factor = program.reserve(sizeof(double));
    join.read(&NormJoinArgs::limit, input(*limit)).write(&NormJoinArgs::factor, *factor);
  }
  join.grid(1).into(program);
}

std::string compileGradNorm(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseFloats(spec, spec.inputs.size()); !refusal.empty())
    return refusal;
  normOfLists(spec, program, spec.inputs.size(), 0, nullptr, nullptr);
  return "";
}

std::string compileClipNorm(const StepSpec &spec, Program &program) {
  size_t count = spec.inputs.size() - 1;
  if (std::string refusal = refuseFloats(spec, count); !refusal.empty())
    return refusal;
  for (size_t k = 0; k < count; ++k)
    program.inPlace.push_back({k, k});
  Operand factor;
  normOfLists(spec, program, count, count, &count, &factor);
  mapLists(spec, program, count, {.map = ListMap::Scale, .factor = &factor});
  return "";
}

/// Inputs: g... tiny; outputs: norm, largest, non-finite, fraction below tiny.
std::string compileGradStats(const StepSpec &spec, Program &program) {
  size_t count = spec.inputs.size() - 1;
  if (std::string refusal = refuseFloats(spec, count); !refusal.empty())
    return refusal;
  normOfLists(spec, program, count, 0, nullptr, nullptr);
  int64_t blocks = 0;
  double total = 0;
  forEachList(spec, count, [&](TensorList &list, size_t, size_t) { blocks += blocksOf(list); });
  for (size_t k = 0; k < count; ++k)
    total += static_cast<double>(spec.inputs[k].elems());
  Operand partial = program.reserve(static_cast<size_t>(blocks) * 3 * sizeof(double));
  size_t offset = partial.offset;
  forEachList(spec, count, [&](TensorList &list, size_t first, size_t n) {
    LaunchOf<ListStatsArgs> launch(
        "list_stats", {.list = list, .tiny = nullptr, .partial = nullptr, .tinyType = code(spec.inputs[count])});
    setPointers(launch, spec, first, n, false);
    size_t bytes = static_cast<size_t>(blocksOf(list)) * 3 * sizeof(double);
    launch.read(&ListStatsArgs::tiny, input(count))
        .write(&ListStatsArgs::partial, workspace(offset, bytes))
        .grid(blocksOf(list))
        .into(program);
    offset += bytes;
  });
  LaunchOf<StatsJoinArgs> join("stats_join", {.partial = nullptr,
                                              .largest = nullptr,
                                              .fraction = nullptr,
                                              .nonFinite = nullptr,
                                              .count = blocks,
                                              .total = total,
                                              .largestType = code(spec.outputs[1]),
                                              .fractionType = code(spec.outputs[3])});
  if (blocks)
    join.read(&StatsJoinArgs::partial, partial);
  join.write(&StatsJoinArgs::largest, output(1))
      .write(&StatsJoinArgs::nonFinite, output(2))
      .write(&StatsJoinArgs::fraction, output(3))
      .grid(1)
      .into(program);
  return "";
}

std::string compileScaleLoss(const StepSpec &spec, Program &program) {
  const TensorType &y = spec.outputs[0];
  if (std::string refusal = refuseFloats(spec, 1); !refusal.empty())
    return refusal;
  program.inPlace = {{0, 0}};
  if (y.elems())
    LaunchOf<ScaleLossArgs>("scale_loss", {.x = nullptr,
                                           .scale = nullptr,
                                           .y = nullptr,
                                           .count = y.elems(),
                                           .type = code(y),
                                           .scaleType = code(spec.inputs[1])})
        .read(&ScaleLossArgs::x, input(0))
        .read(&ScaleLossArgs::scale, input(1))
        .write(&ScaleLossArgs::y, output(0))
        .grid(blocksFor(y.elems()))
        .into(program);
  return "";
}

/// Inputs: found_inf loss_scale good_steps growth backoff interval min max hysteresis_left? hysteresis?.
std::string compileUpdateLossScale(const StepSpec &spec, Program &program) {
  bool hasHysteresis = has(spec.inputs, 8);
  if (spec.inputs.size() != (hasHysteresis ? 10u : 8u) || spec.inputs[0].dtype != DType::Bool ||
      spec.inputs[1].dtype != DType::F32 || spec.inputs[2].dtype != DType::I64 ||
      (hasHysteresis && spec.inputs[8].dtype != DType::I64))
    return "it takes found_inf bool, loss_scale f32, good_steps i64, five scalars, and two i64 or none";
  LossScaleArgs args{};
  args.growthType = code(spec.inputs[3]);
  args.backoffType = code(spec.inputs[4]);
  args.intervalType = code(spec.inputs[5]);
  args.leastType = code(spec.inputs[6]);
  args.mostType = code(spec.inputs[7]);
  args.hysteresisType = hasHysteresis ? code(spec.inputs[9]) : 0;
  program.inPlace = {{0, 1}, {1, 2}};
  LaunchOf<LossScaleArgs> launch("update_loss_scale", args);
  launch.read(&LossScaleArgs::foundInf, input(0))
      .read(&LossScaleArgs::scale, input(1))
      .read(&LossScaleArgs::goodSteps, input(2))
      .read(&LossScaleArgs::growth, input(3))
      .read(&LossScaleArgs::backoff, input(4))
      .read(&LossScaleArgs::interval, input(5))
      .read(&LossScaleArgs::least, input(6))
      .read(&LossScaleArgs::most, input(7))
      .write(&LossScaleArgs::newScale, output(0))
      .write(&LossScaleArgs::newGoodSteps, output(1));
  if (hasHysteresis) {
    program.inPlace.push_back({2, 8});
    launch.read(&LossScaleArgs::hysteresisLeft, input(8))
        .read(&LossScaleArgs::hysteresis, input(9))
        .write(&LossScaleArgs::newHysteresisLeft, output(2));
  }
  launch.grid(1, 32).into(program);
  return "";
}

std::string compileMask(const StepSpec &spec, Program &program) {
  int64_t count = spec.outputs[0].elems();
  if (spec.inputs[0].dtype != DType::I64 && spec.inputs[0].dtype != DType::I32)
    return "a key of " + unsupported(spec.inputs[0].dtype);
  if (count)
    LaunchOf<MaskArgs>("dropout_mask", {.key = nullptr,
                                        .ratio = nullptr,
                                        .mask = nullptr,
                                        .count = count,
                                        .first = static_cast<uint64_t>(spec.attrs.getInt("offset", 0)) << 40,
                                        .keyType = code(spec.inputs[0]),
                                        .ratioType = code(spec.inputs[2])})
        .read(&MaskArgs::key, input(0))
        .read(&MaskArgs::ratio, input(2))
        .write(&MaskArgs::mask, output(0))
        .grid(blocksFor(count))
        .into(program);
  return "";
}

} // namespace

std::span<const Row> scalingRows() {
  static constexpr Row rows[] = {
      {"recast", "scale_loss", 1, 1, compileScaleLoss},
      {"recast", "unscale", 1, 1, compileUnscale},
      {"recast", "check_finite", 1, 1, compileCheckFinite},
      {"recast", "grad_norm", 1, 1, compileGradNorm},
      {"recast", "grad_stats", 1, 1, compileGradStats},
      {"recast", "clip_grad_norm", 1, 1, compileClipNorm},
      {"recast", "clip_grad_value", 1, 1, compileClipValue},
      {"recast", "update_loss_scale", 1, 1, compileUpdateLossScale},
      {"recast", "dropout_mask", 1, 1, compileMask},
  };
  return rows;
}

} // namespace recast::cuda
