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

template <typename T> double sumOfSquares(const T *x, int64_t n) {
  constexpr int64_t lanes = 16;
  double partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int64_t j = 0; j < lanes; ++j) {
      double v = load(x[i + j]);
      partial[j] += v * v;
    }
  double sum = 0;
  for (double p : partial)
    sum += p;
  for (; i < n; ++i)
    sum += static_cast<double>(load(x[i])) * static_cast<double>(load(x[i]));
  return sum;
}

/// The 2-norm over all gradients.
double norm(std::span<const TensorRef> gradients, std::span<std::byte> workspace) {
  auto *partial = reinterpret_cast<double *>(workspace.data()), *end = partial;
  for (const TensorRef &gradient : gradients) {
    int64_t elems = gradient.elems();
    dispatchFloat(gradient.dtype, [&]<typename T>() {
      parallelFor(normBlocks(elems), std::max<int64_t>(kGrain / kNormBlock, 1), [&](int64_t from, int64_t to) {
        for (int64_t b = from; b < to; ++b)
          end[b] = sumOfSquares(gradient.as<T>() + b * kNormBlock, std::min(kNormBlock, elems - b * kNormBlock));
      });
    });
    end += normBlocks(elems);
  }
  double sum = 0;
  for (; partial != end; ++partial)
    sum += *partial;
  return std::sqrt(sum);
}

void storeScalar(const TensorRef &y, double value) {
  dispatchFloat(y.dtype, [&]<typename T>() { *y.as<T>() = roundTo<T>(value); });
}

Status runGradNorm(const StepSpec &spec, const KernelArgs &args) {
  storeScalar(args.outputs[0], norm(args.inputs, args.workspace));
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
  storeScalar(args.outputs[0], norm(gradients, args.workspace));
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
        for (int64_t i = begin; i < end; ++i)
          y[i] = roundTo<T>(f(load(x[i])));
      });
    });
}

/// As torch.nn.utils.clip_grad_norm_. A norm of NaN makes every gradient NaN; one of infinity makes it 0 or NaN.
Status runClipGradNorm(const StepSpec &spec, const KernelArgs &args) {
  size_t count = args.inputs.size() - 1;
  double total = norm(args.inputs.first(count), args.workspace);
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

/// Inputs: found_inf loss_scale good_steps growth backoff interval min max. As torch's GradScaler, growth that would
/// overflow is not taken; the result stays in [min, max].
Status runUpdateLossScale(const StepSpec &spec, const KernelArgs &args) {
  float scale = *args.inputs[1].as<float>();
  int64_t goodSteps = *args.inputs[2].as<int64_t>();
  float low = static_cast<float>(loadDouble(args.inputs[6], 0)),
        high = static_cast<float>(loadDouble(args.inputs[7], 0));
  if (*args.inputs[0].as<bool>()) {
    scale = static_cast<float>(static_cast<double>(scale) * loadDouble(args.inputs[4], 0));
    goodSteps = 0;
  } else if (++goodSteps == loadIndex(args.inputs[5], 0)) {
    float grown = static_cast<float>(static_cast<double>(scale) * loadDouble(args.inputs[3], 0));
    scale = std::isfinite(grown) ? grown : scale;
    goodSteps = 0;
  }
  *args.outputs[0].as<float>() = scale < low ? low : scale > high ? high : scale;
  *args.outputs[1].as<int64_t>() = goodSteps;
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
  bool expected = spec.inputs.size() == 8 && spec.inputs[0].dtype == DType::Bool &&
                  spec.inputs[1].dtype == DType::F32 && spec.inputs[2].dtype == DType::I64;
  return expected ? "" : "it takes found_inf bool, loss_scale f32, good_steps i64 and five scalars";
}

} // namespace

std::span<const Entry> scalingEntries() {
  static const Entry entries[] = {
      {"recast", "scale_loss", 1, 1, runScaleLoss, nullptr, refuse<1>},
      {"recast", "unscale", 1, 1, runUnscale, nullptr, refuse<1>},
      {"recast", "check_finite", 1, 1, runCheckFinite, nullptr, refuse<0>},
      {"recast", "grad_norm", 1, 1, runGradNorm, normWorkspace<0>, refuse<0>},
      {"recast", "grad_stats", 1, 1, runGradStats, normWorkspace<1>, refuse<1>},
      {"recast", "clip_grad_norm", 1, 1, runClipGradNorm, normWorkspace<1>, refuse<1>},
      {"recast", "clip_grad_value", 1, 1, runClipGradValue, nullptr, refuse<1>},
      {"recast", "update_loss_scale", 1, 1, runUpdateLossScale, nullptr, refuseUpdateLossScale},
  };
  return entries;
}

} // namespace recast::reference
