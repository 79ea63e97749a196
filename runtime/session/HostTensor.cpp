#include "runtime/session/HostTensor.h"
#include <cstring>
#include <utility>

namespace recast {

namespace {

template <typename T> T load(const std::byte *source, int64_t index) {
  T value;
  std::memcpy(&value, source + index * sizeof(T), sizeof(T));
  return value;
}

/// Float and double as they are, the 16-bit types as float: all of them exactly.
template <typename T> auto widen(T value) {
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return static_cast<float>(value);
}

/// As dispatchFloat, over the 8-bit floats too.
template <typename Body> void dispatchAnyFloat(DType type, Body &&body) {
  if (isFloat8(type))
    dispatchFloat8(type, body);
  else
    dispatchFloat(type, body);
}
constexpr bool isAnyFloat(DType type) { return isFloat(type) || isFloat8(type); }

/// As dispatchAny, over the integer types only. Precondition: isInteger(type).
template <typename Body> void dispatchInteger(DType type, Body &&body) {
  dispatchAny(type, [&]<typename T>() {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      body.template operator()<T>();
  });
}

} // namespace

std::optional<size_t> checkedBytes(std::span<const int64_t> dims, size_t elementBytes) {
  int64_t bytes = static_cast<int64_t>(elementBytes);
  bool overflow = false, empty = false;
  for (int64_t d : dims) {
    if (d < 0)
      return std::nullopt;
    empty |= d == 0;
    overflow |= d != 0 && __builtin_mul_overflow(bytes, d, &bytes);
  }
  if (overflow)
    return std::nullopt;
  return empty ? 0 : static_cast<size_t>(bytes);
}

bool convertible(DType from, DType to) {
  return (from == to && byteSize(from)) || (isAnyFloat(from) && isAnyFloat(to)) || (isInteger(from) && isInteger(to));
}

bool convert(DType from, const std::byte *source, DType to, void *target, int64_t count, std::string &bad) {
  if (from == DType::Bool) {
    // A byte other than 0 and 1 is no C++ bool.
    for (int64_t i = 0; i < count; ++i)
      static_cast<uint8_t *>(target)[i] = source[i] != std::byte(0);
    return true;
  }
  if (from == to) {
    if (count)
      std::memcpy(target, source, static_cast<size_t>(count) * byteSize(to));
    return true;
  }
  bool fits = true;
  if (isAnyFloat(from)) {
    dispatchAnyFloat(from, [&]<typename From>() {
      dispatchAnyFloat(to, [&]<typename To>() {
        for (int64_t i = 0; i < count; ++i)
          static_cast<To *>(target)[i] = static_cast<To>(widen(load<From>(source, i)));
      });
    });
    return true;
  }
  dispatchInteger(from, [&]<typename From>() {
    dispatchInteger(to, [&]<typename To>() {
      for (int64_t i = 0; i < count && fits; ++i) {
        From value = load<From>(source, i);
        fits = std::in_range<To>(value);
        if (!fits)
          bad = std::to_string(value);
        static_cast<To *>(target)[i] = static_cast<To>(value);
      }
    });
  });
  return fits;
}

std::string listTensors(const TensorMap &tensors) {
  constexpr size_t kMost = 20;
  std::string text;
  size_t shown = 0;
  for (const auto &[name, tensor] : tensors) {
    if (shown++ == kMost)
      return text + ", and " + std::to_string(tensors.size() - kMost) + " more";
    text += (text.empty() ? "'" : ", '") + name + "' (" + toString(tensor.type) + ")";
  }
  return text.empty() ? "no tensors" : text;
}

} // namespace recast
