// Element types in kernels: how they are read, computed with and rounded. Half, BFloat16 and the 8-bit floats are the
// CPU's own (runtime/plan), so that both round alike.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"
RECAST_DEVICE_BEGIN
#include "runtime/plan/DType.h"
RECAST_DEVICE_END

/// Entry points Name_f32, Name_f16 and Name_bf16.
#define RECAST_KERNEL_BY_FLOAT(Name, Threads, Args, Function)                                                          \
  RECAST_KERNEL(Name##_f32, Threads, Args, Function<float>)                                                            \
  RECAST_KERNEL(Name##_f16, Threads, Args, Function<Half>)                                                             \
  RECAST_KERNEL(Name##_bf16, Threads, Args, Function<BFloat16>)

namespace recast::cuda {
RECAST_DEVICE_BEGIN

template <typename T> Compute<T> load(T value) { return value; }

/// Rounds once, to nearest with ties to even; integers convert modulo 2^n.
template <typename T, typename V> T roundTo(V value) {
  if constexpr (std::is_same_v<T, Half>) {
    Half half;
    half.value = static_cast<_Float16>(value);
    return half;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16(static_cast<double>(value));
  } else {
    return static_cast<T>(value);
  }
}

/// An 8-bit float as a float; exact. Float8's own conversion reads a table, which a device would read slowly.
template <typename F> float decode(F value) {
  if constexpr (std::is_same_v<F, Float8E8M0>) {
    return float(value);
  } else {
    constexpr bool isE5M2 = std::is_same_v<F, Float8E5M2>;
    static_assert(isE5M2 || std::is_same_v<F, Float8E4M3FN>);
    constexpr int kMantissa = isE5M2 ? 2 : 3, kBias = isE5M2 ? 15 : 7;
    uint32_t magnitude = value.bits & 0x7f, sign = static_cast<uint32_t>(value.bits & 0x80) << 24;
    // Moving the exponent's bias is one exact product, subnormals included.
    constexpr float kMove = std::bit_cast<float>(static_cast<uint32_t>(127 + 127 - kBias) << 23);
    uint32_t bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << (23 - kMantissa)) * kMove);
    if (isE5M2 ? magnitude >= F::kInfinity : magnitude > F::kLargest)
      bits = isE5M2 && magnitude == F::kInfinity ? 0x7f800000 : 0x7fc00000;
    return std::bit_cast<float>(bits | sign);
  }
}

/// A scalar of any type that ONNX calls numeric, or bool.
inline double loadScalar(const void *at, DType type) {
  switch (type) {
  case DType::F64:
    return *static_cast<const double *>(at);
  case DType::F16:
    return load(*static_cast<const Half *>(at));
  case DType::BF16:
    return load(*static_cast<const BFloat16 *>(at));
  case DType::I64:
    return static_cast<double>(*static_cast<const int64_t *>(at));
  case DType::I32:
    return *static_cast<const int32_t *>(at);
  case DType::Bool:
  case DType::U8:
    return *static_cast<const uint8_t *>(at);
  default:
    return *static_cast<const float *>(at);
  }
}
/// `value` in the float type of an output.
inline void storeScalar(void *at, DType type, double value) {
  switch (type) {
  case DType::F64:
    *static_cast<double *>(at) = value;
    return;
  case DType::F16:
    *static_cast<Half *>(at) = roundTo<Half>(value);
    return;
  case DType::BF16:
    *static_cast<BFloat16 *>(at) = roundTo<BFloat16>(value);
    return;
  default:
    *static_cast<float *>(at) = roundTo<float>(value);
  }
}

/// Element `i` of int64 or int32 indices.
inline int64_t loadIndex(const void *indices, bool isWide, int64_t i) {
  return isWide ? static_cast<const int64_t *>(indices)[i] : static_cast<const int32_t *>(indices)[i];
}

RECAST_DEVICE_END
} // namespace recast::cuda
