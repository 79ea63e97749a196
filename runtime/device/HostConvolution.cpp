#include "runtime/device/HostConvolution.h"
#include <vector>

namespace recast::device {
namespace {

int64_t elemsOf(const cuda::Axes &axes) { return axes[0] * axes[1] * axes[2]; }

/// Calls visit(k, i, o) for each tap k of an output position o that lies inside the input, at its position i.
template <typename Visit> void forTaps(const cuda::WindowArgs &w, Visit visit) {
  int64_t o = 0;
  for (int64_t od = 0; od < w.out[0]; ++od)
    for (int64_t oh = 0; oh < w.out[1]; ++oh)
      for (int64_t ow = 0; ow < w.out[2]; ++ow, ++o) {
        int64_t k = 0;
        for (int64_t kd = 0; kd < w.kernel[0]; ++kd)
          for (int64_t kh = 0; kh < w.kernel[1]; ++kh)
            for (int64_t kw = 0; kw < w.kernel[2]; ++kw, ++k) {
              int64_t d = od * w.stride[0] - w.padBegin[0] + kd * w.dilation[0];
              int64_t h = oh * w.stride[1] - w.padBegin[1] + kh * w.dilation[1];
              int64_t v = ow * w.stride[2] - w.padBegin[2] + kw * w.dilation[2];
              if (d >= 0 && d < w.in[0] && h >= 0 && h < w.in[1] && v >= 0 && v < w.in[2])
                visit(k, (d * w.in[1] + h) * w.in[2] + v, o);
            }
      }
}

template <typename T> void convolve(const cuda::ConvolutionCall &call) {
  using enum cuda::ConvolutionResult;
  const cuda::WindowArgs &w = call.window;
  int64_t in = elemsOf(w.in), out = elemsOf(w.out), taps = elemsOf(w.kernel);
  int64_t channels = call.c / call.group, outputs = call.m / call.group;
  int64_t elems = call.of == Output  ? call.n * call.m * out
                  : call.of == Input ? call.n * call.c * in
                                     : call.m * channels * taps;
  std::vector<double> sums(static_cast<size_t>(elems));
  auto *a = static_cast<const T *>(call.a), *b = static_cast<const T *>(call.b);
  auto add = [&](int64_t to, const T &x, const T &y) {
    sums[static_cast<size_t>(to)] += static_cast<double>(x) * static_cast<double>(y);
  };
  for (int64_t n = 0; n < call.n; ++n)
    for (int64_t m = 0; m < call.m; ++m)
      for (int64_t c = 0; c < channels; ++c) {
        int64_t x = (n * call.c + m / outputs * channels + c) * in, y = (n * call.m + m) * out;
        int64_t weights = (m * channels + c) * taps;
        forTaps(w, [&](int64_t k, int64_t i, int64_t o) {
          if (call.of == Output)
            add(y + o, a[x + i], b[weights + k]);
          else if (call.of == Input)
            add(x + i, a[y + o], b[weights + k]);
          else
            add(weights + k, a[x + i], b[y + o]);
        });
      }
  for (int64_t i = 0; i < elems; ++i)
    static_cast<T *>(call.result)[i] = T(sums[static_cast<size_t>(i)]);
}

} // namespace

void hostConvolution(const cuda::ConvolutionCall &call) {
  dispatchFloat(call.type, [&]<typename T>() { convolve<T>(call); });
}

} // namespace recast::device
