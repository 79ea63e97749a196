#include "runtime/kernels/cuda/source/Indexing.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

/// Counted from the front; false where it is outside of [-size, size).
bool resolve(int64_t &index, int64_t size) {
  if (index < -size || index >= size)
    return false;
  index += index < 0 ? size : 0;
  return true;
}

template <typename T> void gather(const GatherArgs &a) {
  int64_t total = a.outer * a.count * a.inner;
  for (int64_t i = gridThread(); i < total; i += gridThreads()) {
    int64_t column = i % a.inner, k = i / a.inner % a.count, outer = i / a.inner / a.count;
    int64_t row = loadIndex(a.indices, a.isWide, k);
    bool isInside = resolve(row, a.size);
    if (!isInside)
      report(a.fault, k);
    static_cast<T *>(a.dst)[i] =
        isInside ? static_cast<const T *>(a.src)[(outer * a.size + row) * a.inner + column] : T{};
  }
}

template <typename T> void gatherElements(const GatherElementsArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t from = offsetOf(i, a.rank, a.sizes, a.strides), index = loadIndex(a.indices, a.isWide, i);
    bool isInside = resolve(index, a.axisSize);
    if (!isInside)
      report(a.fault, i);
    static_cast<T *>(a.dst)[i] = isInside ? static_cast<const T *>(a.src)[from + index * a.axisStride] : T{};
  }
}

/// The offset that tuple `tuple` names, without batch dimensions; false, after a report, where it names none.
template <typename Args> bool tupleOffset(const Args &a, int64_t tuple, int64_t &offset) {
  offset = 0;
  for (int64_t k = 0; k < a.width; ++k) {
    int64_t index = loadIndex(a.indices, a.isWide, tuple * a.width + k);
    if (!resolve(index, a.sizes[k])) {
      report(a.fault, tuple * a.width + k);
      return false;
    }
    offset += index * a.strides[k];
  }
  return true;
}

template <typename T> void gatherNd(const GatherNdArgs &a) {
  int64_t total = a.tuples * a.slice;
  for (int64_t i = gridThread(); i < total; i += gridThreads()) {
    int64_t tuple = i / a.slice, offset;
    bool isInside = tupleOffset(a, tuple, offset);
    static_cast<T *>(a.dst)[i] =
        isInside ? static_cast<const T *>(a.src)[tuple / a.perBatch * a.batchElems + offset + i % a.slice] : T{};
  }
}

/// Indices outside of [-depth, depth) give off values.
template <typename T> void oneHot(const OneHotArgs &a) {
  const T *values = static_cast<const T *>(a.values);
  auto type = static_cast<DType>(a.indexType);
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t column = i % a.inner, d = i / a.inner % a.depth, outer = i / a.inner / a.depth;
    const char *at =
        static_cast<const char *>(a.indices) + (outer * a.inner + column) * static_cast<int64_t>(byteSize(type));
    double value = loadScalar(at, type), depth = static_cast<double>(a.depth);
    bool isOn = false;
    if (value >= -depth && value <= depth) {
      int64_t index = static_cast<int64_t>(value);
      isOn = resolve(index, a.depth) && index == d;
    }
    static_cast<T *>(a.dst)[i] = values[isOn ? 1 : 0];
  }
}

void keysRows(const KeyArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t row = loadIndex(a.indices, a.isWide, i);
    bool isInside = resolve(row, a.axisSize);
    if (!isInside)
      report(a.fault, i);
    a.keys[i] = isInside ? static_cast<uint32_t>(row) : kNoRow;
    a.positions[i] = static_cast<uint32_t>(i);
  }
}
void keysElements(const KeyArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t to = offsetOf(i, a.rank, a.sizes, a.strides), index = loadIndex(a.indices, a.isWide, i);
    bool isInside = resolve(index, a.axisSize);
    if (!isInside)
      report(a.fault, i);
    a.keys[i] = isInside ? static_cast<uint32_t>(to + index * a.axisStride) : kNoRow;
    a.positions[i] = static_cast<uint32_t>(i);
  }
}
void keysTuples(const KeyArgs &a) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    int64_t row;
    a.keys[i] = tupleOffset(a, i, row) ? static_cast<uint32_t>(row) : kNoRow;
    a.positions[i] = static_cast<uint32_t>(i);
  }
}

using Tile = Array<uint32_t, kSortTile>;
using Digits = Array<uint32_t, kDigits>;

void radixCount(const RadixArgs &a) {
  RECAST_SHARED(Digits, counts);
  int64_t first = blockIndex() * kSortTile;
  counts[threadIndex()] = 0;
  syncThreads();
  for (int64_t i = first + threadIndex(); i < first + kSortTile && i < a.count; i += kDigits)
    atomicAdd(&counts[a.keys[i] >> a.shift & (kDigits - 1)], 1);
  syncThreads();
  a.counts[threadIndex() * a.tiles + blockIndex()] = counts[threadIndex()];
}

/// Each thread moves the elements of one digit, in their order.
void radixPlace(const RadixArgs &a) {
  RECAST_SHARED(Tile, keys);
  RECAST_SHARED(Tile, positions);
  int64_t first = blockIndex() * kSortTile;
  int count = static_cast<int>(a.count - first < kSortTile ? a.count - first : kSortTile);
  for (int i = threadIndex(); i < count; i += kDigits) {
    keys[i] = a.keys[first + i];
    positions[i] = a.positions[first + i];
  }
  syncThreads();
  auto digit = static_cast<uint32_t>(threadIndex());
  uint32_t to = a.counts[threadIndex() * a.tiles + blockIndex()];
  for (int i = 0; i < count; ++i)
    if ((keys[i] >> a.shift & (kDigits - 1)) == digit) {
      a.keysOut[to] = keys[i];
      a.positionsOut[to] = positions[i];
      ++to;
    }
}

constexpr int kScanThreads = 1024;

void radixScan(const ScanArgs &a) {
  using Sums = Array<uint32_t, kWarp>;
  RECAST_SHARED(Sums, sums);
  uint32_t carry = 0;
  for (int64_t first = 0; first < a.count; first += kScanThreads) {
    int64_t i = first + threadIndex();
    uint32_t value = i < a.count ? a.values[i] : 0, inclusive = value;
    for (int lanes = 1; lanes < kWarp; lanes *= 2) {
      uint32_t before = shuffleFrom(inclusive, lane() < lanes ? lane() : lane() - lanes);
      inclusive += lane() < lanes ? 0 : before;
    }
    if (lane() == kWarp - 1)
      sums[warp()] = inclusive;
    syncThreads();
    uint32_t before = carry;
    for (int w = 0; w < kScanThreads / kWarp; ++w) {
      before += w < warp() ? sums[w] : 0;
      carry += sums[w];
    }
    if (i < a.count)
      a.values[i] = before + inclusive - value;
    syncThreads(); // Before the next round writes `sums`.
  }
}

template <typename T> T combined(T old, T update, Combine combine) {
  auto a = load(old), b = load(update);
  // As numpy.maximum and numpy.minimum: a NaN on either side stays.
  if (a != a || b != b)
    return a != a ? old : update;
  return (combine == Combine::Max ? b > a : b < a) ? update : old;
}

template <typename T> void scatter(const ScatterArgs &a) {
  using A = Accumulator<T>;
  int64_t total = a.outer * a.count * a.inner;
  for (int64_t i = gridThread(); i < total; i += gridThreads()) {
    int64_t column = i % a.inner, k = i / a.inner % a.count, outer = i / a.inner / a.count;
    uint32_t key = a.keys[k];
    if (key >= a.rows || (k > 0 && a.keys[k - 1] == key))
      continue; // Not the first update of its row.
    T &y = static_cast<T *>(a.y)[(outer * a.rows + key) * a.inner + column];
    const T *updates = static_cast<const T *>(a.updates) + outer * a.count * a.inner + column;
    T value = y;
    A sum = static_cast<A>(load(value));
    bool isSum = a.combine == Combine::Add, isProduct = a.combine == Combine::Mul;
    for (; k < a.count && a.keys[k] == key; ++k) {
      T update = updates[a.positions[k] * a.inner];
      if (isSum)
        sum += static_cast<A>(load(update));
      else if (isProduct)
        sum *= static_cast<A>(load(update));
      else
        value = a.combine == Combine::None ? update : combined(value, update, a.combine);
    }
    y = isSum || isProduct ? roundTo<T>(sum) : value;
  }
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(indexingKernels,
  RECAST_KERNEL_BY_SIZE(gather, kThreads, GatherArgs, gather)
  RECAST_KERNEL(gather_16, kThreads, GatherArgs, gather<Bytes16>)
  RECAST_KERNEL_BY_SIZE(gather_elements, kThreads, GatherElementsArgs, gatherElements)
  RECAST_KERNEL_BY_SIZE(gather_nd, kThreads, GatherNdArgs, gatherNd)
  RECAST_KERNEL_BY_SIZE(one_hot, kThreads, OneHotArgs, oneHot)
  RECAST_KERNEL(keys_rows, kThreads, KeyArgs, keysRows)
  RECAST_KERNEL(keys_elements, kThreads, KeyArgs, keysElements)
  RECAST_KERNEL(keys_tuples, kThreads, KeyArgs, keysTuples)
  RECAST_KERNEL(radix_count, kDigits, RadixArgs, radixCount)
  RECAST_KERNEL(radix_place, kDigits, RadixArgs, radixPlace)
  RECAST_KERNEL(radix_scan, kScanThreads, ScanArgs, radixScan)
  RECAST_KERNEL_BY_FLOAT(scatter, kThreads, ScatterArgs, scatter)
  RECAST_KERNEL(scatter_f64, kThreads, ScatterArgs, scatter<double>)
  RECAST_KERNEL(scatter_i8, kThreads, ScatterArgs, scatter<int8_t>)
  RECAST_KERNEL(scatter_u8, kThreads, ScatterArgs, scatter<uint8_t>)
  RECAST_KERNEL(scatter_i16, kThreads, ScatterArgs, scatter<int16_t>)
  RECAST_KERNEL(scatter_u16, kThreads, ScatterArgs, scatter<uint16_t>)
  RECAST_KERNEL(scatter_i32, kThreads, ScatterArgs, scatter<int32_t>)
  RECAST_KERNEL(scatter_u32, kThreads, ScatterArgs, scatter<uint32_t>)
  RECAST_KERNEL(scatter_i64, kThreads, ScatterArgs, scatter<int64_t>)
  RECAST_KERNEL(scatter_u64, kThreads, ScatterArgs, scatter<uint64_t>))
// clang-format on

} // namespace recast::cuda
