// adamw, adam and sgd as in torch.optim: scalars in double, tensors in their own type (16-bit types in float), one pass
// over memory. Where `skip` is true the old values are kept bit for bit.
#include "runtime/reference/TrainKernels.h"

namespace recast::reference {
namespace {

/// Bytes per element bound these loops, so a range needs fewer elements than usual.
constexpr int64_t kUpdateGrain = kGrain / 2;

/// Inputs of adamw and adam: skip param grad exp_avg exp_avg_sq step lr beta1 beta2 eps weight_decay.
struct AdamScalars {
  double step, lr, beta1, beta2, eps, weightDecay;
  explicit AdamScalars(const KernelArgs &args)
      : step(loadDouble(args.inputs[5], 0)), lr(loadDouble(args.inputs[6], 0)), beta1(loadDouble(args.inputs[7], 0)),
        beta2(loadDouble(args.inputs[8], 0)), eps(loadDouble(args.inputs[9], 0)),
        weightDecay(loadDouble(args.inputs[10], 0)) {}
};

template <bool isDecoupled, typename T, typename G> void adam(const KernelArgs &args) {
  using C = Compute<T>;
  AdamScalars s(args);
  const T *param = args.inputs[1].as<T>(), *m = args.inputs[3].as<T>(), *v = args.inputs[4].as<T>();
  const G *grad = args.inputs[2].as<G>();
  T *newParam = args.outputs[0].as<T>(), *newM = args.outputs[1].as<T>(), *newV = args.outputs[2].as<T>();
  C beta1 = static_cast<C>(s.beta1), rest1 = static_cast<C>(1 - s.beta1);
  C beta2 = static_cast<C>(s.beta2), rest2 = static_cast<C>(1 - s.beta2);
  C decay = static_cast<C>(isDecoupled ? 1 - s.lr * s.weightDecay : s.weightDecay);
  C stepSize = static_cast<C>(s.lr / (1 - std::pow(s.beta1, s.step)));
  C correction = static_cast<C>(std::sqrt(1 - std::pow(s.beta2, s.step))), eps = static_cast<C>(s.eps);
  parallelFor(args.outputs[0].elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      C p = load(param[i]), g = static_cast<C>(load(grad[i]));
      if constexpr (isDecoupled)
        p *= decay;
      else
        g += decay * p;
      C first = beta1 * load(m[i]) + rest1 * g, second = beta2 * load(v[i]) + rest2 * g * g;
      newM[i] = roundTo<T>(first);
      newV[i] = roundTo<T>(second);
      newParam[i] = roundTo<T>(p - stepSize * first / (__builtin_elementwise_sqrt(second) / correction + eps));
    }
  });
}

template <bool isDecoupled> Status runAdam(const StepSpec &spec, const KernelArgs &args) {
  if (*args.inputs[0].as<bool>()) {
    copyTensor(args.inputs[1], args.outputs[0]);
    copyTensor(args.inputs[3], args.outputs[1]);
    copyTensor(args.inputs[4], args.outputs[2]);
    return Status::success();
  }
  dispatchFloat(args.inputs[1].dtype, [&]<typename T>() {
    dispatchFloat(args.inputs[2].dtype, [&]<typename G>() { adam<isDecoupled, T, G>(args); });
  });
  return Status::success();
}

/// Inputs of sgd: skip param grad momentum_buffer? step lr momentum dampening weight_decay.
struct SgdScalars {
  double step, lr, momentum, dampening, weightDecay;
  explicit SgdScalars(const KernelArgs &args)
      : step(loadDouble(args.inputs[4], 0)), lr(loadDouble(args.inputs[5], 0)), momentum(loadDouble(args.inputs[6], 0)),
        dampening(loadDouble(args.inputs[7], 0)), weightDecay(loadDouble(args.inputs[8], 0)) {}
};

template <typename T, typename G> void plainSgd(const KernelArgs &args, const SgdScalars &s) {
  using C = Compute<T>;
  C lr = static_cast<C>(s.lr), decay = static_cast<C>(s.weightDecay);
  const T *param = args.inputs[1].as<T>();
  const G *grad = args.inputs[2].as<G>();
  T *newParam = args.outputs[0].as<T>();
  parallelFor(args.outputs[0].elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      C p = load(param[i]), g = static_cast<C>(load(grad[i])) + decay * p;
      newParam[i] = roundTo<T>(p - lr * g);
    }
  });
}

/// The first step sets the buffer to the gradient, undamped, whatever it held before.
template <bool isFirst, bool isNesterov, typename T, typename G>
void momentumSgd(const KernelArgs &args, const SgdScalars &s) {
  using C = Compute<T>;
  C lr = static_cast<C>(s.lr), decay = static_cast<C>(s.weightDecay);
  C momentum = static_cast<C>(s.momentum), take = static_cast<C>(1 - s.dampening);
  const T *param = args.inputs[1].as<T>(), *buffer = args.inputs[3].as<T>();
  const G *grad = args.inputs[2].as<G>();
  T *newParam = args.outputs[0].as<T>(), *newBuffer = args.outputs[1].as<T>();
  parallelFor(args.outputs[0].elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      C p = load(param[i]), g = static_cast<C>(load(grad[i])) + decay * p;
      C b = isFirst ? g : momentum * load(buffer[i]) + take * g;
      newBuffer[i] = roundTo<T>(b);
      newParam[i] = roundTo<T>(p - lr * (isNesterov ? g + momentum * b : b));
    }
  });
}

template <typename T, typename G> void sgd(const KernelArgs &args, bool isNesterov) {
  SgdScalars s(args);
  if (!args.inputs[3].present() || s.momentum == 0) {
    if (args.inputs[3].present())
      copyTensor(args.inputs[3], args.outputs[1]);
    return plainSgd<T, G>(args, s);
  }
  if (s.step == 1)
    return isNesterov ? momentumSgd<true, true, T, G>(args, s) : momentumSgd<true, false, T, G>(args, s);
  return isNesterov ? momentumSgd<false, true, T, G>(args, s) : momentumSgd<false, false, T, G>(args, s);
}

Status runSgd(const StepSpec &spec, const KernelArgs &args) {
  if (*args.inputs[0].as<bool>()) {
    copyTensor(args.inputs[1], args.outputs[0]);
    if (args.inputs[3].present())
      copyTensor(args.inputs[3], args.outputs[1]);
    return Status::success();
  }
  bool nesterov = spec.attrs.getInt("nesterov", 0) != 0;
  dispatchFloat(args.inputs[1].dtype, [&]<typename T>() {
    dispatchFloat(args.inputs[2].dtype, [&]<typename G>() { sgd<T, G>(args, nesterov); });
  });
  return Status::success();
}

/// State tensors [3, end) have the parameter's type; the gradient may have another one.
std::string refuseUpdate(const StepSpec &spec, size_t end) {
  if (spec.inputs[0].dtype != DType::Bool)
    return "skip is " + std::string(name(spec.inputs[0].dtype));
  for (size_t i : {size_t(1), size_t(2)})
    if (!isFloat(spec.inputs[i].dtype))
      return unsupported(spec.inputs[i].dtype);
  for (size_t i = 3; i < end; ++i)
    if (spec.inputs[i].present() && spec.inputs[i].dtype != spec.inputs[1].dtype)
      return "state of " + std::string(name(spec.inputs[i].dtype)) + " for a parameter of " +
             std::string(name(spec.inputs[1].dtype));
  return "";
}
std::string refuseAdam(const StepSpec &spec) {
  return spec.inputs.size() == 11 && spec.outputs.size() == 3 ? refuseUpdate(spec, 5) : "it has 11 inputs, 3 outputs";
}
std::string refuseSgd(const StepSpec &spec) {
  if (spec.inputs.size() != 9)
    return "it has 9 inputs";
  if (spec.inputs[3].present() != present(spec.outputs, 1))
    return "the momentum buffer comes as input and output, or not at all";
  return refuseUpdate(spec, 4);
}

} // namespace

std::span<const Entry> optimizerEntries() {
  static const Entry entries[] = {
      {"recast", "adamw", 1, 1, runAdam<true>, nullptr, refuseAdam},
      {"recast", "adam", 1, 1, runAdam<false>, nullptr, refuseAdam},
      {"recast", "sgd", 1, 1, runSgd, nullptr, refuseSgd},
  };
  return entries;
}

} // namespace recast::reference
