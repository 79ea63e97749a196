#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;
/// Side of the tiles of a transposing copy, which a block of kThreads copies row by row.
constexpr int kTile = 32;

template <typename T> void copyStrided(const StridedCopyArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t rest = i, from = a.srcOffset, to = a.dstOffset;
    for (int d = a.rank; d-- > 0;) {
      int64_t at = rest % a.sizes[d];
      rest /= a.sizes[d];
      from += at * a.srcStrides[d];
      to += at * a.dstStrides[d];
    }
    static_cast<T *>(a.dst)[to] = static_cast<const T *>(a.src)[from];
  }
}

/// Both sides are read and written along their rows; the tile turns in shared memory, whose rows are one longer so that
/// a column lies in 32 different banks.
template <typename T> void copyTransposed(const TransposeArgs &a) {
  using Tile = Array<Array<T, kTile + 1>, kTile>;
  RECAST_SHARED(Tile, tile);
  int64_t across = (a.columns + kTile - 1) / kTile, down = (a.rows + kTile - 1) / kTile;
  int64_t block = blockIndex(), firstColumn = block % across * kTile, firstRow = block / across % down * kTile;
  int64_t matrix = block / across / down * a.rows * a.columns;
  const T *src = static_cast<const T *>(a.src) + matrix;
  T *dst = static_cast<T *>(a.dst) + matrix;
  int x = threadIndex() % kTile;
  for (int y = threadIndex() / kTile; y < kTile; y += blockThreads() / kTile)
    if (firstColumn + y < a.columns && firstRow + x < a.rows)
      tile[y][x] = src[(firstColumn + y) * a.rows + firstRow + x];
  syncThreads();
  for (int y = threadIndex() / kTile; y < kTile; y += blockThreads() / kTile)
    if (firstRow + y < a.rows && firstColumn + x < a.columns)
      dst[(firstRow + y) * a.columns + firstColumn + x] = tile[x][y];
}

/// Sixteen bytes at a time, the rest one by one; so all of them where an address does not allow it, as that of a
/// micro-batch in a batch may not.
template <typename Read> void forBytes(int64_t bytes, void *dst, const void *src, Read read) {
  bool isAligned = (reinterpret_cast<uintptr_t>(dst) | reinterpret_cast<uintptr_t>(src)) % 16 == 0;
  int64_t vectors = isAligned ? bytes / 16 : 0;
  for (int64_t i = gridThread(); i < vectors; i += gridThreads())
    static_cast<Bytes16 *>(dst)[i] = read.template operator()<Bytes16>(i);
  for (int64_t i = vectors * 16 + gridThread(); i < bytes; i += gridThreads())
    static_cast<uint8_t *>(dst)[i] = read.template operator()<uint8_t>(i);
}

void copyBytes(const CopyArgs &a) {
  forBytes(a.bytes, a.dst, a.src, [&]<typename T>(int64_t i) { return static_cast<const T *>(a.src)[i]; });
}
void selectBytes(const SelectArgs &a) {
  const void *src = *a.condition ? a.whenTrue : a.whenFalse;
  forBytes(a.bytes, a.dst, src, [&]<typename T>(int64_t i) { return static_cast<const T *>(src)[i]; });
}
void fillZero(const FillArgs &a) {
  forBytes(a.bytes, a.dst, a.dst, []<typename T>(int64_t) { return T{}; });
}

/// Where an element outside of [0, size) comes from; -1: from the constant.
int64_t padded(int64_t at, int64_t size, PadMode mode) {
  if (at >= 0 && at < size)
    return at;
  switch (mode) {
  case PadMode::Constant:
    return -1;
  case PadMode::Edge:
    return at < 0 ? 0 : size - 1;
  case PadMode::Wrap:
    return (at % size + size) % size;
  case PadMode::Reflect:
    break;
  }
  if (size == 1)
    return 0;
  int64_t period = 2 * (size - 1), place = (at % period + period) % period;
  return place < size ? place : period - place;
}

template <typename T> void pad(const PadArgs &a) {
  T value = a.value ? *static_cast<const T *>(a.value) : T{};
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t rest = i, from = 0, stride = 1;
    bool isInside = true;
    for (int d = a.rank; d-- > 0;) {
      int64_t at = padded(rest % a.sizes[d] - a.before[d], a.srcSizes[d], a.mode);
      rest /= a.sizes[d];
      isInside &= at >= 0;
      from += at * stride;
      stride *= a.srcSizes[d];
    }
    static_cast<T *>(a.dst)[i] = isInside ? static_cast<const T *>(a.src)[from] : value;
  }
}

template <typename T> void trilu(const TriluArgs &a) {
  // Beyond these bounds a larger k changes nothing, and sums could overflow.
  int64_t k = a.k ? *a.k : 0;
  k = k < -a.rows - 1 ? -a.rows - 1 : k > a.columns + 1 ? a.columns + 1 : k;
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t column = i % a.columns, diagonal = i / a.columns % a.rows + k;
    bool isKept = a.isUpper ? column >= diagonal : column <= diagonal;
    static_cast<T *>(a.dst)[i] = isKept ? static_cast<const T *>(a.src)[i] : T{};
  }
}

template <typename T> void range(const RangeArgs &a) {
  T start = *static_cast<const T *>(a.start), delta = *static_cast<const T *>(a.delta);
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    T &y = static_cast<T *>(a.dst)[i];
    if constexpr (isFloatType<T>)
      y = roundTo<T>(static_cast<double>(load(start)) + static_cast<double>(i) * static_cast<double>(load(delta)));
    else // Unsigned arithmetic: overflow wraps.
      y = static_cast<T>(static_cast<uint64_t>(start) + static_cast<uint64_t>(i) * static_cast<uint64_t>(delta));
  }
}

template <typename T> void eye(const EyeArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads())
    static_cast<T *>(a.dst)[i] = i % a.columns == i / a.columns + a.k ? static_cast<T>(a.one) : T{};
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(copyKernels,
  RECAST_KERNEL_BY_SIZE(copy_strided, kThreads, StridedCopyArgs, copyStrided)
  RECAST_KERNEL_BY_SIZE(copy_transposed, kThreads, TransposeArgs, copyTransposed)
  RECAST_KERNEL_BY_SIZE(pad, kThreads, PadArgs, pad)
  RECAST_KERNEL_BY_SIZE(trilu, kThreads, TriluArgs, trilu)
  RECAST_KERNEL_BY_SIZE(eye, kThreads, EyeArgs, eye)
  RECAST_KERNEL(copy_bytes, kThreads, CopyArgs, copyBytes)
  RECAST_KERNEL(select_bytes, kThreads, SelectArgs, selectBytes)
  RECAST_KERNEL(fill_zero, kThreads, FillArgs, fillZero)
  RECAST_KERNEL_BY_FLOAT(range, kThreads, RangeArgs, range)
  RECAST_KERNEL(range_f64, kThreads, RangeArgs, range<double>)
  RECAST_KERNEL(range_i32, kThreads, RangeArgs, range<int32_t>)
  RECAST_KERNEL(range_i64, kThreads, RangeArgs, range<int64_t>))
// clang-format on

} // namespace recast::cuda
