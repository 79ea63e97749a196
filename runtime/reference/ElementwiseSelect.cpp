// Element-wise operators that choose, bound, convert or drop values: Where, Clip, Identity, Cast, Dropout.
#include "runtime/reference/CounterRandom.h"
#include "runtime/reference/ElementwiseLoops.h"
#include "runtime/reference/Quantization.h"

namespace recast::reference {
namespace {

Status runWhere(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &condition = args.inputs[0], &a = args.inputs[1], &b = args.inputs[2], &y = args.outputs[0];
  StridedLoop<4> loop(y.dims);
  loop.broadcast(0, y.dims);
  loop.broadcast(1, condition.dims);
  loop.broadcast(2, a.dims);
  loop.broadcast(3, b.dims);
  loop.coalesce();
  dispatchSize(y.dtype, [&]<typename T>() {
    parallelFor(loop.count(), kGrain, [&](int64_t begin, int64_t end) {
      loop.walk(begin, end, [&](const std::array<int64_t, 4> &at, int64_t n) {
        const bool *c = condition.as<bool>() + at[1];
        const T *x = a.as<T>() + at[2], *z = b.as<T>() + at[3];
        T *out = y.as<T>() + at[0];
        int64_t cs = loop.inner(1), xs = loop.inner(2), zs = loop.inner(3);
        if (cs == 1 && xs == 1 && zs == 1)
          RECAST_ELEMENTWISE_LOOP
        for (int64_t i = 0; i < n; ++i)
          out[i] = c[i] ? x[i] : z[i];
        else for (int64_t i = 0; i < n; ++i) out[i] = c[i * cs] ? x[i * xs] : z[i * zs];
      });
    });
  });
  return Status::success();
}
std::string refuseWhere(const StepSpec &spec) {
  if (spec.inputs[0].dtype != DType::Bool)
    return "the condition is " + std::string(name(spec.inputs[0].dtype));
  return spec.inputs[1].dtype == spec.inputs[2].dtype ? "" : "the branches have different types";
}

/// NaN stays NaN; where the bounds cross, the upper one wins.
template <typename T> void clip(const KernelArgs &args, Compute<T> low, Compute<T> high) {
  mapUnary<T, T>(args.inputs[0], args.outputs[0], [=](Compute<T> x) {
    x = x < low ? low : x;
    return x > high ? high : x;
  });
}
/// The bounds are the attributes min and max.
Status runClipAttributes(const StepSpec &spec, const KernelArgs &args) {
  double low = spec.attrs.getFloat("min", 0), high = spec.attrs.getFloat("max", 0);
  dispatchFloat(args.outputs[0].dtype, [&]<typename T>() {
    // An absent bound is no bound, also in a type that reaches further than float.
    using C = Compute<T>;
    constexpr C infinity = std::numeric_limits<C>::infinity();
    clip<T>(args, spec.attrs.has("min") ? C(low) : -infinity, spec.attrs.has("max") ? C(high) : infinity);
  });
  return Status::success();
}
/// The bounds are the optional inputs 1 and 2.
Status runClipInputs(const StepSpec &spec, const KernelArgs &args) {
  dispatchNumeric(args.outputs[0].dtype, [&]<typename T>() {
    using C = Compute<T>;
    using Limits = std::numeric_limits<C>;
    C low = Limits::has_infinity ? static_cast<C>(-Limits::infinity()) : Limits::lowest();
    C high = Limits::has_infinity ? Limits::infinity() : Limits::max();
    clip<T>(args, present(args.inputs, 1) ? load(*args.inputs[1].as<T>()) : low,
            present(args.inputs, 2) ? load(*args.inputs[2].as<T>()) : high);
  });
  return Status::success();
}

Status runIdentity(const StepSpec &spec, const KernelArgs &args) {
  copyTensor(args.inputs[0], args.outputs[0]);
  return Status::success();
}

/// Rounds to nearest, floats to integers towards zero, anything but zero to true. Out of the range of an integer: from
/// integers modulo 2^n, from floats the nearest bound.
template <typename X, typename Y> void cast(const TensorRef &x, const TensorRef &y) {
  mapUnary<X, Y>(x, y, [](auto value) {
    if constexpr (std::is_same_v<Y, bool>)
      return value != 0;
    else if constexpr (isFloatType<X> && !isFloatType<Y>)
      return toInteger<Y>(value);
    else
      return value;
  });
}
Status runCast(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  if (x.dtype == y.dtype) {
    copyTensor(x, y);
    return Status::success();
  }
  if (isFloat8(x.dtype) || isFloat8(y.dtype)) {
    castFloat8(spec, x, y);
    return Status::success();
  }
  dispatchAny(x.dtype, [&]<typename X>() { dispatchAny(y.dtype, [&]<typename Y>() { cast<X, Y>(x, y); }); });
  return Status::success();
}
std::string refuseCast(const StepSpec &spec) {
  for (const TensorType *type : {&spec.inputs[0], &spec.outputs[0]})
    if (byteSize(type->dtype) == 0)
      return std::string(name(type->dtype)) + " is not supported";
  return "";
}

/// In training: y = x * mask / (1 - ratio), with the mask drawn for the attribute `seed` (0 where it is absent), so
/// that every run of the step gives the same one. The mask is an optional output, of bool, or of x's type before
/// opset 10.
Status runDropout(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  bool training = spec.version >= 12 && present(args.inputs, 2) && *args.inputs[2].as<bool>();
  double ratio = present(args.inputs, 1) ? loadDouble(args.inputs[1], 0) : 0.5;
  bool wantsMask = present(args.outputs, 1);
  if (!training || ratio == 0) {
    copyTensor(x, y);
    if (wantsMask)
      dispatchAny(args.outputs[1].dtype, [&]<typename M>() {
        std::fill_n(args.outputs[1].as<M>(), args.outputs[1].elems(), roundTo<M>(1.0));
      });
    return Status::success();
  }
  if (!(ratio > 0 && ratio <= 1))
    return stepError(spec, "ratio " + std::to_string(ratio) + " is outside [0, 1]");
  uint64_t key = squaresKey(static_cast<uint64_t>(spec.attrs.getInt("seed", 0))), threshold = dropThreshold(ratio);
  bool *mask = wantsMask ? args.outputs[1].as<bool>() : nullptr;
  dispatchFloat(y.dtype, [&]<typename T>() {
    Compute<T> scale = static_cast<Compute<T>>(1 / (1 - ratio));
    parallelFor(y.elems(), kGrain / 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        bool keep = squares32(static_cast<uint64_t>(i), key) >= threshold;
        y.as<T>()[i] = roundTo<T>(keep ? load(x.as<T>()[i]) * scale : Compute<T>(0));
        if (mask)
          mask[i] = keep;
      }
    });
  });
  return Status::success();
}
std::string refuseDropout(const StepSpec &spec) {
  return isFloat(spec.inputs[0].dtype) ? "" : std::string(name(spec.inputs[0].dtype)) + " is not supported";
}

} // namespace

std::span<const Entry> elementwiseSelectEntries() {
  static const Entry entries[] = {
      {"", "Where", 9, 16, runWhere, nullptr, refuseWhere, elementwise},
      {"", "Clip", 1, 6, runClipAttributes, nullptr, refuseInputs<allowsFloat>, elementwise},
      {"", "Clip", 11, 13, runClipInputs, nullptr, refuseInputs<allowsNumeric>, elementwise},
      {"", "Identity", 1, 25, runIdentity, nullptr, refuseInputs<allowsAny>, elementwise},
      {"", "Cast", 1, 28, runCast, nullptr, refuseCast, elementwise},
      {"", "CastLike", 15, 25, runCast, nullptr, refuseCast, elementwise},
      {"", "Dropout", 7, 22, runDropout, nullptr, refuseDropout, pairs<InPlace{0, 0}>, unlessConstant},
  };
  return entries;
}

} // namespace recast::reference
