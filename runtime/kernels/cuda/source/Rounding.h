// Rounding to types that no tensor has.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

/// round_tf32: y = x with 10 bits of mantissa, to nearest even. Infinities and NaN stay.
struct RoundArgs {
  const float *x;
  float *y;
  int64_t count;
};

} // namespace recast::cuda
