// Loss scaling and gradient clipping: scale_loss, unscale, check_finite, grad_norm, clip_grad_norm, clip_grad_value,
// update_loss_scale. The lists of gradients are variadic; each tensor keeps its own type.
#include "runtime/reference/TrainKernels.h"
#include <atomic>

namespace recast::reference {
namespace {

Status runScaleLoss(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &loss = args.inputs[0], &y = args.outputs[0];
  double scale = loadDouble(args.inputs[1], 0);
  dispatchFloat(y.dtype, [&]<typename T>() {
    using C = Compute<T>;
    for (int64_t i = 0; i < y.elems(); ++i)
      y.as<T>()[i] = roundTo<T>(load(loss.as<T>()[i]) * static_cast<C>(scale));
  });
  return Status::success();
}

/// y[i] = f(x[i]) over a gradient; says whether any x[i] is infinite or NaN. Y is void where only that is asked.
template <typename X, typename Y, typename F> bool mapGradient(const TensorRef &x, Y *y, F f) {
  const X *in = x.as<X>();
  std::atomic<bool> found = false;
  parallelFor(x.elems(), kGrain, [&](int64_t begin, int64_t end) {
    // An integer, so that the loop vectorises.
    int bad = 0;
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i) {
      Compute<X> g = load(in[i]);
      bad |= !(std::fabs(g) <= std::numeric_limits<Compute<X>>::max());
      if constexpr (!std::is_void_v<Y>)
        y[i] = roundTo<Y>(f(g));
    }
    if (bad)
      found.store(true, std::memory_order_relaxed);
  });
  return found;
}

Status runUnscale(const StepSpec &spec, const KernelArgs &args) {
  size_t count = args.outputs.size() - 1;
  // As torch's GradScaler: the reciprocal in double, rounded once.
  double inverse = 1 / loadDouble(args.inputs[count], 0);
  bool found = false;
  for (size_t k = 0; k < count; ++k)
    dispatchFloat(args.inputs[k].dtype, [&]<typename X>() {
      dispatchFloat(args.outputs[k].dtype, [&]<typename Y>() {
        using C = Compute<X>;
        C factor = static_cast<C>(inverse);
        found |= mapGradient<X>(args.inputs[k], args.outputs[k].as<Y>(), [factor](C g) { return g * factor; });
      });
    });
  *args.outputs[count].as<bool>() = found;
  return Status::success();
}

Status runCheckFinite(const StepSpec &spec, const KernelArgs &args) {
  bool found = false;
  for (const TensorRef &gradient : args.inputs) {
    found = found || dispatchFloat(gradient.dtype, [&]<typename X>() {
              return mapGradient<X>(gradient, static_cast<void *>(nullptr), [](Compute<X> g) { return g; });
            });
  }
  *args.outputs[0].as<bool>() = found;
  return Status::success();
}

/// Elements whose squares make one partial sum. Fixed, so that the sum does not depend on the threads.
constexpr int64_t kNormBlock = 8192;
int64_t normBlocks(int64_t elems) { return (elems + kNormBlock - 1) / kNormBlock; }

/// One double a block of every gradient.
template <size_t trailing> size_t normWorkspace(const StepSpec &spec) {
  int64_t blocks = 0;
  for (size_t k = 0; k + trailing < spec.inputs.size(); ++k)
    blocks += normBlocks(spec.inputs[k].elems());
  return static_cast<size_t>(blocks) * sizeof(double);
}

/// How the values of a norm's order go into sums. In lanes, so that the loops vectorise.
template <typename T, typename Add> double sumOver(const T *x, int64_t n, Add add) {
  constexpr int64_t lanes = 16;
  double partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int64_t j = 0; j < lanes; ++j)
      partial[j] += add(static_cast<double>(load(x[i + j])));
  double sum = 0;
  for (double p : partial)
    sum += p;
  for (; i < n; ++i)
    sum += add(static_cast<double>(load(x[i])));
  return sum;
}

/// NaN where any value is.
template <typename T> double largest(const T *x, int64_t n) {
  double top = 0, broken = 0;
  for (int64_t i = 0; i < n; ++i) {
    double v = std::fabs(static_cast<double>(load(x[i])));
    top = v > top ? v : top;
    broken = v == v ? broken : v;
  }
  return broken == broken ? top : broken;
}

/// A norm's order: sums of |x|^p, or the largest |x|.
struct NormOrder {
  double p;
  explicit NormOrder(const StepSpec &spec) : p(spec.attrs.getFloat("norm_type", 2)) {}

  template <typename T> double block(const T *x, int64_t n) const {
    if (p == 2)
      return sumOver(x, n, [](double v) { return v * v; });
    if (p == 1)
      return sumOver(x, n, [](double v) { return std::fabs(v); });
    if (std::isinf(p))
      return largest(x, n);
    return sumOver(x, n, [p = p](double v) { return std::pow(std::fabs(v), p); });
  }
  double join(std::span<const double> blocks) const {
    if (std::isinf(p))
      return largest(blocks.data(), static_cast<int64_t>(blocks.size()));
    double sum = 0;
    for (double block : blocks)
      sum += block;
    return p == 2 ? std::sqrt(sum) : p == 1 ? sum : std::pow(sum, 1 / p);
  }
};

/// The norm over all gradients.
double norm(NormOrder order, std::span<const TensorRef> gradients, std::span<std::byte> workspace) {
  auto *partial = reinterpret_cast<double *>(workspace.data()), *end = partial;
  for (const TensorRef &gradient : gradients) {
    int64_t elems = gradient.elems();
    dispatchFloat(gradient.dtype, [&]<typename T>() {
      parallelFor(normBlocks(elems), std::max<int64_t>(kGrain / kNormBlock, 1), [&](int64_t from, int64_t to) {
        for (int64_t b = from; b < to; ++b)
          end[b] = order.block(gradient.as<T>() + b * kNormBlock, std::min(kNormBlock, elems - b * kNormBlock));
      });
    });
    end += normBlocks(elems);
  }
  return order.join({partial, end});
}

void storeScalar(const TensorRef &y, double value) {
  dispatchFloat(y.dtype, [&]<typename T>() { *y.as<T>() = roundTo<T>(value); });
}

Status runGradNorm(const StepSpec &spec, const KernelArgs &args) {
  storeScalar(args.outputs[0], norm(NormOrder(spec), args.inputs, args.workspace));
  return Status::success();
}

/// Inputs: g... tiny; outputs: norm, largest, non-finite, fraction below tiny. A maximum and counts are the same in any
/// order; NaN is larger than no number and has no size.
Status runGradStats(const StepSpec &spec, const KernelArgs &args) {
  std::span<const TensorRef> gradients = args.inputs.first(args.inputs.size() - 1);
  double tiny = loadDouble(args.inputs.back(), 0), total = 0;
  std::atomic<double> largest = 0;
  std::atomic<int64_t> nonFinite = 0, small = 0;
  for (const TensorRef &gradient : gradients) {
    total += static_cast<double>(gradient.elems());
    dispatchFloat(gradient.dtype, [&]<typename T>() {
      const T *x = gradient.as<T>();
      parallelFor(gradient.elems(), kGrain, [&](int64_t begin, int64_t end) {
        double most = 0;
        int64_t bad = 0, below = 0;
        for (int64_t i = begin; i < end; ++i) {
          double size = std::fabs(static_cast<double>(load(x[i])));
          most = size > most ? size : most;
          bad += !(size <= std::numeric_limits<double>::max());
          below += size < tiny;
        }
        double before = largest.load();
        while (most > before && !largest.compare_exchange_weak(before, most)) {
        }
        nonFinite += bad;
        small += below;
      });
    });
  }
  storeScalar(args.outputs[0], norm(NormOrder(spec), gradients, args.workspace));
  storeScalar(args.outputs[1], largest);
  *args.outputs[2].as<int64_t>() = nonFinite;
  storeScalar(args.outputs[3], static_cast<double>(small) / total);
  return Status::success();
}

/// y[i] = f(x[i]); a gradient keeps its type.
template <typename Make> void mapGradients(const KernelArgs &args, size_t count, Make make) {
  for (size_t k = 0; k < count; ++k)
    dispatchFloat(args.outputs[k].dtype, [&]<typename T>() {
      const T *x = args.inputs[k].as<T>();
      T *y = args.outputs[k].as<T>();
      auto f = make(Compute<T>());
      parallelFor(args.outputs[k].elems(), kGrain, [=](int64_t begin, int64_t end) {
        RECAST_ELEMENTWISE_LOOP
        for (int64_t i = begin; i < end; ++i)
          y[i] = roundTo<T>(f(load(x[i])));
      });
    });
}

/// As torch.nn.utils.clip_grad_norm_. A norm of NaN makes every gradient NaN; one of infinity makes it 0 or NaN.
Status runClipGradNorm(const StepSpec &spec, const KernelArgs &args) {
  size_t count = args.inputs.size() - 1;
  double total = norm(NormOrder(spec), args.inputs.first(count), args.workspace);
  double factor = loadDouble(args.inputs[count], 0) / (total + 1e-6);
  if (factor > 1)
    factor = 1;
  mapGradients(args, count, [factor]<typename C>(C) { return [f = static_cast<C>(factor)](C g) { return g * f; }; });
  storeScalar(args.outputs[count], total);
  return Status::success();
}

/// NaN stays NaN.
Status runClipGradValue(const StepSpec &spec, const KernelArgs &args) {
  size_t count = args.inputs.size() - 1;
  double bound = loadDouble(args.inputs[count], 0);
  mapGradients(args, count, [bound]<typename C>(C) {
    return [b = static_cast<C>(bound)](C g) { return g < -b ? -b : g > b ? b : g; };
  });
  return Status::success();
}

/// Inputs: found_inf loss_scale good_steps growth backoff interval min max hysteresis_left? hysteresis?. As torch's
/// GradScaler, growth that would overflow is not taken; bounds hold for what changes.
Status runUpdateLossScale(const StepSpec &spec, const KernelArgs &args) {
  float scale = *args.inputs[1].as<float>();
  int64_t goodSteps = *args.inputs[2].as<int64_t>();
  bool hasHysteresis = present(args.inputs, 8);
  int64_t left = hasHysteresis ? *args.inputs[8].as<int64_t>() : 1;
  auto times = [&](size_t factor) {
    return static_cast<float>(static_cast<double>(scale) * loadDouble(args.inputs[factor], 0));
  };
  if (*args.inputs[0].as<bool>()) {
    left = std::max<int64_t>(left - 1, 0);
    if (left == 0)
      scale = std::max(times(4), static_cast<float>(loadDouble(args.inputs[6], 0)));
    goodSteps = 0;
  } else if (++goodSteps == loadIndex(args.inputs[5], 0)) {
    if (float grown = times(3); std::isfinite(grown))
      scale = std::min(grown, static_cast<float>(loadDouble(args.inputs[7], 0)));
    left = hasHysteresis ? loadIndex(args.inputs[9], 0) : left;
    goodSteps = 0;
  }
  *args.outputs[0].as<float>() = scale;
  *args.outputs[1].as<int64_t>() = goodSteps;
  if (hasHysteresis)
    *args.outputs[2].as<int64_t>() = left;
  return Status::success();
}

/// Every input but the last `trailing` is a float.
template <size_t trailing> std::string refuse(const StepSpec &spec) {
  for (size_t k = 0; k + trailing < spec.inputs.size(); ++k)
    if (!isFloat(spec.inputs[k].dtype))
      return unsupported(spec.inputs[k].dtype);
  return "";
}
std::string refuseUpdateLossScale(const StepSpec &spec) {
  bool hasHysteresis = present(spec.inputs, 8);
  bool expected = spec.inputs.size() == (hasHysteresis ? 10 : 8) && spec.inputs[0].dtype == DType::Bool &&
                  spec.inputs[1].dtype == DType::F32 && spec.inputs[2].dtype == DType::I64 &&
                  (!hasHysteresis || spec.inputs[8].dtype == DType::I64);
  return expected ? "" : "it takes found_inf bool, loss_scale f32, good_steps i64, five scalars, and two i64 or none";
}

} // namespace

std::span<const Entry> scalingEntries() {
  static const Entry entries[] = {
      {"recast", "scale_loss", 1, 1, runScaleLoss, nullptr, refuse<1>, pairs<InPlace{0, 0}>},
      {"recast", "unscale", 1, 1, runUnscale, nullptr, refuse<1>, sameNumber},
      {"recast", "check_finite", 1, 1, runCheckFinite, nullptr, refuse<0>},
      {"recast", "grad_norm", 1, 1, runGradNorm, normWorkspace<0>, refuse<0>},
      {"recast", "grad_stats", 1, 1, runGradStats, normWorkspace<1>, refuse<1>},
      {"recast", "clip_grad_norm", 1, 1, runClipGradNorm, normWorkspace<1>, refuse<1>, sameNumber},
      {"recast", "clip_grad_value", 1, 1, runClipGradValue, nullptr, refuse<1>, sameNumber},
      {"recast", "update_loss_scale", 1, 1, runUpdateLossScale, nullptr, refuseUpdateLossScale,
       pairs<InPlace{0, 1}, InPlace{1, 2}, InPlace{2, 8}>},
  };
  return entries;
}

} // namespace recast::reference
