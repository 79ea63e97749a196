// QuantizeLinear and DequantizeLinear, and Cast from and to the 8-bit floats.
#include "runtime/reference/Quantization.h"
#include "runtime/reference/ElementwiseLoops.h"

namespace recast::reference {

void loadFloats(const TensorRef &x, int64_t at, int64_t n, float *out) {
  if (isFloat8(x.dtype))
    dispatchFloat8(x.dtype, [&]<typename T>() { std::copy_n(x.as<T>() + at, n, out); });
  else
    dispatchAny(x.dtype, [&]<typename T>() {
      for (int64_t i = 0; i < n; ++i)
        out[i] = roundTo<float>(load(x.as<T>()[at + i]));
    });
}

namespace {

// Cast --------------------------------------------------------------------------------------------------------------

/// What Cast's attributes say of conversions to 8-bit floats.
struct Float8Policy {
  bool saturate;
  Float8Rounding rounding; ///< Of E8M0.
};

Float8Rounding roundingOf(const StepSpec &spec) {
  std::string_view mode = spec.attrs.stringView("round_mode", "up");
  return mode == "down" ? Float8Rounding::Down : mode == "nearest" ? Float8Rounding::Nearest : Float8Rounding::Up;
}

template <typename Y, typename V> Y toFloat8(V value, Float8Policy policy) {
  if constexpr (std::is_same_v<Y, Float8E8M0>)
    return Y::round(static_cast<double>(value), policy.saturate, policy.rounding);
  else if constexpr (std::is_same_v<V, float>)
    return Y::round(value, policy.saturate);
  else
    return Y::round(roundToOdd(static_cast<double>(value)), policy.saturate);
}

template <typename X> void encode(const TensorRef &x, const TensorRef &y, Float8Policy policy) {
  dispatchFloat8(y.dtype, [&]<typename Y>() {
    const X *in = x.as<X>();
    Y *out = y.as<Y>();
    parallelFor(y.elems(), kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = toFloat8<Y>(load(in[i]), policy);
    });
  });
}

template <typename X> void decode(const TensorRef &x, const TensorRef &y) {
  dispatchAny(y.dtype, [&]<typename Y>() {
    mapUnary<X, Y>(x, y, [](float value) {
      if constexpr (std::is_same_v<Y, bool>)
        return value != 0;
      else if constexpr (!isFloatType<Y>)
        return toInteger<Y>(value);
      else
        return value;
    });
  });
}

} // namespace

void castFloat8(const StepSpec &spec, const TensorRef &x, const TensorRef &y) {
  Float8Policy policy{spec.attrs.getInt("saturate", 1) != 0, roundingOf(spec)};
  if (!isFloat8(x.dtype))
    dispatchAny(x.dtype, [&]<typename X>() { encode<X>(x, y, policy); });
  else if (!isFloat8(y.dtype))
    dispatchFloat8(x.dtype, [&]<typename X>() { decode<X>(x, y); });
  else
    dispatchFloat8(x.dtype, [&]<typename X>() { encode<X>(x, y, policy); });
}

namespace {

// QuantizeLinear and DequantizeLinear -------------------------------------------------------------------------------

enum class Granularity { Tensor, Axis, Block };

/// Elements that are converted at a time: what a type needs is decided once for as many.
constexpr int64_t kChunk = 256;

/// Where the scale of an element is: x is [outer, axis, inner].
struct ScaleLayout {
  Granularity granularity;
  int64_t axisElems = 1, inner = 1, blockSize = 1, blocks = 1;

  static ScaleLayout of(const StepSpec &spec) {
    const TensorType &x = spec.inputs[0], &scale = spec.inputs[1];
    ScaleLayout layout{Granularity::Tensor};
    int64_t axis = normalizeAxis(spec.attrs.getInt("axis", 1), x.rank());
    int64_t block = spec.attrs.getInt("block_size", 0);
    if (block == 0 && (scale.rank() == 0 || scale.elems() == 1 || x.rank() <= 1))
      return layout;
    layout.granularity = block ? Granularity::Block : Granularity::Axis;
    layout.axisElems = x.dims[static_cast<size_t>(axis)];
    layout.inner = product(x.dims, axis + 1, x.rank());
    layout.blockSize = block;
    layout.blocks = block ? scale.dims[static_cast<size_t>(axis)] : 1;
    return layout;
  }

  /// The places in the scale of the elements [at, at + n).
  void places(int64_t at, int64_t n, int64_t *out) const {
    if (granularity == Granularity::Tensor) {
      std::fill_n(out, n, 0);
      return;
    }
    int64_t i = at % inner, row = at / inner, a = row % axisElems, outer = row / axisElems;
    for (int64_t k = 0; k < n; ++k) {
      out[k] = granularity == Granularity::Axis ? a : (outer * blocks + a / blockSize) * inner + i;
      if (++i < inner)
        continue;
      i = 0;
      if (++a == axisElems)
        a = 0, ++outer;
    }
  }
};

/// Calls body(first, n, scales, zeroPoints) for pieces of the tensor, each element with its scale and zero point.
template <typename Body> void forEachChunk(const StepSpec &spec, const KernelArgs &args, Body body) {
  ScaleLayout layout = ScaleLayout::of(spec);
  const TensorRef &scale = args.inputs[1];
  bool hasZero = present(args.inputs, 2);
  parallelFor(args.outputs[0].elems(), kGrain / 4, [&](int64_t begin, int64_t end) {
    std::array<int64_t, kChunk> places;
    std::array<float, kChunk> scales, zeros{};
    for (int64_t at = begin; at < end; at += kChunk) {
      int64_t n = std::min(kChunk, end - at);
      bool isFilled = layout.granularity == Granularity::Tensor && at != begin;
      layout.places(at, n, places.data());
      for (int64_t k = 0; k < n && !isFilled; ++k) {
        bool same = k > 0 && places[k] == places[k - 1];
        scales[k] = same ? scales[k - 1] : static_cast<float>(loadDouble(scale, places[k]));
        if (hasZero)
          zeros[k] = same ? zeros[k - 1] : static_cast<float>(loadDouble(args.inputs[2], places[k]));
      }
      body(at, n, scales.data(), zeros.data());
    }
  });
}

float roundedTo(DType type, float value) {
  return type == DType::F16 ? load(roundTo<Half>(value)) : type == DType::BF16 ? load(roundTo<BFloat16>(value)) : value;
}

Status runQuantize(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  auto precision = static_cast<DType>(spec.attrs.getInt("precision", 0));
  if (precision == DType::Undefined)
    precision = args.inputs[1].dtype;
  bool saturate = spec.attrs.getInt("saturate", 1) != 0;
  forEachChunk(spec, args, [&](int64_t at, int64_t n, const float *scales, const float *zeros) {
    std::array<float, kChunk> ratio;
    loadFloats(x, at, n, ratio.data());
    for (int64_t k = 0; k < n; ++k)
      ratio[k] = roundedTo(precision, ratio[k] / scales[k]);
    if (isFloat8(y.dtype)) {
      dispatchFloat8(y.dtype, [&]<typename Y>() {
        for (int64_t k = 0; k < n; ++k)
          y.as<Y>()[at + k] = toFloat8<Y>(ratio[k] + zeros[k], {saturate, Float8Rounding::Up});
      });
      return;
    }
    dispatchNumeric(y.dtype, [&]<typename Y>() {
      if constexpr (std::is_integral_v<Y>)
        for (int64_t k = 0; k < n; ++k)
          y.as<Y>()[at + k] = toInteger<Y>(std::nearbyint(static_cast<double>(ratio[k])) + zeros[k]);
    });
  });
  return Status::success();
}

Status runDequantize(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  forEachChunk(spec, args, [&](int64_t at, int64_t n, const float *scales, const float *zeros) {
    auto store = [&](auto value) {
      dispatchFloat(y.dtype, [&]<typename Y>() {
        for (int64_t k = 0; k < n; ++k)
          y.as<Y>()[at + k] = roundTo<Y>(value(k));
      });
    };
    if (x.dtype == DType::I32) // More digits than a float has.
      store([&](int64_t k) { return (static_cast<double>(x.as<int32_t>()[at + k]) - zeros[k]) * scales[k]; });
    else {
      std::array<float, kChunk> values;
      loadFloats(x, at, n, values.data());
      store([&](int64_t k) { return (values[k] - zeros[k]) * scales[k]; });
    }
  });
  return Status::success();
}

bool isQuantised(DType type) {
  return type == DType::U8 || type == DType::I8 || type == DType::U16 || type == DType::I16 ||
         (isFloat8(type) && type != DType::F8E8M0);
}

/// What is wrong with the scale's type and shape, or "".
std::string refuseScale(const StepSpec &spec) {
  const TensorType &x = spec.inputs[0], &scale = spec.inputs[1];
  if (!isFloat(scale.dtype) && scale.dtype != DType::F8E8M0)
    return "a scale of " + std::string(name(scale.dtype));
  int64_t block = spec.attrs.getInt("block_size", 0), axis = normalizeAxis(spec.attrs.getInt("axis", 1), x.rank());
  bool isTensor = block == 0 && (scale.rank() == 0 || scale.elems() == 1 || x.rank() <= 1);
  if (isTensor)
    return scale.elems() == 1 ? "" : "a scale of " + std::to_string(scale.elems()) + " elements for one axis";
  if (axis < 0 || block < 0)
    return "an axis outside of the rank, or a negative block_size";
  int64_t size = x.dims[static_cast<size_t>(axis)];
  std::vector<int64_t> wanted = {size};
  if (block) {
    wanted = x.dims;
    wanted[static_cast<size_t>(axis)] = (size + block - 1) / block;
  }
  if (scale.dims != wanted)
    return "a scale of shape " + toString(scale) + " for " + toString(x) + " at axis " + std::to_string(axis);
  return present(std::span(spec.inputs), 2) && spec.inputs[2].dims != scale.dims
             ? "a zero point of another shape than the scale"
             : "";
}

std::string refuseQuantize(const StepSpec &spec) {
  DType from = spec.inputs[0].dtype, to = spec.outputs[0].dtype;
  if ((!isFloat(from) && from != DType::I32) || !isQuantised(to))
    return std::string(name(from)) + " to " + std::string(name(to)) + " is not supported";
  return refuseScale(spec);
}
std::string refuseDequantize(const StepSpec &spec) {
  DType from = spec.inputs[0].dtype, to = spec.outputs[0].dtype;
  if ((!isQuantised(from) && from != DType::I32) || !isFloat(to))
    return std::string(name(from)) + " to " + std::string(name(to)) + " is not supported";
  return refuseScale(spec);
}

constexpr Entry kEntries[] = {
    {"", "QuantizeLinear", 10, kNewest, runQuantize, nullptr, refuseQuantize},
    {"", "DequantizeLinear", 10, kNewest, runDequantize, nullptr, refuseDequantize},
};

} // namespace

std::span<const Entry> quantizationEntries() { return kEntries; }

} // namespace recast::reference
