// Sums and maxima over a block, in an order that does not depend on timing.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN

/// `join` over the values of all lanes; every lane has the result. `join` is commutative.
template <typename T, typename Join> T reduceWarp(T value, Join join) {
  for (int lanes = kWarp / 2; lanes; lanes /= 2)
    value = join(value, shuffleXor(value, lanes));
  return value;
}

/// The same over all threads of the block, all of which call it.
template <typename T, typename Join> T reduceBlock(T value, Join join) {
  using Parts = Array<T, kWarp>;
  RECAST_SHARED(Parts, parts);
  value = reduceWarp(value, join);
  syncThreads(); // Of the call before, everyone has read.
  if (lane() == 0)
    parts[warp()] = value;
  syncThreads();
  value = parts[0];
  for (int w = 1; w < blockThreads() / kWarp; ++w)
    value = join(value, parts[w]);
  return value;
}
template <typename T> T sumBlock(T value) {
  return reduceBlock(value, [](T a, T b) { return a + b; });
}
template <typename T> T sumWarp(T value) {
  return reduceWarp(value, [](T a, T b) { return a + b; });
}
/// NaN where any value is.
template <typename T> T joinMax(T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; }

RECAST_DEVICE_END
} // namespace recast::cuda
