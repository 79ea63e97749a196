#include "runtime/reference/ShapeCopy.h"
#include <cstring>

namespace recast::reference {
namespace {

/// Side of the square tiles of a transposing copy.
constexpr int64_t kTile = 32;

template <typename T> void copyRow(const T *src, int64_t srcStride, T *dst, int64_t dstStride, int64_t count) {
  if (srcStride == 1 && dstStride == 1) {
    std::memcpy(dst, src, static_cast<size_t>(count) * sizeof(T));
  } else if (srcStride == 0 && dstStride == 1) {
    std::fill_n(dst, count, *src);
  } else {
    for (int64_t i = 0; i < count; ++i)
      dst[i * dstStride] = src[i * srcStride];
  }
}

/// to(i, j) = from(i, j) for i < rows, j < columns, where `from` is contiguous along i. The tile passes through a
/// buffer, so that rows at a distance of a power of two, which share a cache set, are each read and written at once.
template <typename T>
void copyTile(const T *from, int64_t fromColumn, T *to, int64_t toRow, int64_t toColumn, int64_t rows,
              int64_t columns) {
  constexpr int64_t pitch = kTile + 1;
  T tile[kTile * pitch];
  for (int64_t j = 0; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i)
      tile[i * pitch + j] = from[j * fromColumn + i];
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      to[i * toRow + j * toColumn] = tile[i * pitch + j];
}

} // namespace

void StridedCopy::add(int64_t size, int64_t srcStride, int64_t dstStride) {
  empty |= size == 0;
  if (size <= 1)
    return;
  int outer = rank - 1;
  if (rank && srcStrides[outer] == srcStride * size && dstStrides[outer] == dstStride * size) {
    sizes[outer] *= size;
    srcStrides[outer] = srcStride;
    dstStrides[outer] = dstStride;
    return;
  }
  sizes[rank] = size;
  srcStrides[rank] = srcStride;
  dstStrides[rank] = dstStride;
  ++rank;
}

void StridedCopy::run(const void *src, void *dst, size_t elementBytes) const {
  switch (elementBytes) {
  case 1:
    return runTyped(static_cast<const uint8_t *>(src), static_cast<uint8_t *>(dst));
  case 2:
    return runTyped(static_cast<const uint16_t *>(src), static_cast<uint16_t *>(dst));
  case 4:
    return runTyped(static_cast<const uint32_t *>(src), static_cast<uint32_t *>(dst));
  default:
    return runTyped(static_cast<const uint64_t *>(src), static_cast<uint64_t *>(dst));
  }
}

template <typename T> void StridedCopy::runTyped(const T *src, T *dst) const {
  if (empty)
    return;
  src += srcOffset;
  dst += dstOffset;
  if (rank == 0) {
    *dst = *src;
    return;
  }
  int last = rank - 1;
  // Where the source is contiguous along another loop than the innermost, both are cut into tiles, so that each cache
  // line of either side is used as a whole.
  int across = -1;
  for (int d = 0; d < last; ++d)
    if (srcStrides[d] == 1 && std::abs(srcStrides[last]) > 1)
      across = d;

  // A unit of work is one block of the tiled loop in one round of the other loops; the block is the innermost index.
  int64_t blockSize = across >= 0 ? kTile : kGrain;
  int tiled = across >= 0 ? across : last;
  int64_t blocks = (sizes[tiled] + blockSize - 1) / blockSize, units = blocks;
  for (int d = 0; d < rank; ++d)
    units *= d == last || d == across ? 1 : sizes[d];
  int64_t unitElems = std::min(blockSize, sizes[tiled]) * (across >= 0 ? sizes[last] : 1);

  auto copyBlock = [&](int64_t block, const T *from, T *to) {
    int64_t first = block * blockSize, count = std::min(blockSize, sizes[tiled] - first);
    from += first * srcStrides[tiled];
    to += first * dstStrides[tiled];
    if (across < 0)
      return copyRow(from, srcStrides[last], to, dstStrides[last], count);
    for (int64_t column = 0; column < sizes[last]; column += kTile)
      copyTile(from + column * srcStrides[last], srcStrides[last], to + column * dstStrides[last], dstStrides[across],
               dstStrides[last], count, std::min(kTile, sizes[last] - column));
  };

  parallelFor(units, grainFor(unitElems), [&](int64_t begin, int64_t end) {
    std::array<int64_t, kMaxLoops> index{};
    int64_t block = begin % blocks, rest = begin / blocks;
    const T *from = src;
    T *to = dst;
    for (int d = last; d-- > 0;) {
      if (d == across)
        continue;
      index[d] = rest % sizes[d];
      rest /= sizes[d];
      from += index[d] * srcStrides[d];
      to += index[d] * dstStrides[d];
    }
    for (int64_t unit = begin;;) {
      copyBlock(block, from, to);
      if (++unit == end)
        return;
      if (++block < blocks)
        continue;
      block = 0;
      for (int d = last; d-- > 0;) {
        if (d == across)
          continue;
        from += srcStrides[d];
        to += dstStrides[d];
        if (++index[d] < sizes[d])
          break;
        from -= sizes[d] * srcStrides[d];
        to -= sizes[d] * dstStrides[d];
        index[d] = 0;
      }
    }
  });
}

void copyDense(const TensorRef &src, const TensorRef &dst) {
  if (src.data == dst.data)
    return;
  StridedCopy copy;
  copy.add(dst.elems(), 1, 1);
  copy.run(src, dst);
}

} // namespace recast::reference
