// Maps over one, two or three broadcast operands, and the refusals that go with them. The functions that are mapped see
// Compute<T>: float for the 16-bit types.
#pragma once
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"

namespace recast::reference {

// The tables that elementwiseEntries() concatenates.
std::span<const Entry> elementwiseUnaryEntries();
std::span<const Entry> elementwiseBinaryEntries();
std::span<const Entry> elementwiseVariadicEntries();
std::span<const Entry> elementwiseSelectEntries();

/// Calls `body.template operator()<T>()` with the unsigned integer of the type's size: for moving bits.
template <typename Body> decltype(auto) dispatchSize(DType type, Body &&body) {
  switch (byteSize(type)) {
  case 1:
    return body.template operator()<uint8_t>();
  case 2:
    return body.template operator()<uint16_t>();
  case 4:
    return body.template operator()<uint32_t>();
  default:
    return body.template operator()<uint64_t>();
  }
}

/// "f32 and i64 differ", "bool is not supported", ... or "": all present inputs have one type, which `allows` takes.
template <bool (*allows)(DType)> std::string refuseInputs(const StepSpec &spec) {
  DType first = DType::Undefined;
  for (const TensorType &type : spec.inputs) {
    if (!type.present())
      continue;
    if (!allows(type.dtype))
      return std::string(name(type.dtype)) + " is not supported";
    if (first != DType::Undefined && type.dtype != first)
      return std::string(name(first)) + " and " + std::string(name(type.dtype)) + " differ";
    first = type.dtype;
  }
  return "";
}

inline bool allowsFloat(DType type) { return isFloat(type); }
inline bool allowsInteger(DType type) { return isInteger(type); }
inline bool allowsBool(DType type) { return type == DType::Bool; }
inline bool allowsNumeric(DType type) { return isFloat(type) || isInteger(type); }
inline bool allowsAny(DType type) { return byteSize(type) != 0; }

/// y[i] = f(x[i]), both dense.
template <typename X, typename Y, typename F> void mapUnary(const TensorRef &x, const TensorRef &y, F f) {
  const X *in = x.as<X>();
  Y *out = y.as<Y>();
  parallelFor(y.elems(), kGrain, [=](int64_t begin, int64_t end) {
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i)
      out[i] = roundTo<Y>(f(load(in[i])));
  });
}

namespace detail {
template <typename A, typename B, typename Y, typename F>
void mapRow(const A *a, int64_t aStride, const B *b, int64_t bStride, Y *y, int64_t n, F f) {
  if (aStride == 1 && bStride == 1) {
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = 0; i < n; ++i)
      y[i] = roundTo<Y>(f(load(a[i]), load(b[i])));
  } else if (aStride == 1 && bStride == 0) {
    auto scalar = load(*b);
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = 0; i < n; ++i)
      y[i] = roundTo<Y>(f(load(a[i]), scalar));
  } else if (aStride == 0 && bStride == 1) {
    auto scalar = load(*a);
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = 0; i < n; ++i)
      y[i] = roundTo<Y>(f(scalar, load(b[i])));
  } else {
    for (int64_t i = 0; i < n; ++i)
      y[i] = roundTo<Y>(f(load(a[i * aStride]), load(b[i * bStride])));
  }
}
} // namespace detail

/// Operand 0 is y, 1 is a, 2 is b; coalesced. Before opset 7, b is aligned by the attributes `broadcast` and `axis`.
inline StridedLoop<3> binaryLoop(const StepSpec &spec, const TensorRef &a, const TensorRef &b, const TensorRef &y) {
  StridedLoop<3> loop(y.dims);
  loop.broadcast(0, y.dims);
  loop.broadcast(1, a.dims);
  if (spec.version >= 7) {
    loop.broadcast(2, b.dims);
  } else {
    IndexArray dense = denseStrides(b.dims), strides{};
    int64_t axis = normalizeAxis(spec.attrs.getInt("axis", a.rank() - b.rank()), std::max<int64_t>(a.rank(), 1));
    for (int64_t d = 0; b.elems() != 1 && axis >= 0 && d < b.rank() && axis + d < a.rank(); ++d)
      strides[axis + d] = dense[d];
    loop.setStrides(2, strides);
  }
  loop.coalesce();
  return loop;
}

/// y = f(a, b) with broadcasting.
template <typename A, typename B, typename Y, typename F>
void mapBinary(const StepSpec &spec, const TensorRef &a, const TensorRef &b, const TensorRef &y, F f) {
  StridedLoop<3> loop = binaryLoop(spec, a, b, y);
  parallelFor(loop.count(), kGrain, [&](int64_t begin, int64_t end) {
    loop.walk(begin, end, [&](const std::array<int64_t, 3> &at, int64_t n) {
      detail::mapRow(a.as<A>() + at[1], loop.inner(1), b.as<B>() + at[2], loop.inner(2), y.as<Y>() + at[0], n, f);
    });
  });
}

/// A saturating conversion from float to integer, NaN to 0: ONNX leaves both undefined, C++ forbids them.
template <typename I> I toInteger(double value) {
  constexpr double low = static_cast<double>(std::numeric_limits<I>::min());
  constexpr double high = static_cast<double>(uint64_t(1) << (std::numeric_limits<I>::digits - 1)) * 2;
  if (value >= high)
    return std::numeric_limits<I>::max();
  if (value <= low)
    return std::numeric_limits<I>::min();
  return value == value ? static_cast<I>(value) : I(0);
}

} // namespace recast::reference
