#include "runtime/kernels/cuda/source/AnyReduce.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

using Digits = Array<int64_t, kMaxReduceDims>;

int64_t offsetOf(int64_t index, int rank, const Digits &sizes, const Digits &strides) {
  int64_t offset = 0;
  for (int d = rank - 1; d >= 0; --d) {
    offset += index % sizes[d] * strides[d];
    index /= sizes[d];
  }
  return offset;
}

/// The extreme of nothing.
template <typename T> Compute<T> worst(bool isMax) {
  using C = Compute<T>;
  using Limits = std::numeric_limits<C>;
  if constexpr (isFloatType<T>)
    return isMax ? -Limits::infinity() : Limits::infinity();
  return isMax ? Limits::lowest() : Limits::max();
}

template <typename T> void reduceAny(const AnyReduceArgs &a) {
  const T *src = static_cast<const T *>(a.src);
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    const T *first = src + offsetOf(i, a.keptRank, a.keptSizes, a.keptStrides);
    auto element = [&](int64_t k) { return load(first[offsetOf(k, a.reducedRank, a.reducedSizes, a.reducedStrides)]); };
    T &result = static_cast<T *>(a.dst)[i];
    if (a.kind == ReduceKind::Sum || a.kind == ReduceKind::Mean) {
      Accumulator<T> sum = 0;
      for (int64_t k = 0; k < a.reducedCount; ++k)
        sum += static_cast<Accumulator<T>>(element(k));
      if constexpr (isFloatType<T>) {
        if (a.kind == ReduceKind::Mean)
          sum /= static_cast<double>(a.reducedCount);
      }
      result = roundTo<T>(sum);
      continue;
    }
    if (a.kind == ReduceKind::Prod) {
      Accumulator<T> product = 1;
      for (int64_t k = 0; k < a.reducedCount; ++k)
        product *= static_cast<Accumulator<T>>(element(k));
      result = roundTo<T>(product);
      continue;
    }
    auto best = a.reducedCount ? element(0) : worst<T>(a.kind == ReduceKind::Max);
    for (int64_t k = 1; k < a.reducedCount; ++k) {
      auto x = element(k);
      bool isBetter = a.kind == ReduceKind::Max ? x > best : x < best;
      if (isBetter || x != x) // A NaN stays: nothing compares with it.
        best = x;
      if (best != best)
        break;
    }
    result = roundTo<T>(best);
  }
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(anyReduceKernels,
  RECAST_KERNEL(reduce_any_f32, kThreads, AnyReduceArgs, reduceAny<float>)
  RECAST_KERNEL(reduce_any_f64, kThreads, AnyReduceArgs, reduceAny<double>)
  RECAST_KERNEL(reduce_any_f16, kThreads, AnyReduceArgs, reduceAny<Half>)
  RECAST_KERNEL(reduce_any_bf16, kThreads, AnyReduceArgs, reduceAny<BFloat16>)
  RECAST_KERNEL(reduce_any_bool, kThreads, AnyReduceArgs, reduceAny<bool>)
  RECAST_KERNEL(reduce_any_i32, kThreads, AnyReduceArgs, reduceAny<int32_t>)
  RECAST_KERNEL(reduce_any_i64, kThreads, AnyReduceArgs, reduceAny<int64_t>))
// clang-format on

} // namespace recast::cuda
