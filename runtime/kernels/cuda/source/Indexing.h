// Gather and its relatives, and what is scattered. Indices are int32 or int64, negative ones count from the end; one
// outside of its axis is reported, and reads 0 or writes nothing.
//
// What is scattered is sorted first: keys are the rows that updates go to, and a stable sort (radix_*) brings the
// updates of a row together in their own order. Then one thread a column applies them one by one: results do not
// depend on timing, and repeated indices mean what they mean on the CPU.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

inline constexpr int kMaxRank = 12;

/// gather_N: dst[o, k, j] = src[o, indices[k], j]. N bytes are moved at a time.
struct GatherArgs {
  const void *src, *indices;
  void *dst;
  Fault *fault;
  int64_t outer, size, count, inner; ///< size: of src's axis.
  bool isWide;                       ///< int64 indices.
};

/// gather_elements_N: dst[i...] = src[i... with indices[i...] along the axis].
struct GatherElementsArgs {
  const void *src, *indices;
  void *dst;
  Fault *fault;
  int64_t count, axisSize, axisStride;
  int rank;
  bool isWide;
  Array<int64_t, kMaxRank> sizes, strides; ///< Of dst; of src, 0 along the axis.
};

/// gather_nd_N: dst[t, j] = src[batch of t, indices[t, 0..width), j].
struct GatherNdArgs {
  const void *src, *indices;
  void *dst;
  Fault *fault;
  int64_t tuples, width, slice, perBatch, batchElems;
  bool isWide;
  Array<int64_t, kMaxRank> sizes, strides; ///< Of the indexed dimensions of src.
};

/// one_hot_N: dst[o, d, j] = values[indices[o, j] == d].
struct OneHotArgs {
  const void *indices, *values;
  void *dst;
  int64_t count, depth, inner; ///< count: of dst.
  int indexType;               ///< A DType.
};

/// A key that no row has: updates with it are dropped.
inline constexpr uint32_t kNoRow = 0xffffffff;

/// keys_rows: keys[k] = indices[k], positions[k] = k.
/// keys_elements: keys[k] = the element of the target that update k goes to (sizes and strides as in GatherElements).
/// keys_tuples: keys[k] = the slice that tuple k names.
struct KeyArgs {
  const void *indices;
  uint32_t *keys, *positions;
  Fault *fault;
  int64_t count, axisSize, axisStride, width;
  int rank;
  bool isWide;
  Array<int64_t, kMaxRank> sizes, strides;
};

/// Elements that a block of the sort works on.
inline constexpr int kSortTile = 1024;
inline constexpr int kDigits = 256;

/// radix_count: counts[digit * tiles + tile]. radix_place: moves to where the sums of the counts before say.
struct RadixArgs {
  const uint32_t *keys, *positions;
  uint32_t *keysOut, *positionsOut, *counts;
  int64_t count, tiles;
  int shift;
};

/// radix_scan: values[i] = the sum of those before it. One block.
struct ScanArgs {
  uint32_t *values;
  int64_t count;
};

enum class Combine : int { None, Add, Mul, Max, Min };

/// scatter_T: y[o, key, j] = combined with updates[o, position, j] in the order of the sorted pairs.
struct ScatterArgs {
  const uint32_t *keys, *positions;
  const void *updates;
  void *y;
  int64_t count, rows, outer, inner;
  Combine combine;
};

} // namespace recast::cuda
