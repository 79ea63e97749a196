// Copies between strided views, and their relatives. Arguments of the kernels in Copy.cpp; the names of kernels that
// move elements end in the bytes of one: 1, 2, 4 or 8.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

/// Loops of a copy, after neighbours that both sides walk as one are merged. Tile has two a dimension.
inline constexpr int kMaxLoops = 12;

/// copy_strided: element (i0, i1, ...) of one view to the same of another. Strides are in elements; they may be
/// negative, or 0 to repeat. Loops come from the outermost to the innermost.
struct StridedCopyArgs {
  const void *src;
  void *dst;
  int64_t srcOffset, dstOffset; ///< Of the first element, in elements.
  int64_t count;                ///< Elements of all loops.
  int rank;
  Array<int64_t, kMaxLoops> sizes, srcStrides, dstStrides;
};

/// copy_transposed: `batches` matrices of rows x columns: dst[b, i, j] = src[b, j, i], both dense.
struct TransposeArgs {
  const void *src;
  void *dst;
  int64_t batches, rows, columns; ///< Of dst.
};

/// copy_bytes: dst = src; fast where both are aligned to 16 bytes.
struct CopyArgs {
  const void *src;
  void *dst;
  int64_t bytes;
};

/// select_bytes: dst = *condition ? whenTrue : whenFalse; fast where all are aligned to 16 bytes. dst may be either
/// source.
struct SelectArgs {
  const bool *condition;
  const void *whenTrue, *whenFalse;
  void *dst;
  int64_t bytes;
};

/// fill_zero: bytes of 0; fast where they are aligned to 16 bytes.
struct FillArgs {
  void *dst;
  int64_t bytes;
};

enum class PadMode : int { Constant, Edge, Reflect, Wrap };

/// pad: dst[i] = src[i - before] inside, and as the mode says outside. `value` may be null: 0.
struct PadArgs {
  const void *src, *value;
  void *dst;
  int64_t count;
  int rank;
  PadMode mode;
  Array<int64_t, kMaxLoops> sizes, srcSizes, before; ///< Sizes of dst and src.
};

/// trilu: keeps columns >= row + k (upper) or <= row + k. `k` may be null: 0.
struct TriluArgs {
  const void *src;
  const int64_t *k;
  void *dst;
  int64_t count, rows, columns;
  bool isUpper;
};

/// range: start + i * delta, rounded once.
struct RangeArgs {
  const void *start, *delta;
  void *dst;
  int64_t count;
};

/// eye: 1 where column == row + k, else 0. `one` is the bits of 1.
struct EyeArgs {
  void *dst;
  int64_t count, columns, k;
  uint64_t one;
};

} // namespace recast::cuda
