// BatchNormalization and its gradient: statistics over all axes but the second. X is [N, C, d1, ...].
#include "runtime/reference/NormalizationKernels.h"

namespace recast::reference {
namespace {

struct Layout {
  int64_t batch, channels, inner;
  explicit Layout(std::span<const int64_t> dims)
      : batch(dims[0]), channels(dims.size() > 1 ? dims[1] : 1),
        inner(product(dims, 2, static_cast<int64_t>(dims.size()))) {}
  int64_t count() const { return batch * inner; }

  /// Calls body(offset of a contiguous run of `inner` elements) for each n of a channel.
  template <typename Body> void eachRun(int64_t channel, Body &&body) const {
    for (int64_t n = 0; n < batch; ++n)
      body((n * channels + channel) * inner);
  }
};

template <typename T> Moments channelMoments(const T *x, const Layout &layout, int64_t channel) {
  Moments moments;
  double count = static_cast<double>(layout.count());
  layout.eachRun(channel, [&](int64_t at) {
    moments.mean += laneSum(layout.inner, [&](int64_t i) -> double { return load(x[at + i]); });
  });
  moments.mean /= count;
  layout.eachRun(channel, [&](int64_t at) {
    moments.variance += laneSum(layout.inner, [&](int64_t i) {
      double difference = load(x[at + i]) - moments.mean;
      return difference * difference;
    });
  });
  moments.variance /= count;
  return moments;
}

bool trains(const StepSpec &spec) { return spec.version >= 14 && spec.attrs.getInt("training_mode", 0) != 0; }

/// Scale, bias, mean and variance (those that are there) need one element a channel.
Status checkParameters(const StepSpec &spec, std::span<const TensorRef> parameters, const Layout &layout) {
  for (const TensorRef &parameter : parameters)
    if (parameter.elems() != layout.channels)
      return stepError(spec, std::to_string(parameter.elems()) + " parameters for " + std::to_string(layout.channels) +
                                 " channels");
  return Status::success();
}

void storeDouble(const TensorRef &tensor, int64_t i, double value) {
  dispatchFloat(tensor.dtype, [&]<typename T>() { tensor.as<T>()[i] = roundTo<T>(value); });
}

} // namespace

std::string refusesBatchNorm(const StepSpec &spec) {
  if (spec.version < 9 && spec.attrs.getInt("spatial", 1) == 0)
    return "spatial = 0 is not supported";
  for (size_t i = 1; i < spec.outputs.size(); ++i)
    if (spec.outputs[i].present() && !trains(spec))
      return spec.version < 14 ? "training form (more than one output) of version " + std::to_string(spec.version)
                               : "running statistics need training_mode = 1";
  return "";
}

/// Y, and in training_mode the running mean and (population) variance: old * momentum + batch * (1 - momentum).
Status runBatchNorm(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  if (x.rank() < 1)
    return stepError(spec, "the input needs at least one dimension");
  Layout layout(x.dims);
  if (Status status = checkParameters(spec, args.inputs.subspan(1, 4), layout); !status.ok())
    return status;
  double epsilon = spec.attrs.getFloat("epsilon", 1e-5), momentum = spec.attrs.getFloat("momentum", 0.9);
  bool training = trains(spec);
  dispatchFloat(x.dtype, [&]<typename T>() {
    using A = Arithmetic<T>;
    parallelFor(layout.channels, grainFor(layout.count()), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        Moments moments = training ? channelMoments(x.as<T>(), layout, c)
                                   : Moments{loadDouble(args.inputs[3], c), loadDouble(args.inputs[4], c)};
        double factor = loadDouble(args.inputs[1], c) / std::sqrt(moments.variance + epsilon);
        double bias = loadDouble(args.inputs[2], c);
        layout.eachRun(c, [&](int64_t at) {
          const A mean = static_cast<A>(moments.mean), by = static_cast<A>(factor), shift = static_cast<A>(bias);
          RECAST_ELEMENTWISE_LOOP
          for (int64_t i = at; i < at + layout.inner; ++i)
            y.as<T>()[i] = roundTo<T>((load(x.as<T>()[i]) - mean) * by + shift);
        });
        for (size_t k = 0; k < 2 && training; ++k)
          if (present(args.outputs, 1 + k))
            storeDouble(args.outputs[1 + k], c,
                        loadDouble(args.inputs[3 + k], c) * momentum +
                            (k ? moments.variance : moments.mean) * (1 - momentum));
      }
    });
  });
  return Status::success();
}

/// With batch statistics: dx = scale / std * (dy - mean(dy) - xhat * mean(dy * xhat)).
Status runBatchNormGrad(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &dy = args.inputs[0], &x = args.inputs[1], &scale = args.inputs[2];
  if (x.rank() < 1)
    return stepError(spec, "the input needs at least one dimension");
  Layout layout(x.dims);
  if (Status status = checkParameters(spec, args.inputs.subspan(2, 1), layout); !status.ok())
    return status;
  double epsilon = spec.attrs.getFloat("epsilon", 1e-5), count = static_cast<double>(layout.count());
  dispatchFloat(x.dtype, [&]<typename T>() {
    using A = Arithmetic<T>;
    const T *from = x.as<T>(), *gradient = dy.as<T>();
    parallelFor(layout.channels, grainFor(layout.count()), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        Moments moments = channelMoments(from, layout, c);
        double inverse = 1 / std::sqrt(moments.variance + epsilon), sum = 0, dot = 0;
        layout.eachRun(c, [&](int64_t at) {
          sum += laneSum(layout.inner, [&](int64_t i) -> double { return load(gradient[at + i]); });
          dot += laneSum(layout.inner, [&](int64_t i) {
            return load(gradient[at + i]) * ((load(from[at + i]) - moments.mean) * inverse);
          });
        });
        if (present(args.outputs, 0)) {
          T *dx = args.outputs[0].as<T>();
          const A by = static_cast<A>(loadDouble(scale, c) * inverse), center = static_cast<A>(moments.mean);
          const A mean = static_cast<A>(sum / count), slope = static_cast<A>(inverse * (dot / count));
          layout.eachRun(c, [&](int64_t at) {
            RECAST_ELEMENTWISE_LOOP
            for (int64_t i = at; i < at + layout.inner; ++i)
              dx[i] = roundTo<T>(by * (load(gradient[i]) - mean - (load(from[i]) - center) * slope));
          });
        }
        if (present(args.outputs, 1))
          storeDouble(args.outputs[1], c, dot);
        if (present(args.outputs, 2))
          storeDouble(args.outputs[2], c, sum);
      }
    });
  });
  return Status::success();
}

} // namespace recast::reference
