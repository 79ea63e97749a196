#include "runtime/reference/ConvolutionWindow.h"
#include "runtime/reference/Loops.h"

namespace recast::reference {
namespace {

constexpr int64_t kChunk = 256; ///< Elements of a row that are summed on the stack at a time.

int64_t ceilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

/// Along `axis`, the outputs o in [begin, end) whose tap k lies inside the input.
struct Range {
  int64_t begin, end;
};
Range validOutputs(const Window &w, int axis, int64_t k) {
  int64_t shift = k * w.dilation[axis] - w.padBegin[axis];
  int64_t begin = std::max<int64_t>(0, ceilDiv(-shift, w.stride[axis]));
  return {begin, std::min(w.out[axis], ceilDiv(w.in[axis] - shift, w.stride[axis]))};
}

/// The input position of tap k of output o, or -1 if it is padding.
int64_t inputAt(const Window &w, int axis, int64_t o, int64_t k) {
  int64_t i = o * w.stride[axis] - w.padBegin[axis] + k * w.dilation[axis];
  return i < w.in[axis] ? std::max<int64_t>(i, -1) : -1;
}

/// The output whose tap k is input i, or -1 if there is none.
int64_t outputAt(const Window &w, int axis, int64_t i, int64_t k) {
  int64_t t = i + w.padBegin[axis] - k * w.dilation[axis];
  return t >= 0 && t % w.stride[axis] == 0 && t / w.stride[axis] < w.out[axis] ? t / w.stride[axis] : -1;
}

template <typename T> double real(T value) { return static_cast<double>(load(value)); }

// y[n,m,o] = bias[m] + sum over c of the group and taps k of w[m,c,k] x[n,c,o s - p + k d]

template <typename T> void convolve(const Convolution &conv, const T *x, const T *w, const T *bias, T *y) {
  const Window &win = conv.window;
  int64_t channels = conv.c / conv.group, perGroup = conv.m / conv.group;
  int64_t rowsPerPlane = win.out[0] * win.out[1], rows = conv.n * conv.m * rowsPerPlane;
  parallelFor(rows, grainFor(win.out[2] * channels * win.kernelElems()), [&](int64_t first, int64_t last) {
    double sums[kChunk];
    for (int64_t row = first; row < last; ++row) {
      int64_t plane = row / rowsPerPlane, n = plane / conv.m, m = plane % conv.m;
      int64_t od = row % rowsPerPlane / win.out[1], oh = row % win.out[1];
      for (int64_t from = 0; from < win.out[2]; from += kChunk) {
        int64_t to = std::min(from + kChunk, win.out[2]);
        std::fill_n(sums, to - from, bias ? real(bias[m]) : 0.0);
        for (int64_t c = 0; c < channels; ++c) {
          const T *xPlane = x + (n * conv.c + m / perGroup * channels + c) * win.inElems();
          const T *taps = w + (m * channels + c) * win.kernelElems();
          for (int64_t k = 0; k < win.kernelElems(); ++k) {
            int64_t kw = k % win.kernel[2], id = inputAt(win, 0, od, k / win.kernel[2] / win.kernel[1]);
            int64_t ih = inputAt(win, 1, oh, k / win.kernel[2] % win.kernel[1]);
            if (id < 0 || ih < 0)
              continue;
            Range valid = validOutputs(win, 2, kw);
            const T *xRow = xPlane + (id * win.in[1] + ih) * win.in[2];
            int64_t shift = kw * win.dilation[2] - win.padBegin[2], stride = win.stride[2];
            double weight = real(taps[k]);
            for (int64_t o = std::max(valid.begin, from), end = std::min(valid.end, to); o < end; ++o)
              sums[o - from] += weight * real(xRow[o * stride + shift]);
          }
        }
        for (int64_t o = from; o < to; ++o)
          y[row * win.out[2] + o] = roundTo<T>(sums[o - from]);
      }
    }
  });
}

// dx[n,c,i] = bias[c] + sum over m of the group and taps k with i = o s - p + k d of w[m,c,k] dy[n,m,o]

template <typename T> void convolveBackData(const Convolution &conv, const T *dy, const T *w, const T *bias, T *dx) {
  const Window &win = conv.window;
  int64_t channels = conv.c / conv.group, perGroup = conv.m / conv.group;
  int64_t rowsPerPlane = win.in[0] * win.in[1], rows = conv.n * conv.c * rowsPerPlane;
  parallelFor(rows, grainFor(win.in[2] * perGroup * win.kernelElems()), [&](int64_t first, int64_t last) {
    double sums[kChunk];
    for (int64_t row = first; row < last; ++row) {
      int64_t plane = row / rowsPerPlane, n = plane / conv.c, c = plane % conv.c, group = c / channels;
      int64_t id = row % rowsPerPlane / win.in[1], ih = row % win.in[1];
      for (int64_t from = 0; from < win.in[2]; from += kChunk) {
        int64_t to = std::min(from + kChunk, win.in[2]);
        std::fill_n(sums, to - from, bias ? real(bias[c]) : 0.0);
        for (int64_t m = group * perGroup; m < (group + 1) * perGroup; ++m) {
          const T *dyPlane = dy + (n * conv.m + m) * win.outElems();
          const T *taps = w + (m * channels + c % channels) * win.kernelElems();
          for (int64_t k = 0; k < win.kernelElems(); ++k) {
            int64_t kw = k % win.kernel[2], od = outputAt(win, 0, id, k / win.kernel[2] / win.kernel[1]);
            int64_t oh = outputAt(win, 1, ih, k / win.kernel[2] % win.kernel[1]);
            if (od < 0 || oh < 0)
              continue;
            const T *dyRow = dyPlane + (od * win.out[1] + oh) * win.out[2];
            int64_t shift = kw * win.dilation[2] - win.padBegin[2], stride = win.stride[2];
            int64_t begin = std::max<int64_t>(0, ceilDiv(from - shift, stride));
            int64_t end = std::min(win.out[2], ceilDiv(to - shift, stride));
            double weight = real(taps[k]);
            for (int64_t o = begin; o < end; ++o)
              sums[o * stride + shift - from] += weight * real(dyRow[o]);
          }
        }
        for (int64_t i = from; i < to; ++i)
          dx[row * win.in[2] + i] = roundTo<T>(sums[i - from]);
      }
    }
  });
}

// dw[m,c,k] = sum over n and o of dy[n,m,o] x[n,c,o s - p + k d]

/// sum of a[i] * b[i * stride] in eight interleaved sums: the order is fixed and vectorises.
template <typename T> double dot(const T *a, const T *b, int64_t stride, int64_t count) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int64_t j = 0; j < 8; ++j)
      lanes[j] += real(a[i + j]) * real(b[(i + j) * stride]);
  for (; i < count; ++i)
    lanes[0] += real(a[i]) * real(b[i * stride]);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <typename T> void convolveBackWeight(const Convolution &conv, const T *x, const T *dy, T *dw) {
  const Window &win = conv.window;
  int64_t channels = conv.c / conv.group, perGroup = conv.m / conv.group, taps = win.kernelElems();
  parallelFor(conv.m * channels * taps, grainFor(conv.n * win.outElems()), [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      int64_t k = item % taps, c = item / taps % channels, m = item / taps / channels;
      int64_t kd = k / win.kernel[2] / win.kernel[1], kh = k / win.kernel[2] % win.kernel[1], kw = k % win.kernel[2];
      Range depth = validOutputs(win, 0, kd), height = validOutputs(win, 1, kh), width = validOutputs(win, 2, kw);
      int64_t count = width.end - width.begin;
      double sum = 0;
      for (int64_t n = 0; count > 0 && n < conv.n; ++n) {
        const T *xPlane = x + (n * conv.c + m / perGroup * channels + c) * win.inElems();
        const T *dyPlane = dy + (n * conv.m + m) * win.outElems();
        for (int64_t od = depth.begin; od < depth.end; ++od)
          for (int64_t oh = height.begin; oh < height.end; ++oh) {
            int64_t xRow = inputAt(win, 0, od, kd) * win.in[1] + inputAt(win, 1, oh, kh);
            sum += dot(dyPlane + (od * win.out[1] + oh) * win.out[2] + width.begin,
                       xPlane + xRow * win.in[2] + inputAt(win, 2, width.begin, kw), win.stride[2], count);
          }
      }
      dw[item] = roundTo<T>(sum);
    }
  });
}

// Steps -------------------------------------------------------------------------------------------------------------

Status runConv(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    const T *bias = present(args.inputs, 2) ? args.inputs[2].as<T>() : nullptr;
    convolve<T>(convOf(spec), args.inputs[0].as<T>(), args.inputs[1].as<T>(), bias, args.outputs[0].as<T>());
  });
  return Status::success();
}

Status runConvTranspose(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    const T *bias = present(args.inputs, 2) ? args.inputs[2].as<T>() : nullptr;
    convolveBackData<T>(convTransposeOf(spec), args.inputs[0].as<T>(), args.inputs[1].as<T>(), bias,
                        args.outputs[0].as<T>());
  });
  return Status::success();
}

Status runConvGradInput(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    convolveBackData<T>(convGradInputOf(spec), args.inputs[0].as<T>(), args.inputs[1].as<T>(), nullptr,
                        args.outputs[0].as<T>());
  });
  return Status::success();
}

Status runConvGradWeight(const StepSpec &spec, const KernelArgs &args) {
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    convolveBackWeight<T>(convGradWeightOf(spec), args.inputs[0].as<T>(), args.inputs[1].as<T>(),
                          args.outputs[0].as<T>());
  });
  return Status::success();
}

constexpr Entry kEntries[] = {
    {"", "Conv", 1, kNewest, runConv, nullptr, refuseConvolution},
    {"", "ConvTranspose", 1, kNewest, runConvTranspose, nullptr, refuseConvolution},
    {"recast", "conv_grad_input", 1, kNewest, runConvGradInput, nullptr, refuseConvolution},
    {"recast", "conv_grad_weight", 1, kNewest, runConvGradWeight, nullptr, refuseConvolution},
    {"", "MaxPool", 1, kNewest, runMaxPool, nullptr, refusePool},
    {"", "AveragePool", 1, kNewest, runAveragePool, nullptr, refusePool},
    {"", "LpPool", 1, kNewest, runLpPool, nullptr, refusePool},
    {"", "GlobalMaxPool", 1, kNewest, runGlobalPool, nullptr, refuseGlobalPool},
    {"", "GlobalAveragePool", 1, kNewest, runGlobalPool, nullptr, refuseGlobalPool},
    {"", "GlobalLpPool", 1, kNewest, runGlobalPool, nullptr, refuseGlobalPool},
    {"recast", "max_pool_grad", 1, kNewest, runMaxPoolGrad, maxPoolGradWorkspaceBytes, refusePool},
    {"recast", "average_pool_grad", 1, kNewest, runAveragePoolGrad, nullptr, refusePool},
    {"", "Resize", 10, kNewest, runResize, resizeWorkspaceBytes, refuseResize},
    {"", "Upsample", 7, kNewest, runResize, resizeWorkspaceBytes, refuseResize},
};

} // namespace

std::span<const Entry> convolutionEntries() { return kEntries; }

} // namespace recast::reference
