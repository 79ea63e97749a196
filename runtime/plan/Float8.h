// The 8-bit floating-point types, and their conversions.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace recast {

/// `x` as a float, such that a later rounding to at most 22 mantissa bits equals the rounding of `x` itself: inexact
/// results have an odd last bit.
inline float roundToOdd(double x) {
  float f = static_cast<float>(x);
  uint32_t u = std::bit_cast<uint32_t>(f);
  if (!std::isfinite(f) || static_cast<double>(f) == x || (u & 1))
    return f;
  bool tooLarge = std::fabs(static_cast<double>(f)) > std::fabs(x);
  // A nonzero x that became zero is the smallest subnormal of its sign.
  return std::bit_cast<float>(tooLarge ? u - 1 : u + 1);
}

namespace detail {

/// 2^exponent, exactly.
constexpr float powerOfTwo(int exponent) {
  float value = 1;
  for (; exponent > 0; --exponent)
    value *= 2;
  for (; exponent < 0; ++exponent)
    value /= 2;
  return value;
}

} // namespace detail

/// How the encodings beyond the finite numbers are used.
enum class Float8Specials {
  Ieee, ///< An exponent of ones: infinity, or NaN.
  Fn,   ///< The one pattern of ones is NaN; there is no infinity.
  Fnuz, ///< Negative zero is NaN; there is neither an infinity nor a negative zero.
};

/// A sign, `E` exponent bits with a bias, `M` mantissa bits (Micikevicius et al. 2022, arXiv:2209.05433; FNUZ: Noune et
/// al. 2022, arXiv:2206.02915). Converts to float exactly; from float and double with one rounding to nearest, ties to
/// even.
template <int E, int M, int Bias, Float8Specials Specials> struct Float8 {
  uint8_t bits;

  static constexpr uint8_t kNaN = Specials == Float8Specials::Fnuz ? 0x80 : 0x7f;
  static constexpr uint8_t kInfinity = ((1 << E) - 1) << M; ///< Of Ieee only.
  static constexpr uint8_t kLargest = Specials == Float8Specials::Ieee ? kInfinity - 1
                                      : Specials == Float8Specials::Fn ? 0x7e
                                                                       : 0x7f;

  Float8() = default;
  Float8(double x) : Float8(round(roundToOdd(x), /*saturate=*/true)) {}
  operator float() const { return kTable[bits]; }

  /// ONNX's Cast: with `saturate`, what is beyond the largest number (infinity too) becomes the largest number, else
  /// infinity, or NaN in types without one. NaN stays NaN.
  static Float8 round(float x, bool saturate) {
    uint32_t u = std::bit_cast<uint32_t>(x), sign = u >> 24 & 0x80, magnitude = u & 0x7fffffff;
    constexpr int kDropped = 23 - M;
    constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(1 - Bias + 127) << 23;
    // Above the smallest normal number the exponent is moved; below it, adding a number whose last bit is the type's
    // smallest step rounds there.
    uint32_t normal = (magnitude + ((1u << (kDropped - 1)) - 1) + (magnitude >> kDropped & 1)) >> kDropped;
    normal -= static_cast<uint32_t>(127 - Bias) << M;
    constexpr float kStep = detail::powerOfTwo(23 + 1 - Bias - M);
    uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kStep) - std::bit_cast<uint32_t>(kStep);
    uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
    constexpr uint32_t kBeyond = Specials == Float8Specials::Ieee ? kInfinity : kNaN;
    bool isNaN = magnitude > 0x7f800000;
    code = code > kLargest ? (saturate ? uint32_t(kLargest) : kBeyond) : code;
    code = isNaN ? uint32_t(kNaN) : code;
    if constexpr (Specials == Float8Specials::Fnuz)
      sign = code == 0 || code == kNaN ? 0 : sign;
    return fromBits(static_cast<uint8_t>(code | sign));
  }
  static Float8 fromBits(uint8_t bits) {
    Float8 value;
    value.bits = bits;
    return value;
  }
  static float largest() { return kTable[kLargest]; }

private:
  static constexpr float decode(int code) {
    int exponent = code >> M & ((1 << E) - 1), mantissa = code & ((1 << M) - 1), magnitude = code & 0x7f;
    float sign = code & 0x80 ? -1.0f : 1.0f;
    if constexpr (Specials == Float8Specials::Fnuz) {
      if (code == kNaN)
        return std::numeric_limits<float>::quiet_NaN();
    } else {
      if (magnitude > kLargest)
        return Specials == Float8Specials::Ieee && magnitude == kInfinity
                   ? sign * std::numeric_limits<float>::infinity()
                   : std::numeric_limits<float>::quiet_NaN();
    }
    float fraction = static_cast<float>(mantissa + (exponent ? 1 << M : 0));
    return sign * fraction * detail::powerOfTwo((exponent ? exponent : 1) - Bias - M);
  }
  static constexpr std::array<float, 256> makeTable() {
    std::array<float, 256> table{};
    for (int code = 0; code < 256; ++code)
      table[static_cast<size_t>(code)] = decode(code);
    return table;
  }
  static const std::array<float, 256> kTable;
};

template <int E, int M, int Bias, Float8Specials Specials>
inline constexpr std::array<float, 256> Float8<E, M, Bias, Specials>::kTable = makeTable();

using Float8E4M3FN = Float8<4, 3, 7, Float8Specials::Fn>;
using Float8E4M3FNUZ = Float8<4, 3, 8, Float8Specials::Fnuz>;
using Float8E5M2 = Float8<5, 2, 15, Float8Specials::Ieee>;
using Float8E5M2FNUZ = Float8<5, 2, 16, Float8Specials::Fnuz>;

/// ONNX's `round_mode`. Ties of Nearest go up.
enum class Float8Rounding { Up, Down, Nearest };

/// An unsigned power of two, 2^(bits - 127); 255 is NaN (OCP Microscaling Formats v1.0, 5.4.1).
struct Float8E8M0 {
  uint8_t bits;

  Float8E8M0() = default;
  Float8E8M0(double x) : Float8E8M0(round(x, /*saturate=*/true, Float8Rounding::Up)) {}
  operator float() const {
    if (bits == 255)
      return std::numeric_limits<float>::quiet_NaN();
    return std::bit_cast<float>(bits ? static_cast<uint32_t>(bits) << 23 : 0x00400000u);
  }

  /// ONNX's Cast: what is outside of [2^-127, 2^127] becomes the nearest bound with `saturate`, else NaN; so do
  /// negative numbers, which ONNX leaves open.
  static Float8E8M0 round(double x, bool saturate, Float8Rounding mode) {
    constexpr int kBias = 127, kNaN = 255;
    if (std::isnan(x))
      return fromBits(kNaN);
    int code = x > 0 ? kNaN + 1 : -1;
    if (x > 0 && std::isfinite(x)) {
      int exponent;
      double mantissa = 2 * std::frexp(x, &exponent); // in [1, 2)
      bool up = mode == Float8Rounding::Up ? mantissa > 1 : mode == Float8Rounding::Nearest && mantissa >= 1.5;
      code = exponent - 1 + kBias + up;
    }
    if (code < 0 || code >= kNaN)
      return fromBits(static_cast<uint8_t>(!saturate ? kNaN : code < 0 ? 0 : kNaN - 1));
    return fromBits(static_cast<uint8_t>(code));
  }
  static Float8E8M0 fromBits(uint8_t bits) {
    Float8E8M0 value;
    value.bits = bits;
    return value;
  }
};
static_assert(sizeof(Float8E4M3FN) == 1 && sizeof(Float8E8M0) == 1);

} // namespace recast
