// What the families of reference kernels share: errors, axes, typed loads and stores, and iteration over strided
// operands. Nothing here allocates, except for the message of an error.
#pragma once
#include "runtime/kernels/Kernel.h"
#include "runtime/kernels/Parallel.h"
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace recast::reference {

/// Before a loop whose iterations each touch the elements of one index only: it vectorises although an output may be an
/// input's memory.
#define RECAST_ELEMENTWISE_LOOP _Pragma("clang loop vectorize(assume_safety)")

/// Steps with tensors of a higher rank are refused by `create`, so fixed-size index arrays suffice.
inline constexpr int kMaxRank = 12;
using IndexArray = std::array<int64_t, kMaxRank>;

/// Element-operations that a range of parallelFor holds at least.
inline constexpr int64_t kGrain = 16384;
/// The grain in items that cost `opsPerItem` element-operations each.
inline int64_t grainFor(int64_t opsPerItem) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(opsPerItem, 1)); }

/// "node 'fc1' (Div): integer division by zero".
inline Status stepError(const StepSpec &spec, std::string_view what) {
  return Status::error("node '" + spec.name + "' (" + spec.op + "): " + std::string(what));
}

/// `axis` counted from the front, or -1 if it is outside [-rank, rank).
inline int64_t normalizeAxis(int64_t axis, int64_t rank) {
  int64_t positive = axis < 0 ? axis + rank : axis;
  return positive >= 0 && positive < rank ? positive : -1;
}

/// True if the optional input or output `i` is there.
inline bool present(std::span<const TensorRef> tensors, size_t i) { return i < tensors.size() && tensors[i].present(); }
inline bool present(std::span<const TensorType> types, size_t i) { return i < types.size() && types[i].present(); }

/// The product of dims[begin, end).
inline int64_t product(std::span<const int64_t> dims, int64_t begin, int64_t end) {
  return elementCount(dims.subspan(static_cast<size_t>(begin), static_cast<size_t>(std::max<int64_t>(end - begin, 0))));
}

/// Strides, in elements, of a dense row-major tensor. Entries past the rank are 0.
inline IndexArray denseStrides(std::span<const int64_t> dims) {
  IndexArray strides{};
  int64_t stride = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= dims[d];
  }
  return strides;
}

// Typed values ------------------------------------------------------------------------------------------------------

template <typename T> Compute<T> load(T value) { return value; }
/// As Half's own conversion, but in integer operations that vectorise on every x86-64.
template <> inline float load<Half>(Half value) {
  uint32_t bits = std::bit_cast<uint16_t>(value), magnitude = (bits & 0x7fff) << 13;
  // The exponent's bias moves from 15 to 127 by one exact product, subnormals included.
  uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
  scaled |= (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return std::bit_cast<float>(scaled | (bits & 0x8000) << 16);
}

/// `value` rounded once to T (to nearest, ties to even). Integers convert modulo 2^n.
template <typename T, typename V> T roundTo(V value) {
  if constexpr (std::is_same_v<V, float> && std::is_same_v<T, BFloat16>) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16, quiet = (u >> 16) | 0x40;
    return std::bit_cast<BFloat16>(static_cast<uint16_t>((u & 0x7fffffff) > 0x7f800000 ? quiet : rounded));
  } else if constexpr (std::is_same_v<V, float> && std::is_same_v<T, Half>) {
    uint32_t u = std::bit_cast<uint32_t>(value), sign = u & 0x80000000;
    u ^= sign;
    uint32_t normal = (u - (112u << 23) + 0xfff + ((u >> 13) & 1)) >> 13;
    // Adding 0.5 moves a subnormal half's digits to the end of the mantissa, and rounds them.
    uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(u) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
    uint32_t bits = u < (113u << 23) ? subnormal : normal;
    bits = u >= (143u << 23) ? 0x7c00 : bits;
    bits = u > 0x7f800000 ? 0x7e00 : bits;
    return std::bit_cast<Half>(static_cast<uint16_t>(bits | sign >> 16));
  } else if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
    return T(static_cast<double>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// Element `i` of an integer tensor (axes, indices, lengths) as int64. Precondition: an integer or bool type.
inline int64_t loadIndex(const TensorRef &tensor, int64_t i) {
  switch (tensor.dtype) {
  case DType::I64:
  case DType::U64:
    return tensor.as<int64_t>()[i];
  case DType::I32:
    return tensor.as<int32_t>()[i];
  case DType::U32:
    return tensor.as<uint32_t>()[i];
  case DType::I16:
    return tensor.as<int16_t>()[i];
  case DType::U16:
    return tensor.as<uint16_t>()[i];
  case DType::I8:
    return tensor.as<int8_t>()[i];
  default:
    return tensor.as<uint8_t>()[i];
  }
}

/// Element `i` of any numeric tensor as double.
inline double loadDouble(const TensorRef &tensor, int64_t i) {
  if (isFloat8(tensor.dtype))
    return dispatchFloat8(tensor.dtype, [&]<typename T>() { return static_cast<double>(float(tensor.as<T>()[i])); });
  return dispatchAny(tensor.dtype, [&]<typename T>() { return static_cast<double>(load(tensor.as<T>()[i])); });
}

/// y = x, of one type and size. Nothing to do where they share memory.
inline void copyTensor(const TensorRef &x, const TensorRef &y) {
  if (x.data == y.data)
    return;
  parallelFor(static_cast<int64_t>(y.bytes()), kGrain * 8, [&](int64_t begin, int64_t end) {
    std::memcpy(y.as<char>() + begin, x.as<char>() + begin, static_cast<size_t>(end - begin));
  });
}

// Iteration ---------------------------------------------------------------------------------------------------------

/// Walks an index space of up to kMaxRank dimensions with N operands, each at its own strides (in elements).
///
///     StridedLoop<3> loop(y.dims);
///     loop.broadcast(0, y.dims), loop.broadcast(1, a.dims), loop.broadcast(2, b.dims);
///     loop.coalesce();
///     parallelFor(loop.count(), kGrain, [&](int64_t begin, int64_t end) {
///       loop.walk(begin, end, [&](const std::array<int64_t, 3> &at, int64_t n) {
///         for (int64_t i = 0; i < n; ++i)
///           y[at[0] + i * loop.inner(0)] = a[at[1] + i * loop.inner(1)] + b[at[2] + i * loop.inner(2)];
///       });
///     });
template <size_t N> class StridedLoop {
public:
  explicit StridedLoop(std::span<const int64_t> dims) : rank(static_cast<int>(dims.size())) {
    std::copy(dims.begin(), dims.end(), size.begin());
    total = elementCount(dims);
  }

  /// Operand k is a dense tensor that broadcasts to the space as in NumPy: right-aligned, size 1 repeats.
  void broadcast(size_t k, std::span<const int64_t> dims) {
    IndexArray dense = denseStrides(dims);
    int skip = rank - static_cast<int>(dims.size());
    for (int d = 0; d < rank; ++d)
      strides[k][d] = d < skip || dims[d - skip] == 1 ? 0 : dense[d - skip];
  }
  /// Operand k has these strides: one for each dimension of the space.
  void setStrides(size_t k, const IndexArray &values) { strides[k] = values; }

  /// Drops dimensions of size 1 and merges neighbours that every operand walks as one. The order stays row-major.
  void coalesce() {
    int kept = 0;
    for (int d = 0; d < rank; ++d) {
      if (size[d] == 1)
        continue;
      bool merges = kept > 0;
      for (size_t k = 0; merges && k < N; ++k)
        merges = strides[k][kept - 1] == strides[k][d] * size[d];
      int to = merges ? kept - 1 : kept++;
      size[to] = merges ? size[to] * size[d] : size[d];
      for (size_t k = 0; k < N; ++k)
        strides[k][to] = strides[k][d];
    }
    rank = kept;
  }

  /// Points of the space.
  int64_t count() const { return total; }
  /// Operand k's stride along the innermost dimension.
  int64_t inner(size_t k) const { return rank ? strides[k][rank - 1] : 0; }

  /// Calls run(offsets, n) for the points [begin, end) in row-major order, n of them at a time along the innermost
  /// dimension; offsets[k] is operand k's element at the first of them.
  template <typename Run> void walk(int64_t begin, int64_t end, Run &&run) const {
    if (begin >= end) // The space may be empty, and a dimension 0.
      return;
    std::array<int64_t, N> at{};
    IndexArray index{};
    int64_t rest = begin;
    for (int d = rank; d-- > 0;) {
      index[d] = rest % size[d];
      rest /= size[d];
      for (size_t k = 0; k < N; ++k)
        at[k] += index[d] * strides[k][d];
    }
    int last = rank - 1;
    while (begin < end) {
      int64_t n = rank ? std::min(end - begin, size[last] - index[last]) : 1;
      run(static_cast<const std::array<int64_t, N> &>(at), n);
      begin += n;
      if (begin >= end)
        return;
      // The row is finished: back to its start, and on in the dimensions outside it.
      for (size_t k = 0; k < N; ++k)
        at[k] -= index[last] * strides[k][last];
      index[last] = 0;
      for (int d = last; d-- > 0;) {
        for (size_t k = 0; k < N; ++k)
          at[k] += strides[k][d];
        if (++index[d] < size[d])
          break;
        for (size_t k = 0; k < N; ++k)
          at[k] -= size[d] * strides[k][d];
        index[d] = 0;
      }
    }
  }

private:
  int rank;
  int64_t total;
  IndexArray size{};
  std::array<IndexArray, N> strides{};
};

} // namespace recast::reference
