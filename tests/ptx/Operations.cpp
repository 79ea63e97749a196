#include "tests/ptx/Operations.h"
#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>

namespace recast::ptx {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64, "it holds every integer and every double");

/// An f16 by its bits; what it computes with is a double, which holds sums and products of two exactly.
struct F16 {
  uint16_t bits = 0;
  F16() = default;
  /// Rounds to nearest, ties to even.
  explicit F16(long double value) {
    bits = std::signbit(value) ? 0x8000 : 0;
    long double size = std::fabs(value);
    if (std::isnan(value)) {
      bits = 0x7fff;
      return;
    }
    if (size >= 65520) { // Half way between the largest number and the power of two after it.
      bits |= 0x7c00;
      return;
    }
    int exponent = 0;
    std::frexp(size, &exponent); // size = [1/2, 1) * 2^exponent
    exponent = size == 0 ? -14 : std::max(exponent - 1, -14);
    // In units of the last place, 2^(exponent - 10): a number that carries grows the exponent by itself.
    auto units = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    bits |= static_cast<uint16_t>(units + (static_cast<uint32_t>(exponent + 14) << 10));
  }
  operator double() const {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31  ? (fraction ? std::numeric_limits<double>::quiet_NaN() : HUGE_VAL)
                  : exponent == 0 ? std::ldexp(fraction, -24)
                                  : std::ldexp(1024 + fraction, exponent - 25);
    return std::copysign(size, bits & 0x8000 ? -1.0 : 1.0);
  }
};

template <typename T>
concept Real = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, F16>;

template <typename T>
using Bits = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
template <typename T> T get(uint64_t bits) { return std::bit_cast<T>(static_cast<Bits<T>>(bits)); }
template <typename T> uint64_t put(T value) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<uint64_t>(value);
  else
    return std::bit_cast<Bits<T>>(value);
}
/// A result that is no number has the one pattern that GPUs give for it; f64 keeps that of the host.
template <Real T> uint64_t putResult(T value) {
  if constexpr (std::same_as<T, float>)
    if (value != value)
      return 0x7fffffff;
  return put(value);
}
/// What a type is computed in before one rounding.
template <Real T> using Wide = std::conditional_t<std::same_as<T, F16>, long double, T>;
template <Real T> Wide<T> wide(uint64_t bits) {
  if constexpr (std::same_as<T, F16>)
    return static_cast<double>(get<T>(bits));
  else
    return get<T>(bits);
}
template <Real T> bool isNan(uint64_t bits) { return std::isnan(wide<T>(bits)); }

using Table = std::unordered_map<std::string, Operation>;

// A lambda without captures becomes a function; `name` has no type yet.
#define RECAST_ADD(name, operands, expression)                                                                         \
  table[std::string(name) + "." + type] = {                                                                            \
      [](uint64_t a, uint64_t b, uint64_t c) -> uint64_t { return (void)a, (void)b, (void)c, (expression); },          \
      operands}

template <typename T> T divided(T a, T b) {
  if (b == 0)
    return static_cast<T>(~T(0)); // Unspecified; this is what GPUs give.
  if constexpr (std::is_signed_v<T>)
    if (b == -1)
      return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
  return static_cast<T>(a / b);
}
template <typename T> T remainderOf(T a, T b) {
  if (b == 0)
    return a;
  if constexpr (std::is_signed_v<T>)
    if (b == -1)
      return 0;
  return static_cast<T>(a % b);
}
template <typename T> uint64_t shiftedRight(uint64_t value, uint64_t by) {
  auto bits = static_cast<uint64_t>(sizeof(T) * 8);
  uint64_t clamped = std::min<uint64_t>(static_cast<uint32_t>(by), bits - 1);
  if (std::is_unsigned_v<T> && static_cast<uint32_t>(by) >= bits)
    return 0;
  return put<T>(static_cast<T>(get<T>(value) >> clamped));
}
/// The high half of a product.
template <typename T> uint64_t productHigh(uint64_t a, uint64_t b) {
  using W = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return put<T>(static_cast<T>(static_cast<W>(get<T>(a)) * static_cast<W>(get<T>(b)) >> (sizeof(T) * 8)));
}

template <typename T> void addComparisons(Table &table, const std::string &type) {
  RECAST_ADD("setp.eq", 2, get<T>(a) == get<T>(b));
  RECAST_ADD("setp.ne", 2, get<T>(a) != get<T>(b));
  RECAST_ADD("setp.lt", 2, get<T>(a) < get<T>(b));
  RECAST_ADD("setp.le", 2, get<T>(a) <= get<T>(b));
  RECAST_ADD("setp.gt", 2, get<T>(a) > get<T>(b));
  RECAST_ADD("setp.ge", 2, get<T>(a) >= get<T>(b));
}

template <typename T> void addInteger(Table &table, const std::string &type) {
  addComparisons<T>(table, type);
  RECAST_ADD("add", 2, put(get<T>(a + b)));
  RECAST_ADD("sub", 2, put(get<T>(a - b)));
  RECAST_ADD("mul.lo", 2, put(get<T>(a * b)));
  RECAST_ADD("mul.hi", 2, productHigh<T>(a, b));
  RECAST_ADD("mad.lo", 3, put(get<T>(a * b + c)));
  RECAST_ADD("div", 2, put(divided(get<T>(a), get<T>(b))));
  RECAST_ADD("rem", 2, put(remainderOf(get<T>(a), get<T>(b))));
  RECAST_ADD("min", 2, put(std::min(get<T>(a), get<T>(b))));
  RECAST_ADD("max", 2, put(std::max(get<T>(a), get<T>(b))));
  RECAST_ADD("shr", 2, shiftedRight<T>(a, b));
  RECAST_ADD("mov", 1, put(get<T>(a)));
  if constexpr (sizeof(T) < 8) {
    // Both are extended to 64 bits by their signs: the low bits of that product are the wide product.
    RECAST_ADD("mul.wide", 2, put(get<T>(a)) * put(get<T>(b)));
    RECAST_ADD("mad.wide", 3, put(get<T>(a)) * put(get<T>(b)) + c);
  }
  if constexpr (std::is_signed_v<T>) {
    RECAST_ADD("neg", 1, put(get<T>(0 - a)));
    RECAST_ADD("abs", 1, put(get<T>(a) < 0 ? get<T>(0 - a) : get<T>(a)));
  } else if constexpr (sizeof(T) >= 4) {
    // Position and length are the low 8 bits of b and c.
    RECAST_ADD("bfe", 3,
               (b & 255) >= sizeof(T) * 8 || (c & 255) == 0
                   ? 0
                   : put(get<T>(a)) >> (b & 255) & (~uint64_t(0) >> (64 - std::min<uint64_t>(c & 255, 64))));
  }
}

template <typename T> void addBits(Table &table, const std::string &type) {
  RECAST_ADD("and", 2, put(get<T>(a & b)));
  RECAST_ADD("or", 2, put(get<T>(a | b)));
  RECAST_ADD("xor", 2, put(get<T>(a ^ b)));
  RECAST_ADD("not", 1, put(get<T>(~a)));
  RECAST_ADD("mov", 1, put(get<T>(a)));
  RECAST_ADD("selp", 3, put(get<T>(c ? a : b)));
  RECAST_ADD("setp.eq", 2, get<T>(a) == get<T>(b));
  RECAST_ADD("setp.ne", 2, get<T>(a) != get<T>(b));
  RECAST_ADD("shl", 2, static_cast<uint32_t>(b) >= sizeof(T) * 8 ? 0 : put(get<T>(a << static_cast<uint32_t>(b))));
  RECAST_ADD("shr", 2, shiftedRight<T>(a, b));
}

template <Real T> void addReal(Table &table, const std::string &type) {
  constexpr auto kNanBits =
      static_cast<Bits<T>>(std::same_as<T, double> ? 0x7ff8000000000000 : ~uint64_t(0) >> 1 >> (64 - sizeof(T) * 8));
  constexpr uint64_t kSign = uint64_t(1) << (sizeof(T) * 8 - 1);
  addComparisons<T>(table, type); // False with a NaN, but for ne: there the ordered one is another.
  RECAST_ADD("setp.ne", 2, !isNan<T>(a) && !isNan<T>(b) && get<T>(a) != get<T>(b));
  RECAST_ADD("setp.equ", 2, isNan<T>(a) || isNan<T>(b) || get<T>(a) == get<T>(b));
  RECAST_ADD("setp.neu", 2, isNan<T>(a) || isNan<T>(b) || get<T>(a) != get<T>(b));
  RECAST_ADD("setp.ltu", 2, !(get<T>(a) >= get<T>(b)));
  RECAST_ADD("setp.leu", 2, !(get<T>(a) > get<T>(b)));
  RECAST_ADD("setp.gtu", 2, !(get<T>(a) <= get<T>(b)));
  RECAST_ADD("setp.geu", 2, !(get<T>(a) < get<T>(b)));
  RECAST_ADD("setp.num", 2, !isNan<T>(a) && !isNan<T>(b));
  RECAST_ADD("setp.nan", 2, isNan<T>(a) || isNan<T>(b));
  RECAST_ADD("add.rn", 2, putResult(T(wide<T>(a) + wide<T>(b))));
  RECAST_ADD("sub.rn", 2, putResult(T(wide<T>(a) - wide<T>(b))));
  RECAST_ADD("mul.rn", 2, putResult(T(wide<T>(a) * wide<T>(b))));
  RECAST_ADD("neg", 1, put(get<T>(a ^ kSign)));
  RECAST_ADD("abs", 1, put(get<T>(a & (kSign - 1))));
  RECAST_ADD("mov", 1, put(get<T>(a)));
  RECAST_ADD("selp", 3, put(get<T>(c ? a : b)));
  // The other where one is no number; -0 is less than 0.
  RECAST_ADD("min", 2,
             isNan<T>(a) && isNan<T>(b) ? kNanBits
             : isNan<T>(b)              ? put(get<T>(a))
             : isNan<T>(a)              ? put(get<T>(b))
             : get<T>(a) == get<T>(b)   ? put(get<T>(a | b))
                                        : put(get<T>(get<T>(a) < get<T>(b) ? a : b)));
  RECAST_ADD("max", 2,
             isNan<T>(a) && isNan<T>(b) ? kNanBits
             : isNan<T>(b)              ? put(get<T>(a))
             : isNan<T>(a)              ? put(get<T>(b))
             : get<T>(a) == get<T>(b)   ? put(get<T>(a & b))
                                        : put(get<T>(get<T>(a) > get<T>(b) ? a : b)));
  if constexpr (!std::same_as<T, F16>) {
    RECAST_ADD("div.rn", 2, putResult(get<T>(a) / get<T>(b)));
    RECAST_ADD("rcp.rn", 1, putResult(T(1) / get<T>(a)));
    RECAST_ADD("sqrt.rn", 1, putResult(std::sqrt(get<T>(a))));
    RECAST_ADD("fma.rn", 3, putResult(std::fma(get<T>(a), get<T>(b), get<T>(c))));
    RECAST_ADD("copysign", 2, put(get<T>((a & kSign) | (b & (kSign - 1))))); // The sign is that of the first.
  }
}

/// Rounded to an integral number: cvt's .rni, .rzi, .rmi and .rpi.
template <char Mode, typename F> F integral(F value) {
  return Mode == 'n'   ? std::nearbyint(value)
         : Mode == 'z' ? std::trunc(value)
         : Mode == 'm' ? std::floor(value)
                       : std::ceil(value);
}
/// Clamped; what is no number gives 0, or 2^(bits - 1) from or to 64 bits (PTX ISA, cvt).
template <typename To, Real From, char Mode> uint64_t toInteger(uint64_t bits) {
  long double value = integral<Mode>(static_cast<long double>(wide<From>(bits)));
  if (std::isnan(value))
    return std::same_as<From, double> || sizeof(To) == 8 ? put(get<To>(uint64_t(1) << (sizeof(To) * 8 - 1))) : 0;
  long double low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
  return put(static_cast<To>(std::clamp(value, low, high)));
}

template <typename T> struct Named {
  using Type = T;
  const char *name;
};
template <typename Visit> void eachInteger(Visit visit) {
  visit(Named<uint8_t>{"u8"}), visit(Named<int8_t>{"s8"}), visit(Named<uint16_t>{"u16"});
  visit(Named<int16_t>{"s16"}), visit(Named<uint32_t>{"u32"}), visit(Named<int32_t>{"s32"});
  visit(Named<uint64_t>{"u64"}), visit(Named<int64_t>{"s64"});
}
template <typename Visit> void eachReal(Visit visit) {
  visit(Named<F16>{"f16"}), visit(Named<float>{"f32"}), visit(Named<double>{"f64"});
}

template <typename To, typename From> void addIntegers(Table &table, const std::string &type) {
  RECAST_ADD("cvt", 1, put(static_cast<To>(get<From>(a))));
}
template <Real To, typename From> void addFromInteger(Table &table, const std::string &type) {
  RECAST_ADD("cvt.rn", 1, putResult(To(static_cast<Wide<To>>(get<From>(a)))));
}
template <typename To, Real From> void addToInteger(Table &table, const std::string &type) {
  RECAST_ADD("cvt.rni", 1, (toInteger<To, From, 'n'>(a)));
  RECAST_ADD("cvt.rzi", 1, (toInteger<To, From, 'z'>(a)));
  RECAST_ADD("cvt.rmi", 1, (toInteger<To, From, 'm'>(a)));
  RECAST_ADD("cvt.rpi", 1, (toInteger<To, From, 'p'>(a)));
}
template <Real To, Real From> void addReals(Table &table, const std::string &type) {
  if constexpr (sizeof(To) > sizeof(From)) {
    RECAST_ADD("cvt", 1, putResult(static_cast<To>(static_cast<double>(get<From>(a)))));
  } else if constexpr (sizeof(To) < sizeof(From)) {
    RECAST_ADD("cvt.rn", 1, putResult(To(get<From>(a))));
  } else {
    RECAST_ADD("cvt.rni", 1, putResult(To(integral<'n'>(wide<To>(a)))));
    RECAST_ADD("cvt.rzi", 1, putResult(To(integral<'z'>(wide<To>(a)))));
    RECAST_ADD("cvt.rmi", 1, putResult(To(integral<'m'>(wide<To>(a)))));
    RECAST_ADD("cvt.rpi", 1, putResult(To(integral<'p'>(wide<To>(a)))));
  }
}

/// Bytes of b:a as the four nibbles of c select them; a nibble's high bit spreads the byte's sign.
uint64_t permuted(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t bytes = (a & 0xffffffff) | b << 32, result = 0;
  for (int i = 0; i < 4; ++i) {
    uint64_t selector = c >> (4 * i) & 15, byte = bytes >> (8 * (selector & 7)) & 255;
    if (selector & 8)
      byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}

void addPredicates(Table &table) {
  std::string type = "pred";
  RECAST_ADD("and", 2, a & b);
  RECAST_ADD("or", 2, a | b);
  RECAST_ADD("xor", 2, a ^ b);
  RECAST_ADD("not", 1, a ^ 1);
  RECAST_ADD("mov", 1, a);
}

Table makeTable() {
  Table table;
  addPredicates(table);
  addBits<uint16_t>(table, "b16"), addBits<uint32_t>(table, "b32"), addBits<uint64_t>(table, "b64");
  eachInteger([&]<typename To>(Named<To> to) {
    if constexpr (sizeof(To) > 1)
      addInteger<To>(table, to.name);
    eachInteger(
        [&]<typename From>(Named<From> from) { addIntegers<To, From>(table, std::string(to.name) + "." + from.name); });
    eachReal([&]<typename From>(Named<From> from) {
      addToInteger<To, From>(table, std::string(to.name) + "." + from.name);
    });
  });
  eachReal([&]<typename To>(Named<To> to) {
    addReal<To>(table, to.name);
    eachInteger([&]<typename From>(Named<From> from) {
      addFromInteger<To, From>(table, std::string(to.name) + "." + from.name);
    });
    eachReal(
        [&]<typename From>(Named<From> from) { addReals<To, From>(table, std::string(to.name) + "." + from.name); });
  });
  table["prmt.b32"] = {permuted, 3};
  // Addresses of global memory are generic ones, too.
  for (const char *name : {"cvta.global.u64", "cvta.to.global.u64"})
    table[name] = table["mov.b64"];
  return table;
}

} // namespace

Operation findOperation(const std::string &opcode) {
  static const Table table = makeTable();
  auto found = table.find(opcode);
  return found == table.end() ? Operation{} : found->second;
}

} // namespace recast::ptx
