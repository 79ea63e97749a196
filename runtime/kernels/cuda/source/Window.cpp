#include "runtime/kernels/cuda/source/Window.h"
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Reduce.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

int64_t elemsOf(const Axes &axes) { return axes[0] * axes[1] * axes[2]; }
/// The three coordinates of an element of a plane.
Axes coordinates(int64_t i, const Axes &sizes) {
  return {i / sizes[2] / sizes[1], i / sizes[2] % sizes[1], i % sizes[2]};
}
template <typename T> double real(T value) { return static_cast<double>(load(value)); }

/// Calls tap(k, i) for each tap k of output `o` that lies inside the input, with the input's element i of the plane.
template <typename Tap> void forTaps(const WindowArgs &w, const Axes &o, Tap tap) {
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd)
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh)
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        int64_t id = o[0] * w.stride[0] - w.padBegin[0] + kd * w.dilation[0];
        int64_t ih = o[1] * w.stride[1] - w.padBegin[1] + kh * w.dilation[1];
        int64_t iw = o[2] * w.stride[2] - w.padBegin[2] + kw * w.dilation[2];
        if (id >= 0 && id < w.in[0] && ih >= 0 && ih < w.in[1] && iw >= 0 && iw < w.in[2])
          tap((kd * w.kernel[1] + kh) * w.kernel[2] + kw, (id * w.in[1] + ih) * w.in[2] + iw);
      }
}

/// The output whose tap k is input i along an axis, or -1.
int64_t outputAt(const WindowArgs &w, int axis, int64_t i, int64_t k) {
  int64_t t = i + w.padBegin[axis] - k * w.dilation[axis];
  return t >= 0 && t % w.stride[axis] == 0 && t / w.stride[axis] < w.out[axis] ? t / w.stride[axis] : -1;
}
/// Calls tap(k, o) for each output o of a plane whose tap k is input `i`.
template <typename Tap> void forOutputs(const WindowArgs &w, const Axes &i, Tap tap) {
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd)
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh)
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        int64_t od = outputAt(w, 0, i[0], kd), oh = outputAt(w, 1, i[1], kh), ow = outputAt(w, 2, i[2], kw);
        if (od >= 0 && oh >= 0 && ow >= 0)
          tap((kd * w.kernel[1] + kh) * w.kernel[2] + kw, (od * w.out[1] + oh) * w.out[2] + ow);
      }
}

template <typename T> void conv(const ConvolutionArgs &a) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out), taps = elemsOf(w.kernel);
  int64_t channels = a.c / a.group, perGroup = a.m / a.group;
  for (int64_t i = gridThread(); i < a.n * a.m * out; i += gridThreads()) {
    Axes o = coordinates(i % out, w.out);
    int64_t m = i / out % a.m, n = i / out / a.m;
    double sum = a.bias ? real(static_cast<const T *>(a.bias)[m]) : 0;
    const T *x = static_cast<const T *>(a.a) + (n * a.c + m / perGroup * channels) * in;
    const T *weights = static_cast<const T *>(a.b) + m * channels * taps;
    for (int64_t c = 0; c < channels; ++c, x += in, weights += taps)
      forTaps(w, o, [&](int64_t k, int64_t at) { sum += real(weights[k]) * real(x[at]); });
    static_cast<T *>(a.result)[i] = roundTo<T>(sum);
  }
}

template <typename T> void convGradInput(const ConvolutionArgs &a) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out), taps = elemsOf(w.kernel);
  int64_t channels = a.c / a.group, perGroup = a.m / a.group;
  for (int64_t i = gridThread(); i < a.n * a.c * in; i += gridThreads()) {
    Axes at = coordinates(i % in, w.in);
    int64_t c = i / in % a.c, n = i / in / a.c, first = c / channels * perGroup;
    double sum = a.bias ? real(static_cast<const T *>(a.bias)[c]) : 0;
    const T *dy = static_cast<const T *>(a.a) + (n * a.m + first) * out;
    const T *weights = static_cast<const T *>(a.b) + (first * channels + c % channels) * taps;
    for (int64_t m = 0; m < perGroup; ++m, dy += out, weights += channels * taps)
      forOutputs(w, at, [&](int64_t k, int64_t o) { sum += real(weights[k]) * real(dy[o]); });
    static_cast<T *>(a.result)[i] = roundTo<T>(sum);
  }
}

/// One block a weight.
template <typename T> void convGradWeight(const ConvolutionArgs &a) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out), taps = elemsOf(w.kernel);
  int64_t channels = a.c / a.group, perGroup = a.m / a.group;
  for (int64_t weight = blockIndex(); weight < a.m * channels * taps; weight += gridBlocks()) {
    Axes k = coordinates(weight % taps, w.kernel);
    int64_t m = weight / taps / channels, c = m / perGroup * channels + weight / taps % channels;
    double sum = 0;
    for (int64_t i = threadIndex(); i < a.n * out; i += blockThreads()) {
      Axes o = coordinates(i % out, w.out), at;
      bool isInside = true;
      for (int d = 0; d < 3; ++d) {
        at[d] = o[d] * w.stride[d] - w.padBegin[d] + k[d] * w.dilation[d];
        isInside &= at[d] >= 0 && at[d] < w.in[d];
      }
      int64_t n = i / out;
      if (isInside)
        sum += real(static_cast<const T *>(a.b)[(n * a.m + m) * out + i % out]) *
               real(static_cast<const T *>(a.a)[(n * a.c + c) * in + (at[0] * w.in[1] + at[1]) * w.in[2] + at[2]]);
    }
    sum = sumBlock(sum);
    if (threadIndex() == 0)
      static_cast<T *>(a.result)[weight] = roundTo<T>(sum);
  }
}

template <typename T> void addBias(const BiasArgs &a) {
  T *y = static_cast<T *>(a.y);
  for (int64_t i = gridThread(); i < a.planes * a.elems; i += gridThreads())
    y[i] = roundTo<T>(real(y[i]) + real(static_cast<const T *>(a.bias)[i / a.elems % a.channels]));
}

/// Elements that an average is divided by along one axis: taps inside the input, or inside input and padding.
int64_t averaged(const WindowArgs &w, int axis, int64_t o, bool countsPadding) {
  int64_t start = o * w.stride[axis] - w.padBegin[axis], count = 0;
  for (int64_t k = 0; k < w.kernel[axis]; ++k) {
    int64_t i = start + k * w.dilation[axis];
    count += countsPadding ? i < w.in[axis] + w.padEnd[axis] : i >= 0 && i < w.in[axis];
  }
  return count;
}
double windowElems(const WindowArgs &w, const Axes &o, bool countsPadding) {
  int64_t count = 1;
  for (int d = 0; d < 3; ++d)
    count *= averaged(w, d, o[d], countsPadding);
  return static_cast<double>(count);
}

/// The first maximum counts, and NaN is larger than any number, so that it reaches the loss.
bool beats(float value, float best) { return value > best || (value != value && best == best); }

/// The first of the window's maxima: its element of the plane, -1 where the window is all padding.
template <typename T> int64_t winnerOf(const WindowArgs &w, const Axes &o, const T *x) {
  int64_t winner = -1;
  float best = 0;
  forTaps(w, o, [&](int64_t, int64_t at) {
    float value = static_cast<float>(load(x[at]));
    if (winner < 0 || beats(value, best)) {
      winner = at;
      best = value;
    }
  });
  return winner;
}

double raised(double x, double p) { return p == 2 ? x * x : p == 1 ? absolute(x) : power(absolute(x), p); }
double rooted(double x, double p) { return p == 2 ? squareRoot(x) : p == 1 ? x : power(x, 1 / p); }

template <typename T> void pool(const PoolArgs &a) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out);
  for (int64_t i = gridThread(); i < a.planes * out; i += gridThreads()) {
    Axes o = coordinates(i % out, w.out);
    int64_t plane = i / out;
    const T *x = static_cast<const T *>(a.x) + plane * in;
    T *y = static_cast<T *>(a.y);
    if (a.kind == PoolKind::Max) {
      int64_t winner = winnerOf(w, o, x);
      y[i] = winner < 0 ? roundTo<T>(-std::numeric_limits<float>::infinity()) : x[winner];
      if (!a.indices)
        continue;
      winner = winner < 0 ? 0 : winner;
      Axes at = coordinates(winner, w.in);
      a.indices[i] = plane * in + (a.isColumnMajor ? at[0] + w.in[0] * (at[1] + w.in[1] * at[2]) : winner);
      continue;
    }
    bool isAverage = a.kind == PoolKind::Average;
    double sum = 0;
    forTaps(w, o, [&](int64_t, int64_t at) { sum += isAverage ? real(x[at]) : raised(real(x[at]), a.p); });
    y[i] = roundTo<T>(isAverage ? sum / windowElems(w, o, a.countsPadding) : rooted(sum, a.p));
  }
}

template <typename T> void globalPool(const GlobalPoolArgs &a) {
  const T *x = static_cast<const T *>(a.x) + blockIndex() * a.elems;
  double sum = a.kind == PoolKind::Max ? -std::numeric_limits<double>::infinity() : 0;
  for (int64_t i = threadIndex(); i < a.elems; i += blockThreads())
    sum = a.kind == PoolKind::Max       ? joinMax(sum, real(x[i]))
          : a.kind == PoolKind::Average ? sum + real(x[i])
                                        : sum + raised(real(x[i]), a.p);
  sum = a.kind == PoolKind::Max ? reduceBlock(sum, joinMax<double>) : sumBlock(sum);
  if (threadIndex() == 0)
    static_cast<T *>(a.y)[blockIndex()] = roundTo<T>(a.kind == PoolKind::Max       ? sum
                                                     : a.kind == PoolKind::Average ? sum / static_cast<double>(a.elems)
                                                                                   : rooted(sum, a.p));
}

template <typename T> void maxPoolWinners(const PoolGradArgs &a) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out);
  for (int64_t i = gridThread(); i < a.planes * out; i += gridThreads())
    a.winners[i] = winnerOf(w, coordinates(i % out, w.out), static_cast<const T *>(a.x) + i / out * in);
}

/// dx[i] = the sum of share(k, o) over the outputs that read it.
template <typename T, typename Share> void gatherGradient(const PoolGradArgs &a, Share share) {
  const WindowArgs &w = a.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out);
  for (int64_t i = gridThread(); i < a.planes * in; i += gridThreads()) {
    double sum = 0;
    forOutputs(w, coordinates(i % in, w.in), [&](int64_t, int64_t o) { sum += share(i / in * out + o, o, i % in); });
    static_cast<T *>(a.dx)[i] = roundTo<T>(sum);
  }
}
template <typename T> void maxPoolGrad(const PoolGradArgs &a) {
  const T *dy = static_cast<const T *>(a.dy);
  gatherGradient<T>(a, [&](int64_t o, int64_t, int64_t i) { return a.winners[o] == i ? real(dy[o]) : 0.0; });
}
template <typename T> void averagePoolGrad(const PoolGradArgs &a) {
  const T *dy = static_cast<const T *>(a.dy);
  gatherGradient<T>(a, [&](int64_t o, int64_t inPlane, int64_t) {
    return real(dy[o]) / windowElems(a.window, coordinates(inPlane, a.window.out), a.countsPadding);
  });
}

/// Calls body(i) for the elements of the block's channel.
template <typename Body> void forChannel(int64_t batch, int64_t channels, int64_t inner, Body body) {
  for (int64_t i = threadIndex(); i < batch * inner; i += blockThreads())
    body((i / inner * channels + blockIndex()) * inner + i % inner);
}

/// Mean and population variance of the block's channel, in two passes.
template <typename T, typename Args> void channelMoments(const Args &a, double &mean, double &variance) {
  const T *x = static_cast<const T *>(a.x);
  double count = static_cast<double>(a.batch * a.inner), sum = 0, squares = 0;
  forChannel(a.batch, a.channels, a.inner, [&](int64_t i) { sum += real(x[i]); });
  mean = sumBlock(sum) / count;
  forChannel(a.batch, a.channels, a.inner, [&](int64_t i) {
    double difference = real(x[i]) - mean;
    squares += difference * difference;
  });
  variance = sumBlock(squares) / count;
}

/// The block's channel of a parameter.
double parameter(const void *values, int type) {
  auto dtype = static_cast<DType>(type);
  return loadScalar(static_cast<const char *>(values) + blockIndex() * static_cast<int64_t>(byteSize(dtype)), dtype);
}
void storeParameter(void *values, int type, double value) {
  auto dtype = static_cast<DType>(type);
  storeScalar(static_cast<char *>(values) + blockIndex() * static_cast<int64_t>(byteSize(dtype)), dtype, value);
}

template <typename T> void batchNorm(const BatchNormArgs &a) {
  double mean, variance;
  if (a.trains) {
    channelMoments<T>(a, mean, variance);
  } else {
    mean = parameter(a.mean, a.meanType);
    variance = parameter(a.variance, a.varianceType);
  }
  double factor = parameter(a.scale, a.scaleType) / squareRoot(variance + a.epsilon);
  double bias = parameter(a.bias, a.biasType);
  forChannel(a.batch, a.channels, a.inner, [&](int64_t i) {
    static_cast<T *>(a.y)[i] = roundTo<T>((real(static_cast<const T *>(a.x)[i]) - mean) * factor + bias);
  });
  if (threadIndex() == 0 && a.newMean)
    storeParameter(a.newMean, a.newMeanType, parameter(a.mean, a.meanType) * a.momentum + mean * (1 - a.momentum));
  if (threadIndex() == 0 && a.newVariance)
    storeParameter(a.newVariance, a.newVarianceType,
                   parameter(a.variance, a.varianceType) * a.momentum + variance * (1 - a.momentum));
}

/// dx = scale / std * (dy - mean(dy) - xhat * mean(dy * xhat)).
template <typename T> void batchNormGrad(const BatchNormGradArgs &a) {
  double mean, variance, sum = 0, dot = 0, count = static_cast<double>(a.batch * a.inner);
  channelMoments<T>(a, mean, variance);
  double inverse = 1 / squareRoot(variance + a.epsilon);
  const T *x = static_cast<const T *>(a.x), *dy = static_cast<const T *>(a.dy);
  forChannel(a.batch, a.channels, a.inner, [&](int64_t i) {
    sum += real(dy[i]);
    dot += real(dy[i]) * ((real(x[i]) - mean) * inverse);
  });
  sum = sumBlock(sum), dot = sumBlock(dot);
  if (a.dx) {
    double by = parameter(a.scale, a.scaleType) * inverse, slope = inverse * (dot / count);
    forChannel(a.batch, a.channels, a.inner, [&](int64_t i) {
      static_cast<T *>(a.dx)[i] = roundTo<T>(by * (real(dy[i]) - sum / count - (real(x[i]) - mean) * slope));
    });
  }
  if (threadIndex() == 0 && a.dscale)
    storeParameter(a.dscale, a.dscaleType, dot);
  if (threadIndex() == 0 && a.dbias)
    storeParameter(a.dbias, a.dbiasType, sum);
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(windowKernels,
  RECAST_KERNEL_BY_FLOAT(conv, kThreads, ConvolutionArgs, conv)
  RECAST_KERNEL_BY_FLOAT(conv_grad_input, kThreads, ConvolutionArgs, convGradInput)
  RECAST_KERNEL_BY_FLOAT(conv_grad_weight, kThreads, ConvolutionArgs, convGradWeight)
  RECAST_KERNEL_BY_FLOAT(add_bias, kThreads, BiasArgs, addBias)
  RECAST_KERNEL_BY_FLOAT(pool, kThreads, PoolArgs, pool)
  RECAST_KERNEL_BY_FLOAT(global_pool, kThreads, GlobalPoolArgs, globalPool)
  RECAST_KERNEL_BY_FLOAT(max_pool_winners, kThreads, PoolGradArgs, maxPoolWinners)
  RECAST_KERNEL_BY_FLOAT(max_pool_grad, kThreads, PoolGradArgs, maxPoolGrad)
  RECAST_KERNEL_BY_FLOAT(average_pool_grad, kThreads, PoolGradArgs, averagePoolGrad)
  RECAST_KERNEL_BY_FLOAT(batch_norm, kThreads, BatchNormArgs, batchNorm)
  RECAST_KERNEL_BY_FLOAT(batch_norm_grad, kThreads, BatchNormGradArgs, batchNormGrad))
// clang-format on

} // namespace recast::cuda
