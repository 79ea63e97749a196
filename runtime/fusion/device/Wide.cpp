// Functions of f64 that scalars of a region need on a GPU, which has no instruction for them: a few times a launch, as
// powers of the optimizer's betas. clang compiles this file for the device (GpuCode.cpp links it) and for the host.
#include <stdint.h>

namespace {

double fromBits(uint64_t bits) { return __builtin_bit_cast(double, bits); }
uint64_t toBits(double x) { return __builtin_bit_cast(uint64_t, x); }
const double kInfinity = __builtin_huge_val(), kNaN = __builtin_nan("");

/// 2^n for the exponents of normal numbers.
double powerOfTwo(int n) { return fromBits(static_cast<uint64_t>(n + 1023) << 52); }

/// e^(x + low) within 2 ulp, for |low| far below |x|: x = n ln 2 + r, and Taylor's series of e^r, |r| <= ln 2 / 2,
/// whose rest is below 2^-56.
double exponential(double x, double low) {
  if (x != x)
    return x;
  if (x > 709.79)
    return kInfinity;
  if (x < -745.2)
    return 0;
  double n = __builtin_rint(x * 1.4426950408889634);
  double r =
      ((x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33) + low; // ln 2 in two parts, the first product exact.
  double y = 0;
  for (int k = 15; k > 0; --k)
    y = (y + 1) * r / k;
  y += 1;
  int exponent = static_cast<int>(n), half = exponent / 2; // In two steps: 2^1024 and subnormals.
  return y * powerOfTwo(half) * powerOfTwo(exponent - half);
}

/// ln x = high + low, to about 2^-60 of it; x is finite and positive.
double logarithm(double x, double &low) {
  int exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    exponent = -54;
  }
  uint64_t bits = toBits(x);
  exponent += static_cast<int>(bits >> 52) - 1023;
  double m = fromBits((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
  if (m > 1.4142135623730951) {
    m /= 2;
    ++exponent;
  }
  // ln m = 2 (s + s^3 / 3 + ...), s = (m - 1) / (m + 1): |s| < 0.172, 12 terms leave 2^-63.
  double up = m - 1, down = m + 1, s = up / down, rest = __builtin_fma(-s, down, up) / down, square = s * s, series = 0;
  for (int k = 25; k > 1; k -= 2)
    series = (series + 1.0 / k) * square;
  double head = exponent * 0x1.62e42feep-1, main = 2 * s, high = head + main;
  low = (head - high) + main + 2 * rest + main * series + exponent * 0x1.a39ef35793c76p-33;
  return high;
}

} // namespace

extern "C" {

double recast_gpu_wide_exp(double x) { return exponential(x, 0); }

double recast_gpu_wide_log(double x) {
  if (x == 0)
    return -kInfinity;
  if (!(x > 0) || x == kInfinity)
    return x > 0 ? x : kNaN;
  double low, high = logarithm(x, low);
  return high + low;
}

/// Of C: exact where y is 0, 1 or 2, within a few ulp where |y ln x| is some hundreds.
double recast_gpu_wide_pow(double x, double y) {
  if (y == 0 || x == 1)
    return 1;
  if (x != x || y != y)
    return kNaN;
  if (y == 1)
    return x;
  if (y == 2)
    return x * x;
  double size = x < 0 ? -x : x, bound = y < 0 ? -y : y;
  bool isWhole = bound >= 0x1p52 || __builtin_rint(y) == y;
  bool isOdd = isWhole && bound < 0x1p53 && (static_cast<int64_t>(bound) & 1);
  if (x < 0 && !isWhole && size != kInfinity && bound != kInfinity)
    return kNaN;
  double result;
  if (bound == kInfinity)
    return size == 1 ? 1 : (size > 1) == (y > 0) ? kInfinity : 0;
  if (size == 0 || size == kInfinity) {
    result = (size == 0) == (y < 0) ? kInfinity : 0;
  } else {
    double low, high = logarithm(size, low), product = high * y;
    result = exponential(product, __builtin_fma(high, y, -product) + low * y);
  }
  return isOdd && (x < 0 || (x == 0 && (toBits(x) >> 63))) ? -result : result;
}

} // extern "C"
