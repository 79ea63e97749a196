// Element-wise functions of one tensor. Formulas are those of the ONNX operator specification, written so that large
// arguments neither overflow nor lose a NaN.
#include "runtime/reference/ElementwiseLoops.h"
#include <numbers>

namespace recast::reference {
namespace {

/// Clamps and keeps NaN.
template <typename C> C clampTo(C x, C low, C high) { return x < low ? low : x > high ? high : x; }
template <typename C> C sigmoid(C x) { return 1 / (1 + std::exp(-x)); }
template <typename C> C softplus(C x) { return (x > 0 ? x : C(0)) + std::log1p(std::exp(-std::fabs(x))); }

/// Attribute `name`, for computing in any type.
struct Param {
  double value;
  Param(const StepSpec &spec, std::string_view name, double fallback) : value(spec.attrs.getFloat(name, fallback)) {}
};

template <auto F> Status floatUnary(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(args.outputs[0].dtype, [&]<typename T>() { mapUnary<T, T>(args.inputs[0], args.outputs[0], F); });
  return Status::success();
}
/// `Make(spec)` returns the function of x: it reads the attributes once.
template <auto Make> Status floatUnaryWith(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(args.outputs[0].dtype,
                [&]<typename T>() { mapUnary<T, T>(args.inputs[0], args.outputs[0], Make(spec)); });
  return Status::success();
}
template <auto F> Status numericUnary(const StepSpec &spec, const KernelArgs &args) {
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() { mapUnary<T, T>(args.inputs[0], args.outputs[0], F); });
  return Status::success();
}
/// Float to bool.
template <auto Make> Status predicate(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(args.inputs[0].dtype,
                [&]<typename T>() { mapUnary<T, bool>(args.inputs[0], args.outputs[0], Make(spec)); });
  return Status::success();
}

Status runNot(const StepSpec &spec, const KernelArgs &args) {
  mapUnary<bool, bool>(args.inputs[0], args.outputs[0], [](bool x) { return !x; });
  return Status::success();
}

Status runBitwiseNot(const StepSpec &spec, const KernelArgs &args) {
  dispatchSize(args.outputs[0].dtype, [&]<typename T>() {
    mapUnary<T, T>(args.inputs[0], args.outputs[0], [](T x) { return static_cast<T>(~x); });
  });
  return Status::success();
}

constexpr auto negate = [](auto x) {
  if constexpr (std::is_integral_v<decltype(x)>)
    return static_cast<decltype(x)>(uint64_t(0) - static_cast<uint64_t>(x)); // The lowest value stays itself.
  else
    return -x;
};
constexpr auto absolute = [](auto x) {
  if constexpr (std::is_unsigned_v<decltype(x)>)
    return x;
  else if constexpr (std::is_integral_v<decltype(x)>)
    return x < 0 ? negate(x) : x;
  else
    return std::fabs(x);
};
constexpr auto sign = [](auto x) {
  using C = decltype(x);
  return x > 0 ? C(1) : x == 0 ? C(0) : x == x ? static_cast<C>(C(0) - C(1)) : x;
};
constexpr auto relu = [](auto x) { return x < 0 ? decltype(x)(0) : x; };

auto makeGelu(const StepSpec &spec) {
  bool byTanh = spec.attrs.stringView("approximate", "none") == "tanh";
  return [byTanh](auto x) {
    using C = decltype(x);
    if (!byTanh)
      return C(0.5) * x * (1 + std::erf(x * (std::numbers::sqrt2_v<C> / 2)));
    C scale = std::numbers::sqrt2_v<C> * std::numbers::inv_sqrtpi_v<C>; // sqrt(2 / pi)
    return C(0.5) * x * (1 + std::tanh(scale * (x + C(0.044715) * x * x * x)));
  };
}
auto makeElu(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 1)](auto x) {
    return x < 0 ? static_cast<decltype(x)>(alpha.value) * std::expm1(x) : x;
  };
}
auto makeSelu(const StepSpec &spec) {
  Param alpha(spec, "alpha", 1.6732632423543772), gamma(spec, "gamma", 1.0507009873554805);
  return [=](auto x) {
    using C = decltype(x);
    return C(gamma.value) * (x > 0 ? x : C(alpha.value) * std::expm1(x));
  };
}
auto makeCelu(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 1)](auto x) {
    using C = decltype(x);
    return x < 0 ? C(alpha.value) * std::expm1(x / C(alpha.value)) : x;
  };
}
auto makeLeakyRelu(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 0.01)](auto x) { return x < 0 ? static_cast<decltype(x)>(alpha.value) * x : x; };
}
auto makeThresholdedRelu(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 1)](auto x) {
    using C = decltype(x);
    return x <= C(alpha.value) ? C(0) : x;
  };
}
auto makeHardSigmoid(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 0.2), beta = Param(spec, "beta", 0.5)](auto x) {
    using C = decltype(x);
    return clampTo<C>(C(alpha.value) * x + C(beta.value), 0, 1);
  };
}
auto makeSwish(const StepSpec &spec) {
  return [alpha = Param(spec, "alpha", 1)](auto x) { return x * sigmoid(static_cast<decltype(x)>(alpha.value) * x); };
}
auto makeIsNaN(const StepSpec &) {
  return [](auto x) { return x != x; };
}
auto makeIsInf(const StepSpec &spec) {
  bool positive = spec.attrs.getInt("detect_positive", 1) != 0, negative = spec.attrs.getInt("detect_negative", 1) != 0;
  return [=](auto x) {
    constexpr auto infinity = std::numeric_limits<decltype(x)>::infinity();
    return (positive && x == infinity) || (negative && x == -infinity);
  };
}

constexpr Entry floats(std::string_view op, int64_t first, int64_t last,
                       Status (*run)(const StepSpec &, const KernelArgs &)) {
  return {"", op, first, last, run, nullptr, refuseInputs<allowsFloat>, elementwise};
}
constexpr Entry numbers(std::string_view op, int64_t first, int64_t last,
                        Status (*run)(const StepSpec &, const KernelArgs &)) {
  return {"", op, first, last, run, nullptr, refuseInputs<allowsNumeric>, elementwise};
}

} // namespace

std::span<const Entry> elementwiseUnaryEntries() {
  static const Entry entries[] = {
      numbers("Neg", 1, 13, numericUnary<negate>),
      numbers("Abs", 1, 13, numericUnary<absolute>),
      numbers("Sign", 9, 13, numericUnary<sign>),
      numbers("Relu", 1, 14, numericUnary<relu>),
      floats("Ceil", 1, 13, floatUnary<[](auto x) { return std::ceil(x); }>),
      floats("Floor", 1, 13, floatUnary<[](auto x) { return std::floor(x); }>),
      // The default rounding mode rounds halves to even, as ONNX asks.
      floats("Round", 11, 22, floatUnary<[](auto x) { return std::nearbyint(x); }>),
      // The builtin sets no errno, so the loop vectorises.
      floats("Sqrt", 1, 13, floatUnary<[](auto x) { return __builtin_elementwise_sqrt(x); }>),
      floats("Reciprocal", 1, 13, floatUnary<[](auto x) { return 1 / x; }>),
      floats("Exp", 1, 13, floatUnary<[](auto x) { return std::exp(x); }>),
      floats("Log", 1, 13, floatUnary<[](auto x) { return std::log(x); }>),
      floats("Erf", 9, 13, floatUnary<[](auto x) { return std::erf(x); }>),
      floats("Sin", 7, 22, floatUnary<[](auto x) { return std::sin(x); }>),
      floats("Cos", 7, 22, floatUnary<[](auto x) { return std::cos(x); }>),
      floats("Tan", 7, 22, floatUnary<[](auto x) { return std::tan(x); }>),
      floats("Asin", 7, 22, floatUnary<[](auto x) { return std::asin(x); }>),
      floats("Acos", 7, 22, floatUnary<[](auto x) { return std::acos(x); }>),
      floats("Atan", 7, 22, floatUnary<[](auto x) { return std::atan(x); }>),
      floats("Sinh", 9, 22, floatUnary<[](auto x) { return std::sinh(x); }>),
      floats("Cosh", 9, 22, floatUnary<[](auto x) { return std::cosh(x); }>),
      floats("Tanh", 1, 13, floatUnary<[](auto x) { return std::tanh(x); }>),
      floats("Asinh", 9, 22, floatUnary<[](auto x) { return std::asinh(x); }>),
      floats("Acosh", 9, 22, floatUnary<[](auto x) { return std::acosh(x); }>),
      floats("Atanh", 9, 22, floatUnary<[](auto x) { return std::atanh(x); }>),
      floats("Sigmoid", 1, 13, floatUnary<[](auto x) { return sigmoid(x); }>),
      floats("Softplus", 1, 22, floatUnary<[](auto x) { return softplus(x); }>),
      floats("Softsign", 1, 22, floatUnary<[](auto x) { return x / (1 + std::fabs(x)); }>),
      floats("Mish", 18, 22, floatUnary<[](auto x) { return x * std::tanh(softplus(x)); }>),
      floats("HardSwish", 14, 22, floatUnary<[](auto x) {
               using C = decltype(x);
               return x * clampTo<C>(x / 6 + C(0.5), 0, 1);
             }>),
      floats("HardSigmoid", 1, 22, floatUnaryWith<makeHardSigmoid>),
      floats("Gelu", 20, 20, floatUnaryWith<makeGelu>),
      floats("Swish", 24, 24, floatUnaryWith<makeSwish>),
      floats("Elu", 1, 22, floatUnaryWith<makeElu>),
      floats("Selu", 6, 22, floatUnaryWith<makeSelu>),
      floats("Celu", 12, 28, floatUnaryWith<makeCelu>),
      floats("LeakyRelu", 1, 16, floatUnaryWith<makeLeakyRelu>),
      floats("ThresholdedRelu", 10, 22, floatUnaryWith<makeThresholdedRelu>),
      floats("IsNaN", 9, 20, predicate<makeIsNaN>),
      floats("IsInf", 10, 20, predicate<makeIsInf>),
      {"", "Not", 1, 1, runNot, nullptr, refuseInputs<allowsBool>, elementwise},
      {"", "BitwiseNot", 18, 18, runBitwiseNot, nullptr, refuseInputs<allowsInteger>, elementwise},
  };
  return entries;
}

} // namespace recast::reference
