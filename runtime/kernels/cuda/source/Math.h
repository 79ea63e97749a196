// Functions that kernels need of a maths library, which a build without CUDA's toolkit does not have. The same code
// runs in the emulation.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN

inline double squareRoot(double x) { return __builtin_elementwise_sqrt(x); }
template <typename F> F absolute(F x) { return x < 0 ? -x : x; }
template <typename F> bool isFinite(F x) { return absolute(x) <= std::numeric_limits<F>::max(); }

/// 2^exponent for exponents of normal numbers.
inline double powerOfTwo(int exponent) { return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52); }
inline float powerOfTwoFloat(int exponent) {
  // Subnormals are exact, too: half of the smallest normal number, and so on.
  return exponent >= -126 ? std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23)
                          : std::bit_cast<float>(exponent >= -149 ? 1u << (exponent + 149) : 0u);
}

/// floor(log2(x)) for finite x > 0.
inline int floorLog2(double x) {
  uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  return exponent > -1023 ? exponent : floorLog2(x * 0x1p54) - 54;
}

/// e^x within 2 ulp (4 in double): x = n ln 2 + r, |r| <= ln 2 / 2, and Taylor's series of e^r, whose rest is below
/// 2^-27 (float, 8 terms) or 2^-55 (double, 14 terms).
inline float exponential(float x) {
  if (x != x)
    return x;
  if (x > 88.72284f)
    return std::numeric_limits<float>::infinity();
  if (x < -104.0f)
    return 0;
  float n = __builtin_rintf(x * 1.44269504f);
  float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f; // ln 2 in two parts; the product with the first is exact.
  float y = 1.0f / 5040;
  y = y * r + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  int exponent = static_cast<int>(n);
  // In two steps, so that results may be subnormal and 2^128 need not exist.
  int half = exponent / 2;
  return y * powerOfTwoFloat(half) * powerOfTwoFloat(exponent - half);
}
inline double exponential(double x) {
  if (x != x)
    return x;
  if (x > 709.782712893384)
    return std::numeric_limits<double>::infinity();
  if (x < -746.0)
    return 0;
  double n = __builtin_rint(x * 1.4426950408889634);
  double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double y = 1, factor = 1;
  double term = 1;
  for (int k = 1; k < 14; ++k) {
    factor = static_cast<double>(k);
    term *= r / factor;
    y += term;
  }
  int exponent = static_cast<int>(n), half = exponent / 2;
  return y * powerOfTwo(half) * powerOfTwo(exponent - half);
}

/// ln x within 2 ulp: x = m 2^e with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)) by its series.
inline double logarithm(double x) {
  if (!(x > 0))
    return x == 0 ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (!isFinite(x))
    return x;
  int exponent = floorLog2(x);
  int half = exponent / 2;
  double m = x * powerOfTwo(-half) * powerOfTwo(half - exponent);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  double s = (m - 1) / (m + 1), square = s * s, power = s, sum = s;
  for (int k = 3; k < 23; k += 2) {
    power *= square;
    sum += power / static_cast<double>(k);
  }
  return 2 * sum + static_cast<double>(exponent) * 0x1.62e42feep-1 +
         static_cast<double>(exponent) * 0x1.a39ef35793c76p-33;
}

/// x^p for x >= 0.
inline double power(double x, double p) {
  if (x == 0 || x != x || !isFinite(x))
    return p > 0 ? x : p == 0 ? 1 : 1 / x;
  return exponential(p * logarithm(x));
}

RECAST_DEVICE_END
} // namespace recast::cuda
