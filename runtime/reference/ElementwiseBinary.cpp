// Element-wise functions of two tensors, with NumPy's broadcasting (before opset 7: the attributes broadcast and axis).
#include "runtime/reference/ElementwiseLoops.h"

namespace recast::reference {
namespace {

template <auto F> Status numericBinary(const StepSpec &spec, const KernelArgs &args) {
  dispatchNumeric(args.outputs[0].dtype,
                  [&]<typename T>() { mapBinary<T, T, T>(spec, args.inputs[0], args.inputs[1], args.outputs[0], F); });
  return Status::success();
}
template <auto F> Status compareBinary(const StepSpec &spec, const KernelArgs &args) {
  dispatchAny(args.inputs[0].dtype,
              [&]<typename T>() { mapBinary<T, T, bool>(spec, args.inputs[0], args.inputs[1], args.outputs[0], F); });
  return Status::success();
}
/// Integers and bool, as bits.
template <auto F> Status bitBinary(const StepSpec &spec, const KernelArgs &args) {
  dispatchSize(args.outputs[0].dtype,
               [&]<typename T>() { mapBinary<T, T, T>(spec, args.inputs[0], args.inputs[1], args.outputs[0], F); });
  return Status::success();
}

/// Integers wrap modulo 2^n: arithmetic in uint64 is exact there, and never undefined.
template <typename Op>
constexpr auto wrapping = [](auto a, auto b) {
  using C = decltype(a);
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(Op{}(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  else
    return Op{}(a, b);
};
constexpr auto add = wrapping<std::plus<>>;
constexpr auto subtract = wrapping<std::minus<>>;
constexpr auto multiply = wrapping<std::multiplies<>>;

/// Divides towards zero; the quotient that does not fit (lowest / -1) wraps. Precondition: b is not an integer 0.
constexpr auto divide = [](auto a, auto b) {
  using C = decltype(a);
  if constexpr (std::is_floating_point_v<C>)
    return a / b;
  else if constexpr (std::is_signed_v<C>)
    return b == -1 ? subtract(C(0), a) : static_cast<C>(a / b);
  else
    return static_cast<C>(a / b);
};
/// The remainder with the sign of a. Precondition: b is not an integer 0.
constexpr auto truncatedRemainder = [](auto a, auto b) {
  using C = decltype(a);
  if constexpr (std::is_floating_point_v<C>)
    return std::fmod(a, b);
  else if constexpr (std::is_signed_v<C>)
    return b == -1 ? C(0) : static_cast<C>(a % b);
  else
    return static_cast<C>(a % b);
};
/// The remainder with the sign of b, as in Python. Precondition: b is not an integer 0.
constexpr auto flooredRemainder = [](auto a, auto b) {
  using C = decltype(a);
  C r = truncatedRemainder(a, b);
  if (r != 0)
    return (r < 0) != (b < 0) ? static_cast<C>(r + b) : r;
  if constexpr (std::is_floating_point_v<C>)
    return std::copysign(r, b);
  return r;
};

bool dividesIntegers(const StepSpec &spec) { return !isFloat(spec.inputs[1].dtype); }

bool hasIntegerZero(const TensorRef &tensor) {
  if (isFloat(tensor.dtype))
    return false;
  return dispatchSize(tensor.dtype, [&]<typename T>() {
    const T *values = tensor.as<T>();
    return std::find(values, values + tensor.elems(), T(0)) != values + tensor.elems();
  });
}

template <auto F> Status divisionBinary(const StepSpec &spec, const KernelArgs &args) {
  if (args.outputs[0].elems() > 0 && hasIntegerZero(args.inputs[1]))
    return stepError(spec, "integer division by zero");
  return numericBinary<F>(spec, args);
}
Status runMod(const StepSpec &spec, const KernelArgs &args) {
  bool truncated = spec.attrs.getInt("fmod", 0) != 0;
  return truncated ? divisionBinary<truncatedRemainder>(spec, args) : divisionBinary<flooredRemainder>(spec, args);
}

/// Modulo 2^n. A negative exponent rounds the fraction towards zero.
template <typename I> I integerPower(I base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 1)
      return 1;
    if (std::is_signed_v<I> && static_cast<int64_t>(base) == -1)
      return exponent % 2 ? base : I(1);
    return 0;
  }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (; exponent; exponent >>= 1, factor *= factor)
    result *= exponent & 1 ? factor : 1;
  return static_cast<I>(result);
}

/// Base and exponent of types that differ, or integers: one element at a time.
template <typename T> void mixedPower(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &base = args.inputs[0], &exponent = args.inputs[1], &y = args.outputs[0];
  StridedLoop<3> loop = binaryLoop(spec, base, exponent, y);
  bool integerExponent = !isFloat(exponent.dtype);
  parallelFor(loop.count(), kGrain / 8, [&](int64_t begin, int64_t end) {
    loop.walk(begin, end, [&](const std::array<int64_t, 3> &at, int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        T b = base.as<T>()[at[1] + i * loop.inner(1)];
        int64_t e = at[2] + i * loop.inner(2);
        T &out = y.as<T>()[at[0] + i];
        if constexpr (isFloatType<T>)
          out = roundTo<T>(std::pow(static_cast<double>(load(b)), loadDouble(exponent, e)));
        else if (integerExponent)
          out = integerPower(b, loadIndex(exponent, e));
        else
          out = toInteger<T>(std::pow(static_cast<double>(b), loadDouble(exponent, e)));
      }
    });
  });
}

Status runPow(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &base = args.inputs[0], &exponent = args.inputs[1], &y = args.outputs[0];
  if (exponent.elems() == 1 && isFloat(base.dtype) && y.elems() == base.elems()) {
    double e = loadDouble(exponent, 0);
    if (e == 2 || e == 3) {
      dispatchFloat(y.dtype, [&]<typename T>() {
        if (e == 2)
          mapUnary<T, T>(base, y, [](auto x) { return x * x; });
        else // In double, so that there is one rounding for the narrower types.
          mapUnary<T, T>(base, y, [](double x) { return static_cast<Compute<T>>(x * x * x); });
      });
      return Status::success();
    }
  }
  if (isFloat(base.dtype) && base.dtype == exponent.dtype) {
    dispatchFloat(y.dtype, [&]<typename T>() {
      mapBinary<T, T, T>(spec, base, exponent, y, [](auto b, auto e) { return std::pow(b, e); });
    });
    return Status::success();
  }
  dispatchNumeric(y.dtype, [&]<typename T>() { mixedPower<T>(spec, args); });
  return Status::success();
}
std::string refusePow(const StepSpec &spec) {
  for (const TensorType &type : spec.inputs)
    if (!allowsNumeric(type.dtype))
      return std::string(name(type.dtype)) + " is not supported";
  return "";
}

Status runPRelu(const StepSpec &spec, const KernelArgs &args) {
  return numericBinary<[](auto x, auto slope) { return x < 0 ? multiply(slope, x) : x; }>(spec, args);
}

Status runBitShift(const StepSpec &spec, const KernelArgs &args) {
  std::string_view direction = spec.attrs.stringView("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    return stepError(spec, "direction '" + std::string(direction) + "' is neither LEFT nor RIGHT");
  bool left = direction == "LEFT";
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    if constexpr (std::is_integral_v<T>)
      mapBinary<T, T, T>(spec, args.inputs[0], args.inputs[1], args.outputs[0], [left](T x, T y) {
        bool inRange = y >= 0 && static_cast<uint64_t>(y) < 8 * sizeof(T);
        if (left)
          return inRange ? static_cast<T>(static_cast<uint64_t>(x) << y) : T(0);
        return inRange ? static_cast<T>(x >> y) : static_cast<T>(x < 0 ? -1 : 0);
      });
  });
  return Status::success();
}

constexpr Entry entry(std::string_view op, int64_t first, int64_t last,
                      Status (*run)(const StepSpec &, const KernelArgs &), std::string (*refuses)(const StepSpec &),
                      bool (*mayFail)(const StepSpec &) = nullptr) {
  return {"", op, first, last, run, nullptr, refuses, elementwise, mayFail};
}

} // namespace

std::span<const Entry> elementwiseBinaryEntries() {
  static const Entry entries[] = {
      entry("Add", 1, 14, numericBinary<add>, refuseInputs<allowsNumeric>),
      entry("Sub", 1, 14, numericBinary<subtract>, refuseInputs<allowsNumeric>),
      entry("Mul", 1, 14, numericBinary<multiply>, refuseInputs<allowsNumeric>),
      entry("Div", 1, 14, divisionBinary<divide>, refuseInputs<allowsNumeric>, dividesIntegers),
      entry("Mod", 10, 28, runMod, refuseInputs<allowsNumeric>, dividesIntegers),
      entry("Pow", 1, 15, runPow, refusePow),
      entry("PRelu", 7, 16, runPRelu, refuseInputs<allowsNumeric>),
      entry("Equal", 1, 19, compareBinary<[](auto a, auto b) { return a == b; }>, refuseInputs<allowsAny>),
      entry("Less", 1, 13, compareBinary<[](auto a, auto b) { return a < b; }>, refuseInputs<allowsNumeric>),
      entry("Greater", 1, 13, compareBinary<[](auto a, auto b) { return a > b; }>, refuseInputs<allowsNumeric>),
      entry("LessOrEqual", 12, 16, compareBinary<[](auto a, auto b) { return a <= b; }>, refuseInputs<allowsNumeric>),
      entry("GreaterOrEqual", 12, 16, compareBinary<[](auto a, auto b) { return a >= b; }>,
            refuseInputs<allowsNumeric>),
      entry("And", 1, 7, bitBinary<[](auto a, auto b) { return a & b; }>, refuseInputs<allowsBool>),
      entry("Or", 1, 7, bitBinary<[](auto a, auto b) { return a | b; }>, refuseInputs<allowsBool>),
      entry("Xor", 1, 7, bitBinary<[](auto a, auto b) { return a ^ b; }>, refuseInputs<allowsBool>),
      entry("BitwiseAnd", 18, 18, bitBinary<[](auto a, auto b) { return a & b; }>, refuseInputs<allowsInteger>),
      entry("BitwiseOr", 18, 18, bitBinary<[](auto a, auto b) { return a | b; }>, refuseInputs<allowsInteger>),
      entry("BitwiseXor", 18, 18, bitBinary<[](auto a, auto b) { return a ^ b; }>, refuseInputs<allowsInteger>),
      entry("BitShift", 11, 28, runBitShift, refuseInputs<allowsInteger>),
  };
  return entries;
}

} // namespace recast::reference
