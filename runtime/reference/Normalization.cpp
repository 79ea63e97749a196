#include "runtime/reference/NormalizationKernels.h"
#include <cstring>

namespace recast::reference {
namespace {

/// InstanceNormalization and GroupNormalization: statistics over runs of X [N, C, d1, ...] that are contiguous.
/// `groups` runs for each n; scale and bias have one element a channel, or one a group.
Status normalizeGroups(const StepSpec &spec, const KernelArgs &args, int64_t groups, bool perGroup) {
  const TensorRef &x = args.inputs[0], &scale = args.inputs[1], &bias = args.inputs[2], &y = args.outputs[0];
  if (x.rank() < 2 || groups < 1 || x.dims[1] % groups)
    return stepError(spec, "channels do not divide into " + std::to_string(groups) + " groups");
  int64_t channels = x.dims[1] / groups, inner = product(x.dims, 2, x.rank()), count = channels * inner;
  int64_t parameters = perGroup ? groups : x.dims[1];
  if (scale.elems() != parameters || bias.elems() != parameters)
    return stepError(spec, "scale and bias need " + std::to_string(parameters) + " elements");
  double epsilon = spec.attrs.getFloat("epsilon", 1e-5);
  dispatchFloat(x.dtype, [&]<typename T>() {
    parallelFor(x.dims[0] * groups, grainFor(3 * count), [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        Moments moments = momentsOf(x.as<T>() + run * count, count);
        double inverse = 1 / std::sqrt(moments.variance + epsilon);
        for (int64_t c = 0; c < channels; ++c) {
          int64_t group = run % groups, parameter = perGroup ? group : group * channels + c;
          double factor = loadDouble(scale, parameter) * inverse, shift = loadDouble(bias, parameter);
          const T *from = x.as<T>() + run * count + c * inner;
          T *to = y.as<T>() + run * count + c * inner;
          RECAST_ELEMENTWISE_LOOP
          for (int64_t i = 0; i < inner; ++i)
            to[i] = roundTo<T>((load(from[i]) - moments.mean) * factor + shift);
        }
      }
    });
  });
  return Status::success();
}

Status runInstanceNorm(const StepSpec &spec, const KernelArgs &args) {
  return normalizeGroups(spec, args, args.inputs[0].rank() > 1 ? args.inputs[0].dims[1] : 0, false);
}

Status runGroupNorm(const StepSpec &spec, const KernelArgs &args) {
  return normalizeGroups(spec, args, spec.attrs.getInt("num_groups", 0), spec.version < 21);
}

/// x / |x|_p along the axis; 0 where the norm is 0.
Status runLpNorm(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  int64_t axis = normalizeAxis(spec.attrs.getInt("axis", -1), x.rank());
  if (axis < 0)
    return stepError(spec, "axis is outside the rank " + std::to_string(x.rank()));
  bool absolute = spec.attrs.getInt("p", 2) == 1;
  int64_t size = x.dims[axis], inner = product(x.dims, axis + 1, x.rank());
  dispatchFloat(x.dtype, [&]<typename T>() {
    parallelFor(size ? x.elems() / size : 0, grainFor(2 * size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t base = i / inner * size * inner + i % inner;
        const T *from = x.as<T>() + base;
        T *to = y.as<T>() + base;
        double norm = 0;
        for (int64_t k = 0; k < size; ++k) {
          double value = load(from[k * inner]);
          norm += absolute ? std::fabs(value) : value * value;
        }
        norm = absolute ? norm : std::sqrt(norm);
        for (int64_t k = 0; k < size; ++k)
          to[k * inner] = roundTo<T>(norm == 0 ? 0.0 : load(from[k * inner]) / norm);
      }
    });
  });
  return Status::success();
}

std::string refusesLpNorm(const StepSpec &spec) {
  int64_t p = spec.attrs.getInt("p", 2);
  return p == 1 || p == 2 ? "" : "p = " + std::to_string(p) + " is not supported";
}

/// x / (bias + alpha / size * sum of squares over `size` neighbouring channels)^beta.
Status runLrn(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  int64_t size = spec.attrs.getInt("size", 1);
  if (x.rank() < 2 || size < 1)
    return stepError(spec, "needs two dimensions and a size of at least 1");
  double alpha = spec.attrs.getFloat("alpha", 1e-4), beta = spec.attrs.getFloat("beta", 0.75);
  double bias = spec.attrs.getFloat("bias", 1.0);
  int64_t channels = x.dims[1], inner = product(x.dims, 2, x.rank());
  dispatchFloat(x.dtype, [&]<typename T>() {
    parallelFor(x.elems(), grainFor(size + 16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t c = i / inner % channels;
        int64_t first = std::max<int64_t>(0, c - (size - 1) / 2), last = std::min(channels - 1, c + size / 2);
        double sum = 0;
        for (int64_t k = first; k <= last; ++k) {
          double value = load(x.as<T>()[i + (k - c) * inner]);
          sum += value * value;
        }
        double divisor = std::pow(bias + alpha / static_cast<double>(size) * sum, beta);
        y.as<T>()[i] = roundTo<T>(load(x.as<T>()[i]) / divisor);
      }
    });
  });
  return Status::success();
}

/// (x - mean) / (std + 1e-9) over the axes, as the operator's function body has it.
Status runMeanVarianceNorm(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  static constexpr int64_t kDefaultAxes[] = {0, 2, 3};
  std::span<const int64_t> axes = spec.attrs.intsView("axes");
  if (!spec.attrs.has("axes"))
    axes = kDefaultAxes;
  std::array<bool, kMaxRank> reduced{};
  for (int64_t given : axes) {
    int64_t axis = normalizeAxis(given, x.rank());
    if (axis < 0)
      return stepError(spec, "axis " + std::to_string(given) + " is outside the rank " + std::to_string(x.rank()));
    reduced[axis] = true;
  }
  // Two loop nests over x: one over the kept dimensions, one over the reduced ones.
  IndexArray strides = denseStrides(x.dims), keptDims{}, reducedDims{};
  for (int64_t d = 0; d < x.rank(); ++d) {
    keptDims[d] = reduced[d] ? 1 : x.dims[d];
    reducedDims[d] = reduced[d] ? x.dims[d] : 1;
  }
  size_t rank = static_cast<size_t>(x.rank());
  StridedLoop<1> kept(std::span(keptDims).first(rank)), inside(std::span(reducedDims).first(rank));
  kept.setStrides(0, strides);
  inside.setStrides(0, strides);
  inside.coalesce();
  int64_t count = inside.count();
  if (count == 0)
    return Status::success();
  dispatchFloat(x.dtype, [&]<typename T>() {
    auto eachElement = [&](int64_t base, auto &&body) {
      inside.walk(0, count, [&](const std::array<int64_t, 1> &at, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
          body(base + at[0] + i * inside.inner(0));
      });
    };
    auto normalize = [&](int64_t base) {
      double mean = 0, variance = 0;
      eachElement(base, [&](int64_t i) { mean += load(x.as<T>()[i]); });
      mean /= static_cast<double>(count);
      eachElement(base, [&](int64_t i) {
        double difference = load(x.as<T>()[i]) - mean;
        variance += difference * difference;
      });
      double divisor = std::sqrt(variance / static_cast<double>(count)) + 1e-9;
      eachElement(base, [&](int64_t i) { y.as<T>()[i] = roundTo<T>((load(x.as<T>()[i]) - mean) / divisor); });
    };
    parallelFor(kept.count(), grainFor(3 * count), [&](int64_t begin, int64_t end) {
      kept.walk(begin, end, [&](const std::array<int64_t, 1> &at, int64_t n) {
        for (int64_t i = 0; i < n; ++i)
          normalize(at[0] + i * kept.inner(0));
      });
    });
  });
  return Status::success();
}

} // namespace

std::span<const Entry> normalizationEntries() {
  static constexpr Entry entries[] = {
      {"", "BatchNormalization", 7, kNewest, runBatchNorm, nullptr, refusesBatchNorm,
       pairs<InPlace{0, 0}, InPlace{1, 3}, InPlace{2, 4}>},
      {"", "LayerNormalization", 17, kNewest, runLayerNorm, nullptr, refusesLayerNorm, pairs<InPlace{0, 0}>},
      {"", "RMSNormalization", 23, kNewest, runRmsNorm, nullptr, refusesLayerNorm, pairs<InPlace{0, 0}>},
      {"", "GroupNormalization", 18, kNewest, runGroupNorm, nullptr, nullptr, pairs<InPlace{0, 0}>},
      {"", "InstanceNormalization", 1, kNewest, runInstanceNorm, nullptr, nullptr, pairs<InPlace{0, 0}>},
      {"", "LpNormalization", 1, kNewest, runLpNorm, nullptr, refusesLpNorm, pairs<InPlace{0, 0}>},
      {"", "LRN", 1, kNewest, runLrn},
      {"", "MeanVarianceNormalization", 9, kNewest, runMeanVarianceNorm, nullptr, nullptr, pairs<InPlace{0, 0}>},
      {"recast", "layer_norm_grad", 1, kNewest, runLayerNormGrad, layerNormGradWorkspaceBytes, refusesLayerNormGrad},
      {"recast", "rms_norm_grad", 1, kNewest, runRmsNormGrad, layerNormGradWorkspaceBytes, refusesLayerNormGrad},
      {"recast", "batch_norm_grad", 1, kNewest, runBatchNormGrad, nullptr, nullptr,
       pairs<InPlace{0, 0}, InPlace{0, 1}>},
  };
  return entries;
}

} // namespace recast::reference
