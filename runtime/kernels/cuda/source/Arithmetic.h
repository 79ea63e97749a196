// Element-wise arithmetic that no region generates: integers that may be divided by zero, remainders, powers of
// integers (source: ONNX, Div, Mod and Pow).
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

inline constexpr int kMostArithmeticLoops = 12;

/// y[i] = a[...] op b[...], with NumPy's broadcasting: where an operand repeats its stride is 0.
///
/// divide_T: towards zero. remainder_T: with the sign of b, or of a where `truncates`. Of integers both report a
/// divisor of 0, and give 0. power_T: T is a's type, an integer; b's is `exponentType`. Integers are modulo 2^n.
struct ArithmeticArgs {
  const void *a, *b;
  void *y;
  Fault *fault; ///< Null where no divisor is 0.
  int64_t count;
  int rank;
  int exponentType; ///< A DType.
  bool truncates;
  Array<int64_t, kMostArithmeticLoops> sizes, aStrides, bStrides;
};

} // namespace recast::cuda
