// Reductions over any axes: what no region holds, where few elements meet in each result (source: ONNX, ReduceSum and
// its relatives).
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

inline constexpr int kMaxReduceDims = 8;

enum class ReduceKind : int { Sum, Mean, Prod, Max, Min };

/// dst[i] = the reduction of `reducedCount` elements of src, whose first is where the digits of i say. A thread a
/// result: elements are added in their order, in f64 or modulo 2^64.
struct AnyReduceArgs {
  const void *src;
  void *dst;
  int64_t count, reducedCount;
  ReduceKind kind;
  int keptRank, reducedRank;
  Array<int64_t, kMaxReduceDims> keptSizes, keptStrides;       ///< Strides in src.
  Array<int64_t, kMaxReduceDims> reducedSizes, reducedStrides; ///< From the outermost to the innermost.
};

} // namespace recast::cuda
