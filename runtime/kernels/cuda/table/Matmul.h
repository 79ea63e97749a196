// Matrix products, which cuBLASLt runs: what a call is, and the library's rules. A product is a launch of the kernel
// kMatmul whose arguments are a MatmulArgs.
#pragma once
#include "runtime/plan/DType.h"
#include <string>

namespace recast::cuda {

inline constexpr std::string_view kMatmul = "cublaslt.matmul";

/// How scales of an 8-bit operand lie (cuBLASLt's cublasLtMatmulMatrixScale_t). Rows are those of a or the columns of
/// b: what is not summed over. `blocks` is ceil(k / the elements of one scale).
enum class ScaleMode : int {
  Scalar = 0,       ///< One f32 a tensor.
  Vector32E8M0 = 2, ///< One e8m0 for 32 elements along k (MX), in tiles of 128 rows and 4 blocks.
  OuterVector = 3,  ///< One f32 a row: [rows].
  Vector128 = 4,    ///< One f32 for 128 elements along k: [blocks, rows].
  Block128 = 5,     ///< One f32 for 128 rows and 128 elements along k: [ceil(rows / 128), blocks rounded up to 4].
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
  ScaleMode scaleModeA, scaleModeB;
  bool transA, transB; ///< a is stored [k,m], b [n,k].
  bool tf32;           ///< Operands of type f32 are multiplied as tf32.
};

/// Matrices of a batch at most: cuBLASLt takes no 2^16, which the z axis of a grid has not (openxla/xla, "Batch count
/// must be <2^16", in gemm_rewriter.cc).
inline constexpr int64_t kMostBatch = 65535;

/// Bytes of the scales of one matrix.
size_t scaleBytes(ScaleMode mode, int64_t rows, int64_t k);

/// The rule of cuBLASLt that a call breaks on a device of this compute capability (80, 89, 90, 100; 0: any); "" where
/// it breaks none. Addresses are looked at where they are not null.
std::string brokenRule(const MatmulArgs &args, int architecture = 0);

} // namespace recast::cuda
