// sgd, adagrad and rmsprop as in torch.optim, lion as published, and the moving average of parameters.
#include "runtime/reference/TrainOptimizer.h"

namespace recast::reference {
namespace {

double number(const KernelArgs &args, size_t i) { return loadDouble(args.inputs[i], 0); }

/// Inputs of sgd: skip param grad momentum_buffer? step lr momentum dampening weight_decay.
struct SgdScalars {
  double step, lr, momentum, dampening, weightDecay;
  explicit SgdScalars(const KernelArgs &args)
      : step(number(args, 4)), lr(number(args, 5)), momentum(number(args, 6)), dampening(number(args, 7)),
        weightDecay(number(args, 8)) {}
};

/// newParam[i] = move(i, p, g), with weight decay in the gradient.
template <typename T, typename G, typename Move>
void updateElements(const KernelArgs &args, double weightDecay, Move move) {
  using C = Compute<T>;
  C decay = static_cast<C>(weightDecay);
  const T *param = args.inputs[1].as<T>();
  const G *grad = args.inputs[2].as<G>();
  T *newParam = args.outputs[0].as<T>();
  parallelFor(args.outputs[0].elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i) {
      C p = load(param[i]), g = static_cast<C>(load(grad[i])) + decay * p;
      newParam[i] = roundTo<T>(move(i, p, g));
    }
  });
}

/// The first step sets the buffer to the gradient, undamped, whatever it held before.
template <bool isFirst, bool isNesterov, typename T, typename G>
void momentumSgd(const KernelArgs &args, const SgdScalars &s) {
  using C = Compute<T>;
  C lr = static_cast<C>(s.lr), momentum = static_cast<C>(s.momentum), take = static_cast<C>(1 - s.dampening);
  const T *buffer = args.inputs[3].as<T>();
  T *newBuffer = args.outputs[1].as<T>();
  updateElements<T, G>(args, s.weightDecay, [=](int64_t i, C p, C g) {
    C b = isFirst ? g : momentum * load(buffer[i]) + take * g;
    newBuffer[i] = roundTo<T>(b);
    return p - lr * (isNesterov ? g + momentum * b : b);
  });
}

template <typename T, typename G> void sgd(const KernelArgs &args, bool isNesterov) {
  using C = Compute<T>;
  SgdScalars s(args);
  if (!args.inputs[3].present() || s.momentum == 0) {
    if (args.inputs[3].present())
      copyTensor(args.inputs[3], args.outputs[1]);
    return updateElements<T, G>(args, s.weightDecay,
                                [lr = static_cast<C>(s.lr)](int64_t, C p, C g) { return p - lr * g; });
  }
  if (s.step == 1)
    return isNesterov ? momentumSgd<true, true, T, G>(args, s) : momentumSgd<true, false, T, G>(args, s);
  return isNesterov ? momentumSgd<false, true, T, G>(args, s) : momentumSgd<false, false, T, G>(args, s);
}

Status runSgd(const StepSpec &spec, const KernelArgs &args) {
  bool nesterov = spec.attrs.getInt("nesterov", 0) != 0;
  return updateUnlessSkipped(args, {1, 3}, [&]<typename T, typename G>() { sgd<T, G>(args, nesterov); });
}

/// Inputs: skip param grad sum step lr lr_decay eps weight_decay.
Status runAdagrad(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3}, [&]<typename T, typename G>() {
    using C = Compute<T>;
    C lr = static_cast<C>(number(args, 5) / (1 + (number(args, 4) - 1) * number(args, 6)));
    C eps = static_cast<C>(number(args, 7));
    const T *sum = args.inputs[3].as<T>();
    T *newSum = args.outputs[1].as<T>();
    updateElements<T, G>(args, number(args, 8), [=](int64_t i, C p, C g) {
      C total = load(sum[i]) + g * g;
      newSum[i] = roundTo<T>(total);
      return p - lr * g / (__builtin_elementwise_sqrt(total) + eps);
    });
  });
}

/// Inputs: skip param grad square_avg grad_avg? momentum_buffer? lr alpha eps weight_decay momentum.
template <bool isCentered, bool hasMomentum, typename T, typename G> void rmsprop(const KernelArgs &args) {
  using C = Compute<T>;
  C lr = static_cast<C>(number(args, 6)), alpha = static_cast<C>(number(args, 7));
  C rest = static_cast<C>(1 - number(args, 7)), eps = static_cast<C>(number(args, 8));
  C momentum = static_cast<C>(number(args, 10));
  const T *squares = args.inputs[3].as<T>();
  const T *means = isCentered ? args.inputs[4].as<T>() : nullptr;
  const T *buffer = hasMomentum ? args.inputs[5].as<T>() : nullptr;
  T *newSquares = args.outputs[1].as<T>();
  T *newMeans = isCentered ? args.outputs[2].as<T>() : nullptr;
  T *newBuffer = hasMomentum ? args.outputs[isCentered ? 3 : 2].as<T>() : nullptr;
  updateElements<T, G>(args, number(args, 9), [=](int64_t i, C p, C g) {
    C square = alpha * load(squares[i]) + rest * g * g, variance = square;
    newSquares[i] = roundTo<T>(square);
    if constexpr (isCentered) {
      C mean = alpha * load(means[i]) + rest * g;
      newMeans[i] = roundTo<T>(mean);
      variance -= mean * mean;
    }
    C denominator = __builtin_elementwise_sqrt(variance) + eps;
    if constexpr (!hasMomentum)
      return p - lr * g / denominator;
    else {
      C moving = momentum * load(buffer[i]) + g / denominator;
      newBuffer[i] = roundTo<T>(moving);
      return p - lr * moving;
    }
  });
}
Status runRmsprop(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3, 4, 5}, [&]<typename T, typename G>() {
    bool isCentered = args.inputs[4].present(), hasMomentum = args.inputs[5].present();
    if (isCentered)
      return hasMomentum ? rmsprop<true, true, T, G>(args) : rmsprop<true, false, T, G>(args);
    return hasMomentum ? rmsprop<false, true, T, G>(args) : rmsprop<false, false, T, G>(args);
  });
}

/// Inputs: skip param grad exp_avg lr beta1 beta2 weight_decay. The sign of NaN is 0, as in torch.sign.
Status runLion(const StepSpec &spec, const KernelArgs &args) {
  return updateUnlessSkipped(args, {1, 3}, [&]<typename T, typename G>() {
    using C = Compute<T>;
    double beta1 = number(args, 5), beta2 = number(args, 6);
    C lr = static_cast<C>(number(args, 4)), kept = static_cast<C>(1 - number(args, 4) * number(args, 7));
    C keep1 = static_cast<C>(beta1), rest1 = static_cast<C>(1 - beta1);
    C keep2 = static_cast<C>(beta2), rest2 = static_cast<C>(1 - beta2);
    const T *average = args.inputs[3].as<T>();
    T *newAverage = args.outputs[1].as<T>();
    updateElements<T, G>(args, 0, [=](int64_t i, C p, C g) {
      C m = load(average[i]), direction = keep1 * m + rest1 * g;
      newAverage[i] = roundTo<T>(keep2 * m + rest2 * g);
      return p * kept - lr * static_cast<C>((direction > 0) - (direction < 0));
    });
  });
}

/// Inputs: skip average param step decay. torch.lerp's formula starts at the nearer end.
Status runEma(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &average = args.inputs[1], &param = args.inputs[2], &out = args.outputs[0];
  if (*args.inputs[0].as<bool>()) {
    copyTensor(average, out);
  } else if (number(args, 3) == 1) {
    copyTensor(param, out);
  } else {
    dispatchFloat(out.dtype, [&]<typename T>() {
      using C = Compute<T>;
      bool isSlow = number(args, 4) > 0.5;
      C decay = static_cast<C>(number(args, 4)), weight = static_cast<C>(1 - number(args, 4));
      const T *from = average.as<T>(), *to = param.as<T>();
      T *y = out.as<T>();
      parallelFor(out.elems(), kUpdateGrain, [=](int64_t begin, int64_t end) {
        RECAST_ELEMENTWISE_LOOP
        for (int64_t i = begin; i < end; ++i) {
          C a = load(from[i]), p = load(to[i]);
          y[i] = roundTo<T>(isSlow ? a + weight * (p - a) : p - decay * (p - a));
        }
      });
    });
  }
  return Status::success();
}

std::string refuseSgd(const StepSpec &spec) {
  if (spec.inputs.size() != 9)
    return "it has 9 inputs";
  if (spec.inputs[3].present() != present(spec.outputs, 1))
    return "the momentum buffer comes as input and output, or not at all";
  return refuseUpdate(spec, 4);
}
std::string refuseAdagrad(const StepSpec &spec) { return refuseUpdate(spec, 4, 9, 2); }
std::string refuseRmsprop(const StepSpec &spec) {
  return refuseUpdate(spec, 6, 11, size_t(2) + present(spec.inputs, 4) + present(spec.inputs, 5));
}
std::string refuseLion(const StepSpec &spec) { return refuseUpdate(spec, 4, 8, 2); }
std::string refuseEma(const StepSpec &spec) {
  bool expected = spec.inputs.size() == 5 && spec.inputs[0].dtype == DType::Bool && isFloat(spec.inputs[1].dtype) &&
                  spec.inputs[1].dtype == spec.inputs[2].dtype;
  return expected ? "" : "it takes skip bool, an average and a parameter of one float type, step and decay";
}

} // namespace

std::span<const Entry> gradientEntries() {
  static const Entry entries[] = {
      {"recast", "sgd", 1, 1, runSgd, nullptr, refuseSgd, updatesState<1, 3>},
      {"recast", "adagrad", 1, 1, runAdagrad, nullptr, refuseAdagrad, updatesState<1, 3>},
      {"recast", "rmsprop", 1, 1, runRmsprop, nullptr, refuseRmsprop, updatesState<1, 3, 4, 5>},
      {"recast", "lion", 1, 1, runLion, nullptr, refuseLion, updatesState<1, 3>},
      {"recast", "ema", 1, 1, runEma, nullptr, refuseEma, pairs<InPlace{0, 1}>},
  };
  return entries;
}

} // namespace recast::reference
