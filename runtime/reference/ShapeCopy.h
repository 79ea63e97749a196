// Copies between strided views: transposes, slices, concatenations, broadcasts and their like are one such copy each.
#pragma once
#include "runtime/reference/Loops.h"

namespace recast::reference {

/// A loop nest that copies element (i0, i1, ...) of one view to the same element of another. Strides are in elements
/// and may be negative, or 0 to repeat. Written places must differ from each other.
class StridedCopy {
public:
  explicit StridedCopy(int64_t srcOffset = 0, int64_t dstOffset = 0) : srcOffset(srcOffset), dstOffset(dstOffset) {}

  /// Adds a loop inside those added before. Neighbours that both views walk as one are merged.
  void add(int64_t size, int64_t srcStride, int64_t dstStride);

  /// Copies elements of `elementBytes` (1, 2, 4 or 8).
  void run(const void *src, void *dst, size_t elementBytes) const;
  void run(const TensorRef &src, const TensorRef &dst) const { run(src.data, dst.data, byteSize(dst.dtype)); }

private:
  /// Tile has two loops a dimension.
  static constexpr int kMaxLoops = 2 * kMaxRank;
  template <typename T> void runTyped(const T *src, T *dst) const;

  int64_t srcOffset, dstOffset;
  bool empty = false;
  int rank = 0;
  std::array<int64_t, kMaxLoops> sizes{}, srcStrides{}, dstStrides{};
};

/// Copies a whole tensor to one with as many elements. Does nothing where both share their memory.
void copyDense(const TensorRef &src, const TensorRef &dst);

} // namespace recast::reference
