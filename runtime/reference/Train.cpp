// Operators of dialect train that move values: reduce_to, keep_if, barrier, all_reduce,
// rank, dropout_mask, random_uniform.
#include "runtime/reference/CounterRandom.h"
#include "runtime/reference/ReductionLoops.h"
#include "runtime/reference/TrainKernels.h"

namespace recast::reference {
namespace {

/// Sums dy over the axes along which the output's dims were broadcast to dy's.
Status runReduceTo(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &dx = args.outputs[0];
  AxisSet axes;
  int64_t skip = dy.rank() - dx.rank();
  for (int64_t d = 0; d < dy.rank(); ++d) {
    int64_t size = dy.dims[static_cast<size_t>(d)], target = d < skip ? 1 : dx.dims[static_cast<size_t>(d - skip)];
    if (size != target && target != 1)
      return stepError(spec, "dimension " + std::to_string(d) + " of " + std::to_string(size) +
                                 " was not broadcast from " + std::to_string(target));
    axes[static_cast<size_t>(d)] = size != target || d < skip;
  }
  if (axes.none()) {
    copyTensor(dy, dx);
    return Status::success();
  }
  dispatchFloat(dx.dtype, [&]<typename T>() { reduceSum(dy.as<T>(), ReduceSpace(dy.dims, axes), dx.as<T>()); });
  return Status::success();
}
std::string refuseReduceTo(const StepSpec &spec) {
  if (!isFloat(spec.inputs[0].dtype))
    return unsupported(spec.inputs[0].dtype);
  return spec.outputs[0].rank() <= spec.inputs[0].rank() ? "" : "the shape has more dimensions than dy";
}

Status runKeepIf(const StepSpec &spec, const KernelArgs &args) {
  bool skip = *args.inputs[0].as<bool>();
  copyTensor(skip ? args.inputs[1] : args.inputs[2], args.outputs[0]);
  return Status::success();
}

Status runBarrier(const StepSpec &spec, const KernelArgs &args) {
  for (size_t i = 0; i < args.outputs.size(); ++i)
    if (args.outputs[i].present())
      copyTensor(args.inputs[i], args.outputs[i]);
  return Status::success();
}

/// As the kernel of several ranks can: maxima take another way.
std::vector<InPlace> sumsInPlace(const StepSpec &spec) {
  std::vector<InPlace> pairs = sameNumber(spec);
  auto firstMaximum = static_cast<size_t>(spec.attrs.getInt("maxima", static_cast<int64_t>(spec.inputs.size())));
  std::erase_if(pairs, [&](InPlace pair) { return pair.input >= firstMaximum; });
  return pairs;
}

Status runRank(const StepSpec &spec, const KernelArgs &args) {
  *args.outputs[0].as<int64_t>() = 0;
  return Status::success();
}

/// mask[i] = u(i) >= ratio, with u(i) = squares32(offset * 2^40 + i) / 2^32: counters of steps that differ in `offset`
/// do not meet below 2^40 elements.
Status runDropoutMask(const StepSpec &spec, const KernelArgs &args) {
  uint64_t key = squaresKey(static_cast<uint64_t>(loadIndex(args.inputs[0], 0)));
  uint64_t threshold = dropThreshold(loadDouble(args.inputs[2], 0));
  uint64_t first = static_cast<uint64_t>(spec.attrs.getInt("offset", 0)) << 40;
  bool *mask = args.outputs[0].as<bool>();
  parallelFor(args.outputs[0].elems(), kGrain / 4, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      mask[i] = squares32(first + static_cast<uint64_t>(i), key) >= threshold;
  });
  return Status::success();
}
/// u[i] = the upper 24 bits of squares32(offset * 2^40 + i), times 2^-24.
Status runRandomUniform(const StepSpec &spec, const KernelArgs &args) {
  uint64_t key = squaresKey(static_cast<uint64_t>(loadIndex(args.inputs[0], 0)));
  uint64_t first = static_cast<uint64_t>(spec.attrs.getInt("offset", 0)) << 40;
  float *out = args.outputs[0].as<float>();
  parallelFor(args.outputs[0].elems(), kGrain / 4, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[i] = uniform24(squares32(first + static_cast<uint64_t>(i), key));
  });
  return Status::success();
}
std::string refuseSkip(const StepSpec &spec) {
  return spec.inputs[0].dtype == DType::Bool ? "" : unsupported(spec.inputs[0].dtype);
}

} // namespace

std::span<const Entry> trainEntries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all = {
        {"recast", "reduce_to", 1, 1, runReduceTo, nullptr, refuseReduceTo, pairs<InPlace{0, 0}>},
        {"recast", "keep_if", 1, 1, runKeepIf, nullptr, refuseSkip, elementwise},
        {"recast", "barrier", 1, 1, runBarrier, nullptr, nullptr, sameNumber},
        // From memory to memory: never in place.
        {"recast", "offload", 1, 1, runBarrier},
        {"recast", "fetch", 1, 1, runBarrier},
        {"recast", "window_sum", 1, 1, runBarrier, nullptr, nullptr, sameNumber}, // A window of one micro-batch.
        // Of one process: where there are several, the executor runs these.
        {"recast", "all_reduce", 1, 1, runBarrier, nullptr, nullptr, sumsInPlace, always},
        {"recast", "rank", 1, 1, runRank},
        {"recast", "dropout_mask", 1, 1, runDropoutMask},
        {"recast", "random_uniform", 1, 1, runRandomUniform},
    };
    for (std::span<const Entry> part :
         {optimizerEntries(), scalingEntries(), softmaxGradientEntries(), precisionEntries(), fp8Entries()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return entries;
}

} // namespace recast::reference
