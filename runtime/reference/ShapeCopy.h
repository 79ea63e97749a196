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

/// The loops of DepthToSpace and of SpaceToDepth, its inverse, between tensors of dims `deep` (more channels) and
/// `wide`: add(size, stride in deep, stride in wide), the outermost first. A reason where the blocks do not fit. DCR
/// reads the channel as (row, column, depth), CRD as (depth, row, column) of the block.
template <typename Add>
std::string addDepthLoops(const Attributes &attrs, std::span<const int64_t> deep, std::span<const int64_t> wide,
                          Add add) {
  int64_t block = attrs.getInt("blocksize", 0);
  bool depthFirst = attrs.stringView("mode", "DCR") == "CRD";
  if (deep.size() != 4 || wide.size() != 4 || block < 1 || deep[1] != wide[1] * block * block ||
      wide[2] != deep[2] * block || wide[3] != deep[3] * block)
    return "blocksize " + std::to_string(block) + " does not fit the shape";
  IndexArray d = denseStrides(deep), w = denseStrides(wide);
  int64_t channels = wide[1];
  int64_t depthStride = d[1] * (depthFirst ? block * block : 1), columnStride = d[1] * (depthFirst ? 1 : channels);
  add(deep[0], d[0], w[0]);
  add(channels, depthStride, w[1]);
  add(deep[2], d[2], w[2] * block);
  add(block, columnStride * block, w[2]);
  add(deep[3], d[3], w[3] * block);
  add(block, columnStride, w[3]);
  return "";
}

/// Copies a whole tensor to one with as many elements. Does nothing where both share their memory.
void copyDense(const TensorRef &src, const TensorRef &dst);

} // namespace recast::reference
