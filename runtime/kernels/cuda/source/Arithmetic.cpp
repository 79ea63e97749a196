#include "runtime/kernels/cuda/source/Arithmetic.h"
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

/// Calls visit(i, place in a, place in b) for each element of the thread.
template <typename Visit> void forEachPair(const ArithmeticArgs &a, Visit visit) {
  for (int64_t i = gridThread(); i < a.count; i += gridThreads())
    visit(i, offsetOf(i, a.rank, a.sizes, a.aStrides), offsetOf(i, a.rank, a.sizes, a.bStrides));
}

template <typename T> T wrapped(uint64_t x) { return static_cast<T>(x); }

/// Precondition: y is not 0. The quotient that does not fit (lowest / -1) wraps.
template <typename T> T quotient(T x, T y) {
  if constexpr (std::is_signed_v<T>)
    if (y == -1)
      return wrapped<T>(0 - static_cast<uint64_t>(x));
  return static_cast<T>(x / y);
}

template <typename T> void divide(const ArithmeticArgs &a) {
  forEachPair(a, [&](int64_t i, int64_t p, int64_t q) {
    T divisor = static_cast<const T *>(a.b)[q];
    if (divisor == 0)
      report(a.fault, i);
    static_cast<T *>(a.y)[i] = divisor == 0 ? T(0) : quotient(static_cast<const T *>(a.a)[p], divisor);
  });
}

/// A number as digits · 2^exponent.
struct Binary {
  uint64_t digits;
  int exponent;
};
Binary binaryOf(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits >> 23 & 0xff, digits = bits & 0x7fffff;
  return {exponent ? digits | 0x800000 : digits, static_cast<int>(exponent ? exponent : 1) - 150};
}

/// C's fmod: exact, with the sign of x.
float truncatedRemainder(float x, float y) {
  float size = absolute(x), bound = absolute(y);
  if (!isFinite(x) || !(bound > 0))
    return std::numeric_limits<float>::quiet_NaN();
  if (size < bound)
    return x;
  Binary rest = binaryOf(size), unit = binaryOf(bound);
  uint64_t digits = rest.digits % unit.digits;
  // The rest has 24 bits: it has room for 40 more.
  for (int left = rest.exponent - unit.exponent; left > 0; left -= 40)
    digits = (digits << (left < 40 ? left : 40)) % unit.digits;
  return __builtin_copysignf(static_cast<float>(digits) * powerOfTwoFloat(unit.exponent), x);
}
template <typename T> T truncatedRemainder(T x, T y) {
  if constexpr (std::is_signed_v<T>)
    if (y == -1)
      return 0;
  return static_cast<T>(x % y);
}

template <typename C> C remainderOf(C x, C y, bool truncates) {
  C rest = truncatedRemainder(x, y);
  if (truncates)
    return rest;
  if (rest != 0)
    return (rest < 0) != (y < 0) ? static_cast<C>(rest + y) : rest;
  if constexpr (std::is_floating_point_v<C>)
    return __builtin_copysignf(rest, y);
  return rest;
}

template <typename T> void remainder(const ArithmeticArgs &a) {
  forEachPair(a, [&](int64_t i, int64_t p, int64_t q) {
    auto x = load(static_cast<const T *>(a.a)[p]), y = load(static_cast<const T *>(a.b)[q]);
    T &result = static_cast<T *>(a.y)[i];
    if constexpr (!isFloatType<T>)
      if (y == 0) {
        report(a.fault, i);
        result = 0;
        return;
      }
    result = roundTo<T>(remainderOf(x, y, a.truncates));
  });
}

/// Modulo 2^n. A negative exponent rounds the fraction towards zero.
template <typename T> T wholePower(T base, int64_t exponent) {
  if (exponent < 0) {
    bool isMinusOne = std::is_signed_v<T> && static_cast<int64_t>(base) == -1;
    return base == 1 ? T(1) : isMinusOne ? (exponent % 2 ? base : T(1)) : T(0);
  }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (; exponent; exponent >>= 1, factor *= factor)
    result *= exponent & 1 ? factor : 1;
  return wrapped<T>(result);
}

/// In double. What is a whole number but for the error of power() is one, so that the result is not one less.
double realPower(double base, double exponent) {
  double size = absolute(exponent);
  if (__builtin_rint(exponent) == exponent && size < 0x1p31) {
    double result = 1, factor = base;
    for (auto left = static_cast<uint32_t>(size); left; left >>= 1, factor *= factor)
      result *= left & 1 ? factor : 1;
    return exponent < 0 ? 1 / result : result;
  }
  double result = base < 0 ? std::numeric_limits<double>::quiet_NaN() : power(base, exponent);
  double whole = __builtin_rint(result);
  return absolute(result - whole) <= 0x1p-40 * whole ? whole : result;
}

/// Towards zero; beyond the range its nearest bound, NaN to 0.
template <typename T> T toInteger(double value) {
  if (value != value)
    return 0;
  constexpr T low = std::numeric_limits<T>::lowest(), high = std::numeric_limits<T>::max();
  return value <= static_cast<double>(low) ? low : value >= static_cast<double>(high) ? high : static_cast<T>(value);
}

template <typename T> void powers(const ArithmeticArgs &a) {
  auto type = static_cast<DType>(a.exponentType);
  forEachPair(a, [&](int64_t i, int64_t p, int64_t q) {
    T base = static_cast<const T *>(a.a)[p];
    const char *at = static_cast<const char *>(a.b) + q * static_cast<int64_t>(byteSize(type));
    T &result = static_cast<T *>(a.y)[i];
    if (type == DType::I64 || type == DType::I32)
      result = wholePower(base, loadIndex(at, type == DType::I64, 0));
    else
      result = toInteger<T>(realPower(static_cast<double>(base), loadScalar(at, type)));
  });
}

} // namespace
RECAST_DEVICE_END

// clang-format off
#define RECAST_KERNEL_BY_INTEGER(Name, Function)                                                                       \
  RECAST_KERNEL(Name##_i8, kThreads, ArithmeticArgs, Function<int8_t>)                                                 \
  RECAST_KERNEL(Name##_i16, kThreads, ArithmeticArgs, Function<int16_t>)                                               \
  RECAST_KERNEL(Name##_i32, kThreads, ArithmeticArgs, Function<int32_t>)                                               \
  RECAST_KERNEL(Name##_i64, kThreads, ArithmeticArgs, Function<int64_t>)                                               \
  RECAST_KERNEL(Name##_u8, kThreads, ArithmeticArgs, Function<uint8_t>)                                                \
  RECAST_KERNEL(Name##_u16, kThreads, ArithmeticArgs, Function<uint16_t>)                                              \
  RECAST_KERNEL(Name##_u32, kThreads, ArithmeticArgs, Function<uint32_t>)                                              \
  RECAST_KERNEL(Name##_u64, kThreads, ArithmeticArgs, Function<uint64_t>)

RECAST_KERNELS(arithmeticKernels,
  RECAST_KERNEL_BY_INTEGER(divide, divide)
  RECAST_KERNEL_BY_INTEGER(remainder, remainder)
  RECAST_KERNEL_BY_FLOAT(remainder, kThreads, ArithmeticArgs, remainder)
  RECAST_KERNEL(power_i32, kThreads, ArithmeticArgs, powers<int32_t>)
  RECAST_KERNEL(power_i64, kThreads, ArithmeticArgs, powers<int64_t>))
// clang-format on

} // namespace recast::cuda
