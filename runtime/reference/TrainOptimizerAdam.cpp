// adamw, adam, nadam and radam as in torch.optim: moments of the gradient and of its square.
#include "runtime/reference/TrainOptimizer.h"

namespace recast::reference {
namespace {

/// The inputs that the four share, from `first` on: step lr beta1 beta2 eps weight_decay.
struct AdamScalars {
  double step, lr, beta1, beta2, eps, weightDecay;
  bool isDecoupled;
  AdamScalars(const KernelArgs &args, size_t first, bool isDecoupled)
      : step(number(args, first)), lr(number(args, first + 1)), beta1(number(args, first + 2)),
        beta2(number(args, first + 3)), eps(number(args, first + 4)), weightDecay(number(args, first + 5)),
        isDecoupled(isDecoupled) {}
  static double number(const KernelArgs &args, size_t i) { return loadDouble(args.inputs[i], 0); }
  double correction1() const { return 1 - std::pow(beta1, step); }
  double correction2() const { return 1 - std::pow(beta2, step); }
};

/// Updates the moments and hands on to move(i, p, g, first, second), which gives the new parameter.
template <bool isDecoupled, typename T, typename G, typename Move>
void updateMoments(const KernelArgs &args, const AdamScalars &s, Move move) {
  using C = Compute<T>;
  const T *param = args.inputs[1].as<T>(), *m = args.inputs[3].as<T>(), *v = args.inputs[4].as<T>();
  const G *grad = args.inputs[2].as<G>();
  T *newParam = args.outputs[0].as<T>(), *newM = args.outputs[1].as<T>(), *newV = args.outputs[2].as<T>();
  C beta1 = static_cast<C>(s.beta1), rest1 = static_cast<C>(1 - s.beta1);
  C beta2 = static_cast<C>(s.beta2), rest2 = static_cast<C>(1 - s.beta2);
  C decay = static_cast<C>(isDecoupled ? 1 - s.lr * s.weightDecay : s.weightDecay);
  parallelFor(args.outputs[0].elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i) {
      C p = load(param[i]), g = static_cast<C>(load(grad[i]));
      if constexpr (isDecoupled)
        p *= decay;
      else
        g += decay * p;
      C first = beta1 * load(m[i]) + rest1 * g, second = beta2 * load(v[i]) + rest2 * g * g;
      newM[i] = roundTo<T>(first);
      newV[i] = roundTo<T>(second);
      newParam[i] = roundTo<T>(move(i, p, g, first, second));
    }
  });
}
template <typename T, typename G, typename Move>
void updateMoments(const KernelArgs &args, const AdamScalars &s, Move move) {
  return s.isDecoupled ? updateMoments<true, T, G>(args, s, move) : updateMoments<false, T, G>(args, s, move);
}

/// Inputs: skip param grad exp_avg exp_avg_sq step lr beta1 beta2 eps weight_decay max_exp_avg_sq?.
template <bool isDecoupled> Status runAdam(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3, 4, 11}, [&]<typename T, typename G>() {
    using C = Compute<T>;
    AdamScalars s(args, 5, isDecoupled);
    C stepSize = static_cast<C>(s.lr / s.correction1()), eps = static_cast<C>(s.eps);
    C correction = static_cast<C>(std::sqrt(s.correction2()));
    auto moved = [=](C p, C first, C second) {
      return p - stepSize * first / (__builtin_elementwise_sqrt(second) / correction + eps);
    };
    if (!present(args.inputs, 11))
      return updateMoments<isDecoupled, T, G>(
          args, s, [=](int64_t, C p, C, C first, C second) { return moved(p, first, second); });
    const T *largest = args.inputs[11].as<T>();
    T *newLargest = args.outputs[3].as<T>();
    updateMoments<isDecoupled, T, G>(args, s, [=](int64_t i, C p, C, C first, C second) {
      C old = load(largest[i]), top = old > second ? old : second;
      newLargest[i] = roundTo<T>(top);
      return moved(p, first, top);
    });
  });
}

/// Inputs: skip param grad exp_avg exp_avg_sq mu_product step lr beta1 beta2 eps weight_decay momentum_decay.
Status runNadam(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3, 4, 5}, [&]<typename T, typename G>() {
    using C = Compute<T>;
    AdamScalars s(args, 6, spec.attrs.getInt("decoupled_weight_decay", 0) != 0);
    double momentumDecay = loadDouble(args.inputs[12], 0);
    auto momentumAt = [&](double at) { return s.beta1 * (1 - 0.5 * std::pow(0.96, at * momentumDecay)); };
    double mu = momentumAt(s.step), next = momentumAt(s.step + 1);
    float product = *args.inputs[5].as<float>() * static_cast<float>(mu);
    double wide = product;
    C correction = static_cast<C>(s.correction2()), eps = static_cast<C>(s.eps);
    C gradStep = static_cast<C>(s.lr * (1 - mu) / (1 - wide)),
      momentumStep = static_cast<C>(s.lr * next / (1 - wide * next));
    updateMoments<T, G>(args, s, [=](int64_t, C p, C g, C first, C second) {
      C denominator = __builtin_elementwise_sqrt(second / correction) + eps;
      return p - gradStep * g / denominator - momentumStep * first / denominator;
    });
    *args.outputs[3].as<float>() = product;
  });
}

/// Inputs: skip param grad exp_avg exp_avg_sq step lr beta1 beta2 eps weight_decay.
Status runRadam(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3, 4}, [&]<typename T, typename G>() {
    using C = Compute<T>;
    AdamScalars s(args, 5, spec.attrs.getInt("decoupled_weight_decay", 0) != 0);
    double limit = 2 / (1 - s.beta2) - 1;
    double length = limit - 2 * s.step * std::pow(s.beta2, s.step) / s.correction2();
    double stepSize = s.lr / s.correction1();
    if (!(length > 5)) {
      C plain = static_cast<C>(stepSize);
      return updateMoments<T, G>(args, s, [=](int64_t, C p, C, C first, C) { return p - plain * first; });
    }
    double rectification = std::sqrt((length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length));
    C factor = static_cast<C>(stepSize * rectification * std::sqrt(s.correction2())), eps = static_cast<C>(s.eps);
    updateMoments<T, G>(args, s, [=](int64_t, C p, C, C first, C second) {
      return p - factor * first / (__builtin_elementwise_sqrt(second) + eps);
    });
  });
}

std::string refuseAdam(const StepSpec &spec) {
  bool keepsLargest = present(spec.inputs, 11);
  if (keepsLargest && spec.inputs[11].dtype != spec.inputs[1].dtype)
    return "max_exp_avg_sq is " + std::string(name(spec.inputs[11].dtype));
  return refuseUpdate(spec, 5, keepsLargest ? 12 : 11, keepsLargest ? 4 : 3);
}
std::string refuseNadam(const StepSpec &spec) {
  if (spec.inputs.size() == 13 && spec.inputs[5].dtype != DType::F32)
    return "mu_product is " + std::string(name(spec.inputs[5].dtype));
  return refuseUpdate(spec, 5, 13, 4);
}
std::string refuseRadam(const StepSpec &spec) { return refuseUpdate(spec, 5, 11, 3); }

} // namespace

std::span<const Entry> adamEntries() {
  static const Entry entries[] = {
      {"recast", "adamw", 1, 1, runAdam<true>, nullptr, refuseAdam, updatesState<1, 3, 4, 11>},
      {"recast", "adam", 1, 1, runAdam<false>, nullptr, refuseAdam, updatesState<1, 3, 4, 11>},
      {"recast", "nadam", 1, 1, runNadam, nullptr, refuseNadam, updatesState<1, 3, 4, 5>},
      {"recast", "radam", 1, 1, runRadam, nullptr, refuseRadam, updatesState<1, 3, 4>},
  };
  return entries;
}

} // namespace recast::reference
