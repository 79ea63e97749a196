// Matrix products, which cuBLASLt runs: what a call is, and the library's rules. A product is a launch of the kernel
// kMatmul whose arguments are a MatmulArgs.
#pragma once
#include "runtime/plan/DType.h"
#include <string>

namespace recast::cuda {

inline constexpr std::string_view kMatmul = "cublaslt.matmul";

/// How scales of 8-bit operands lie (cuBLASLt's cublasLtMatmulMatrixScale_t).
enum class ScaleMode : int {
  Scalar = 0,       ///< One f32 a tensor.
  Vector32E8M0 = 2, ///< One e8m0 for 32 elements along k (MX).
};

/// d[m,n] = alpha * op(a)[m,k] op(b)[k,n] + beta * d[m,n] + bias[n], row-major, `batch` times. Pitches are elements
/// from row to row as stored; strides are elements from matrix to matrix, 0 to use one again.
struct MatmulArgs {
  const void *a, *b, *bias;             ///< `bias` may be null.
  const void *scaleA, *scaleB, *scaleD; ///< Of 8-bit floats; else null.
  void *d, *workspace;
  int64_t m, n, k, batch, pitchA, pitchB, pitchD, strideA, strideB, strideD;
  double alpha, beta;
  size_t workspaceBytes;
  DType typeA, typeB, typeD;
  ScaleMode scaleMode;
  bool transA, transB; ///< a is stored [k,m], b [n,k].
};

/// The rule of cuBLASLt that a call breaks; "" where it breaks none. Addresses are looked at where they are not null.
std::string brokenRule(const MatmulArgs &args);

} // namespace recast::cuda
