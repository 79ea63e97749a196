// Element types of the runtime, and the conversions of the 16-bit ones.
#pragma once
#include "runtime/plan/Float8.h"
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

namespace recast {

/// Element types, numbered as TensorProto.DataType in onnx.proto.
enum class DType : uint8_t {
  Undefined = 0,
  F32 = 1,
  U8 = 2,
  I8 = 3,
  U16 = 4,
  I16 = 5,
  I32 = 6,
  I64 = 7,
  String = 8,
  Bool = 9,
  F16 = 10,
  F64 = 11,
  U32 = 12,
  U64 = 13,
  BF16 = 16,
  F8E4M3FN = 17,
  F8E4M3FNUZ = 18,
  F8E5M2 = 19,
  F8E5M2FNUZ = 20,
  F8E8M0 = 24,
};

/// Bytes of one element; 0 for Undefined and String.
constexpr size_t byteSize(DType type) {
  switch (type) {
  case DType::U8:
  case DType::I8:
  case DType::Bool:
  case DType::F8E4M3FN:
  case DType::F8E4M3FNUZ:
  case DType::F8E5M2:
  case DType::F8E5M2FNUZ:
  case DType::F8E8M0:
    return 1;
  case DType::U16:
  case DType::I16:
  case DType::F16:
  case DType::BF16:
    return 2;
  case DType::F32:
  case DType::I32:
  case DType::U32:
    return 4;
  case DType::F64:
  case DType::I64:
  case DType::U64:
    return 8;
  case DType::Undefined:
  case DType::String:
    return 0;
  }
  return 0;
}

/// The types that operators compute in. The 8-bit ones are not among them: they are stored and converted only.
constexpr bool isFloat(DType type) {
  return type == DType::F32 || type == DType::F64 || type == DType::F16 || type == DType::BF16;
}

constexpr bool isFloat8(DType type) {
  return type == DType::F8E4M3FN || type == DType::F8E4M3FNUZ || type == DType::F8E5M2 || type == DType::F8E5M2FNUZ ||
         type == DType::F8E8M0;
}

/// Signed or not, without bool.
constexpr bool isInteger(DType type) {
  return !isFloat(type) && !isFloat8(type) && type != DType::Bool && byteSize(type) != 0;
}

/// "f32", "i64", "bool", ...: the spelling of the tools' output.
constexpr std::string_view name(DType type) {
  switch (type) {
  case DType::F32:
    return "f32";
  case DType::F64:
    return "f64";
  case DType::F16:
    return "f16";
  case DType::BF16:
    return "bf16";
  case DType::U8:
    return "u8";
  case DType::I8:
    return "i8";
  case DType::U16:
    return "u16";
  case DType::I16:
    return "i16";
  case DType::I32:
    return "i32";
  case DType::I64:
    return "i64";
  case DType::U32:
    return "u32";
  case DType::U64:
    return "u64";
  case DType::Bool:
    return "bool";
  case DType::F8E4M3FN:
    return "f8e4m3fn";
  case DType::F8E4M3FNUZ:
    return "f8e4m3fnuz";
  case DType::F8E5M2:
    return "f8e5m2";
  case DType::F8E5M2FNUZ:
    return "f8e5m2fnuz";
  case DType::F8E8M0:
    return "f8e8m0";
  case DType::String:
    return "string";
  case DType::Undefined:
    return "undefined";
  }
  return "?";
}

/// IEEE 754 binary16. Converts to float implicitly, from double with one rounding (to nearest, ties to even).
struct Half {
  _Float16 value;
  Half() = default;
  Half(double x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};

/// bfloat16: the upper half of a float. Rounds to nearest, ties to even, with one rounding from double too.
struct BFloat16 {
  uint16_t bits;
  BFloat16() = default;
  BFloat16(double x) {
    float f = static_cast<float>(x);
    uint32_t u = std::bit_cast<uint32_t>(f);
    if (std::isnan(f)) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40);
      return;
    }
    // Round to odd first where the conversion to float was inexact, so that the second rounding cannot double-round.
    if (std::isfinite(f) && static_cast<double>(f) != x && !(u & 1)) {
      bool tooLarge = std::fabs(static_cast<double>(f)) > std::fabs(x);
      u = tooLarge ? u - 1 : u + 1;
    }
    bits = static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
  }
  operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};
static_assert(sizeof(Half) == 2 && sizeof(BFloat16) == 2);

template <typename T>
inline constexpr bool isFloatType =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;
/// The type that elements are computed in: float for the 16-bit types, else T.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>, float, T>;
/// The type of sums: double for floats; integers sum modulo 2^64, which truncates to the right value modulo 2^n.
template <typename T> using Accumulator = std::conditional_t<isFloatType<T>, double, uint64_t>;

/// Calls `body.template operator()<T>()` with T = float, double, Half or BFloat16.
/// Precondition: isFloat(type).
template <typename Body> decltype(auto) dispatchFloat(DType type, Body &&body) {
  switch (type) {
  case DType::F64:
    return body.template operator()<double>();
  case DType::F16:
    return body.template operator()<Half>();
  case DType::BF16:
    return body.template operator()<BFloat16>();
  default:
    return body.template operator()<float>();
  }
}

/// Calls `body.template operator()<T>()` with the struct of an 8-bit float. Precondition: isFloat8(type).
template <typename Body> decltype(auto) dispatchFloat8(DType type, Body &&body) {
  switch (type) {
  case DType::F8E4M3FNUZ:
    return body.template operator()<Float8E4M3FNUZ>();
  case DType::F8E5M2:
    return body.template operator()<Float8E5M2>();
  case DType::F8E5M2FNUZ:
    return body.template operator()<Float8E5M2FNUZ>();
  case DType::F8E8M0:
    return body.template operator()<Float8E8M0>();
  default:
    return body.template operator()<Float8E4M3FN>();
  }
}

/// As dispatchFloat, with the integers of 32 and 64 bits: the types that ONNX's products take.
template <typename Body> decltype(auto) dispatchProduct(DType type, Body &&body) {
  switch (type) {
  case DType::I32:
    return body.template operator()<int32_t>();
  case DType::I64:
    return body.template operator()<int64_t>();
  case DType::U32:
    return body.template operator()<uint32_t>();
  case DType::U64:
    return body.template operator()<uint64_t>();
  default:
    return dispatchFloat(type, body);
  }
}

/// The same over the types that ONNX calls numeric. Precondition: one of them, no 8-bit float.
template <typename Body> decltype(auto) dispatchNumeric(DType type, Body &&body) {
  switch (type) {
  case DType::U8:
    return body.template operator()<uint8_t>();
  case DType::I8:
    return body.template operator()<int8_t>();
  case DType::U16:
    return body.template operator()<uint16_t>();
  case DType::I16:
    return body.template operator()<int16_t>();
  default:
    return dispatchProduct(type, body);
  }
}

/// The same with bool. Precondition: not String, not Undefined, no 8-bit float.
template <typename Body> decltype(auto) dispatchAny(DType type, Body &&body) {
  if (type == DType::Bool)
    return body.template operator()<bool>();
  return dispatchNumeric(type, body);
}

} // namespace recast
