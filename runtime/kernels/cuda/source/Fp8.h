// fp8 training: quantize_fp8, quantize_fp8_tiles, dequantize_fp8, update_amax. docs/fp8.md has the formulas.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

/// quantize_fp8_X_Q: q = x * scale, saturating; *amax (bits of a float) becomes at least |x|. `amax` may be null.
struct QuantizeArgs {
  const void *x;
  const float *scale;
  void *q;
  uint32_t *amax;
  int64_t count;
};

/// store_amax: the bits as a float; NaN where they are one.
struct AmaxArgs {
  const uint32_t *bits;
  float *amax;
};

/// A tensor cut into tiles with one scale each; the last tile of a dimension may be smaller.
inline constexpr int kTileRank = 12;
struct Tiling {
  int rank;
  Array<int64_t, kTileRank> sizes, edges, strides; ///< Of the tensor, of a tile, of the grid of tiles.
};

enum class ScaleRule : int { Exact, PowerOfTwo, MxFloor };

/// tile_amax_X: amax[tile] (bits) becomes at least |x|.
/// tile_quantize_X_Q: q = x * multiplier[tile], saturating.
struct TileArgs {
  Tiling tiling;
  const void *x;
  const float *multipliers;
  uint32_t *amax;
  void *q;
  int64_t count;
};

/// quantize_transposed_X_Q: matrices of rows x columns, q as quantize_fp8 or tile_quantize gives it, and transposed. A
/// block takes kTransposeTile rows and columns. `q` and `amax` may be null; without tiles there is one multiplier.
inline constexpr int kTransposeTile = 32;
struct QuantizeTransposedArgs {
  Tiling tiling;
  const void *x;
  const float *multipliers;
  uint32_t *amax;
  void *q, *transposed;
  int64_t rows, columns;
  bool isTiled;
};

/// tile_scale: the multiplier of each tile, and its inverse as f32 or E8M0.
struct TileScaleArgs {
  const uint32_t *amax;
  float *multipliers;
  void *inverse;
  int64_t count;
  float largest; ///< Number of the 8-bit type.
  ScaleRule rule;
  bool isE8M0; ///< The inverse.
};

/// dequantize_fp8_Q: y = q * inverse[tile].
struct DequantizeArgs {
  Tiling tiling;
  const void *q, *inverse;
  float *y;
  int64_t count;
  bool isE8M0;
};

/// How cuBLASLt wants the scales of a matrix (table/Matmul.h): row by row of one block of k after the other; all blocks
/// of one row after the other, padded to a multiple of 4; or tiles of 128 rows and 4 blocks, in which row r and block b
/// lie at r % 32 * 16 + r / 32 * 4 + b.
enum class ScaleLayout : int { BlocksOfRows, RowsOfBlocks, Tiles };

/// arrange_scales_1, arrange_scales_4: scales of a stack of matrices from where they lie to where cuBLASLt wants them,
/// by the bytes of one. Padding is 0.
struct ArrangeScalesArgs {
  const void *src;
  void *dst;
  int64_t count;        ///< Scales of dst, with padding.
  int64_t rows, blocks; ///< Of one matrix, in scales.
  ScaleLayout layout;
  int rank;
  Array<int64_t, kTileRank> sizes, strides; ///< Loops over the rows of all matrices in src, the outermost first.
  int64_t blockStride;                      ///< From one block to the next in src.
};

/// update_amax, as Transformer Engine's delayed scaling: entry 0 of the history belongs to the current step and is 0
/// between steps; the last entry is that of the step before.
struct AmaxHistoryArgs {
  const bool *skip;
  const float *history, *scale, *amax;
  float *newHistory, *newScale;
  int64_t length;
  float largest, margin;
  bool ignoresNaN, takesLargest; ///< Of the whole history, not only the most recent.
};

} // namespace recast::cuda
