#include "runtime/reference/ConvolutionWindow.h"
#include "runtime/reference/Loops.h"
#include <limits>

namespace recast::reference {
namespace {

constexpr int64_t kChunk = 256; ///< Elements of a row that are worked on at a time, on the stack.

int64_t ceilDiv(int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); }

template <typename T> double real(T value) { return static_cast<double>(load(value)); }

/// The taps [begin, end) of one output along one axis that lie inside the input; tap k is at start + k * dilation.
struct Taps {
  int64_t start, begin, end;
};
Taps tapsOf(const Window &w, int axis, int64_t o) {
  int64_t start = o * w.stride[axis] - w.padBegin[axis];
  return {start, std::max<int64_t>(0, ceilDiv(-start, w.dilation[axis])),
          std::min(w.kernel[axis], ceilDiv(w.in[axis] - start, w.dilation[axis]))};
}

/// Calls tap(o - from, count, at) for the taps of the outputs [from, to) of output row (od, oh): `count` outputs from
/// `o` on read the plane's elements at, at + stride, ... Each output meets its taps in row-major order.
template <typename Tap> void forEachTap(const Window &w, int64_t od, int64_t oh, int64_t from, int64_t to, Tap &&tap) {
  Taps d = tapsOf(w, 0, od), h = tapsOf(w, 1, oh);
  for (int64_t kd = d.begin; kd < d.end; ++kd)
    for (int64_t kh = h.begin; kh < h.end; ++kh) {
      int64_t row = (d.start + kd * w.dilation[0]) * w.in[1] + h.start + kh * w.dilation[1];
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        int64_t shift = kw * w.dilation[2] - w.padBegin[2];
        int64_t begin = std::max(from, ceilDiv(-shift, w.stride[2]));
        int64_t end = std::min(to, ceilDiv(w.in[2] - shift, w.stride[2]));
        if (begin < end)
          tap(begin - from, end - begin, row * w.in[2] + begin * w.stride[2] + shift);
      }
    }
}

/// Calls row(od, oh, from, to) for pieces of at most kChunk outputs, which cover the plane.
template <typename Row> void forEachChunk(const Window &w, Row &&row) {
  for (int64_t od = 0; od < w.out[0]; ++od)
    for (int64_t oh = 0; oh < w.out[1]; ++oh)
      for (int64_t from = 0; from < w.out[2]; from += kChunk)
        row(od, oh, from, std::min(from + kChunk, w.out[2]));
}

template <typename T> T lowest() {
  if constexpr (isFloatType<T>)
    return T(-std::numeric_limits<double>::infinity());
  else
    return std::numeric_limits<T>::lowest();
}

/// True if a window's maximum moves from `best` to the later `value`: the first maximum counts, and NaN is larger than
/// any number, as in PyTorch, so that it reaches the loss.
template <typename C> bool beats(C value, C best) { return (value > best) | ((value != value) & (best == best)); }

/// The first tap of output (od, oh, ow) inside the plane, or -1 if the window is all padding.
int64_t firstTap(const Window &w, int64_t od, int64_t oh, int64_t ow) {
  int64_t at = 0;
  const int64_t o[] = {od, oh, ow};
  for (int d = 0; d < kSpatialAxes; ++d) {
    Taps taps = tapsOf(w, d, o[d]);
    if (taps.begin >= taps.end)
      return -1;
    at = at * w.in[d] + taps.start + taps.begin * w.dilation[d];
  }
  return at;
}

/// y = the maximum of each window of a plane.
template <typename T> void maximaOf(const Window &w, const T *x, T *y) {
  using C = Compute<T>;
  C best[kChunk];
  forEachChunk(w, [&](int64_t od, int64_t oh, int64_t from, int64_t to) {
    std::fill_n(best, to - from, static_cast<C>(lowest<T>()));
    forEachTap(w, od, oh, from, to, [&](int64_t first, int64_t count, int64_t at) {
      for (int64_t i = 0; i < count; ++i) {
        C value = load(x[at + i * w.stride[2]]), old = best[first + i];
        best[first + i] = beats(value, old) ? value : old;
      }
    });
    for (int64_t o = from; o < to; ++o)
      y[(od * w.out[1] + oh) * w.out[2] + o] = roundTo<T>(best[o - from]);
  });
}

/// Calls winner(o, index) with the plane's index of each window's maximum, or -1 where the window is all padding.
template <typename T, typename Winner> void forEachWinner(const Window &w, const T *x, Winner &&winner) {
  using C = Compute<T>;
  C best[kChunk];
  int64_t index[kChunk];
  forEachChunk(w, [&](int64_t od, int64_t oh, int64_t from, int64_t to) {
    std::fill_n(best, to - from, static_cast<C>(lowest<T>()));
    std::fill_n(index, to - from, -1);
    forEachTap(w, od, oh, from, to, [&](int64_t first, int64_t count, int64_t at) {
      for (int64_t i = 0; i < count; ++i) {
        int64_t where = at + i * w.stride[2], old = index[first + i];
        C value = load(x[where]), bestYet = best[first + i];
        bool take = beats(value, bestYet);
        best[first + i] = take ? value : bestYet;
        index[first + i] = take ? where : old;
      }
    });
    for (int64_t o = from; o < to; ++o) {
      // Nothing beat the lowest value: the first element is the maximum.
      int64_t at = index[o - from] < 0 ? firstTap(w, od, oh, o) : index[o - from];
      winner((od * w.out[1] + oh) * w.out[2] + o, at);
    }
  });
}

/// y[o] = finish(sum of term(x) over the window of o = (od, oh, ow), od, oh, ow)
template <typename T, typename Term, typename Finish>
void sumsOf(const Window &w, const T *x, T *y, Term &&term, Finish &&finish) {
  double sums[kChunk];
  forEachChunk(w, [&](int64_t od, int64_t oh, int64_t from, int64_t to) {
    std::fill_n(sums, to - from, 0.0);
    forEachTap(w, od, oh, from, to, [&](int64_t first, int64_t count, int64_t at) {
      for (int64_t i = 0; i < count; ++i)
        sums[first + i] += term(real(x[at + i * w.stride[2]]));
    });
    for (int64_t ow = from; ow < to; ++ow)
      y[(od * w.out[1] + oh) * w.out[2] + ow] = roundTo<T>(finish(sums[ow - from], od, oh, ow));
  });
}

/// The row-major index `at` of a plane as a column-major one (MaxPool's storage_order = 1).
int64_t columnMajor(const Window &w, int64_t at) {
  int64_t x = at % w.in[2], y = at / w.in[2] % w.in[1], z = at / w.in[2] / w.in[1];
  return z + w.in[0] * (y + w.in[1] * x);
}

/// Elements that an average is divided by along one axis: taps inside the input, or inside input and padding.
int64_t averaged(const Window &w, int axis, int64_t o, bool countPadding) {
  Taps taps = tapsOf(w, axis, o);
  if (!countPadding)
    return std::max<int64_t>(taps.end - taps.begin, 0);
  return std::min(w.kernel[axis], ceilDiv(w.in[axis] + w.padEnd[axis] - taps.start, w.dilation[axis]));
}

/// Divides by the elements that a window averages. The part along depth and height is kept from output to output.
class Averager {
public:
  Averager(const Window &window, bool countPadding) : w(window), countPadding(countPadding) {}

  double operator()(double sum, int64_t od, int64_t oh, int64_t ow) {
    if (od != lastDepth || oh != lastHeight) {
      lastDepth = od, lastHeight = oh;
      area = averaged(w, 0, od, countPadding) * averaged(w, 1, oh, countPadding);
    }
    return sum / static_cast<double>(area * averaged(w, 2, ow, countPadding));
  }

private:
  const Window &w;
  bool countPadding;
  int64_t lastDepth = -1, lastHeight = -1, area = 0;
};

int64_t planesOf(const TensorType &type) { return type.dims[0] * type.dims[1]; }

/// The norm's p: an integer attribute since version 2, a float before.
double normOf(const StepSpec &spec) { return spec.attrs.getFloat("p", static_cast<double>(spec.attrs.getInt("p", 2))); }

double power(double x, double p) { return p == 2 ? x * x : p == 1 ? std::fabs(x) : std::pow(std::fabs(x), p); }
double root(double x, double p) { return p == 2 ? std::sqrt(x) : p == 1 ? x : std::pow(x, 1 / p); }

/// Windows that share no input element.
bool disjoint(const Window &w) {
  for (int d = 0; d < kSpatialAxes; ++d)
    if (w.out[d] > 1 && w.stride[d] < (w.kernel[d] - 1) * w.dilation[d] + 1)
      return false;
  return true;
}

} // namespace

Status runMaxPool(const StepSpec &spec, const KernelArgs &args) {
  Window w = poolOf(spec);
  bool columns = spec.attrs.getInt("storage_order", 0) != 0;
  int64_t *indices = present(args.outputs, 1) ? args.outputs[1].as<int64_t>() : nullptr;
  auto run = [&]<typename T>() {
    const T *x = args.inputs[0].as<T>();
    T *y = args.outputs[0].as<T>();
    int64_t in = w.inElems(), out = w.outElems();
    parallelFor(planesOf(spec.inputs[0]), grainFor(out * w.kernelElems()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        maximaOf(w, x + plane * in, y + plane * out);
        if (indices)
          forEachWinner(w, x + plane * in, [&](int64_t o, int64_t at) {
            at = std::max<int64_t>(at, 0);
            indices[plane * out + o] = plane * in + (columns ? columnMajor(w, at) : at);
          });
      }
    });
  };
  if (spec.inputs[0].dtype == DType::I8)
    run.template operator()<int8_t>();
  else if (spec.inputs[0].dtype == DType::U8)
    run.template operator()<uint8_t>();
  else
    dispatchFloat(spec.inputs[0].dtype, run);
  return Status::success();
}

Status runAveragePool(const StepSpec &spec, const KernelArgs &args) {
  Window w = poolOf(spec);
  bool countPadding = spec.attrs.getInt("count_include_pad", 0) != 0;
  dispatchFloat(spec.inputs[0].dtype, [&]<typename T>() {
    int64_t in = w.inElems(), out = w.outElems();
    parallelFor(planesOf(spec.inputs[0]), grainFor(out * w.kernelElems()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T *x = args.inputs[0].as<T>() + plane * in;
        T *y = args.outputs[0].as<T>() + plane * out;
        sumsOf(w, x, y, [](double value) { return value; }, Averager(w, countPadding));
      }
    });
  });
  return Status::success();
}

Status runLpPool(const StepSpec &spec, const KernelArgs &args) {
  Window w = poolOf(spec);
  double p = normOf(spec);
  dispatchFloat(spec.inputs[0].dtype, [&]<typename T>() {
    int64_t in = w.inElems(), out = w.outElems();
    parallelFor(planesOf(spec.inputs[0]), grainFor(out * w.kernelElems()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T *x = args.inputs[0].as<T>() + plane * in;
        T *y = args.outputs[0].as<T>() + plane * out;
        sumsOf(
            w, x, y, [p](double value) { return power(value, p); },
            [p](double sum, int64_t, int64_t, int64_t) { return root(sum, p); });
      }
    });
  });
  return Status::success();
}

Status runGlobalPool(const StepSpec &spec, const KernelArgs &args) {
  double p = normOf(spec);
  bool maximum = spec.op == "GlobalMaxPool", mean = spec.op == "GlobalAveragePool";
  int64_t elems = product(spec.inputs[0].dims, 2, spec.inputs[0].rank());
  dispatchFloat(spec.inputs[0].dtype, [&]<typename T>() {
    parallelFor(planesOf(spec.inputs[0]), grainFor(elems), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T *x = args.inputs[0].as<T>() + plane * elems;
        T &y = args.outputs[0].as<T>()[plane];
        if (maximum) {
          Compute<T> best = load(lowest<T>());
          for (int64_t i = 0; i < elems; ++i)
            best = beats(load(x[i]), best) ? load(x[i]) : best;
          y = roundTo<T>(best);
          continue;
        }
        double sum = 0;
        for (int64_t i = 0; i < elems; ++i)
          sum += mean ? real(x[i]) : power(real(x[i]), p);
        y = roundTo<T>(mean ? sum / static_cast<double>(elems) : root(sum, p));
      }
    });
  });
  return Status::success();
}

std::string refuseGlobalPool(const StepSpec &spec) {
  if (!isFloat(spec.inputs[0].dtype))
    return std::string(name(spec.inputs[0].dtype)) + " is not supported";
  return spec.inputs[0].rank() < 2 ? "an input without channels" : "";
}

// Gradients ---------------------------------------------------------------------------------------------------------

namespace {

/// Calls row(od, oh) for each output row whose windows reach the input row (id, ih).
template <typename Row> void forEachCoveringRow(const Window &w, int64_t id, int64_t ih, Row &&row) {
  auto along = [&](int axis, int64_t i, auto &&next) {
    for (int64_t k = 0; k < w.kernel[axis]; ++k) {
      int64_t t = i + w.padBegin[axis] - k * w.dilation[axis];
      if (t >= 0 && t % w.stride[axis] == 0 && t / w.stride[axis] < w.out[axis])
        next(t / w.stride[axis]);
    }
  };
  along(0, id, [&](int64_t od) { along(1, ih, [&](int64_t oh) { row(od, oh); }); });
}

/// Fills dx, one piece of a row at a time: accumulate(sums, at, count, od, oh) adds what output row (od, oh) gives to
/// the plane's elements [at, at + count).
template <typename T, typename Accumulate> void gatherRows(const Window &w, T *dx, Accumulate &&accumulate) {
  double sums[kChunk];
  for (int64_t id = 0; id < w.in[0]; ++id)
    for (int64_t ih = 0; ih < w.in[1]; ++ih)
      for (int64_t from = 0; from < w.in[2]; from += kChunk) {
        int64_t count = std::min(kChunk, w.in[2] - from), at = (id * w.in[1] + ih) * w.in[2] + from;
        std::fill_n(sums, count, 0.0);
        forEachCoveringRow(w, id, ih, [&](int64_t od, int64_t oh) { accumulate(sums, at, count, od, oh); });
        for (int64_t i = 0; i < count; ++i)
          dx[at + i] = roundTo<T>(sums[i]);
      }
}

} // namespace

/// One index an output, where windows overlap: the gradients of an element are then summed in double before rounding.
size_t maxPoolGradWorkspaceBytes(const StepSpec &spec) {
  return disjoint(poolOf(spec)) ? 0 : static_cast<size_t>(spec.inputs[0].elems()) * sizeof(int64_t);
}

Status runMaxPoolGrad(const StepSpec &spec, const KernelArgs &args) {
  Window w = poolOf(spec);
  bool scatter = disjoint(w);
  int64_t *winners = reinterpret_cast<int64_t *>(args.workspace.data());
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    int64_t in = w.inElems(), out = w.outElems();
    parallelFor(planesOf(spec.outputs[0]), grainFor(out * w.kernelElems()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T *dy = args.inputs[0].as<T>() + plane * out, *x = args.inputs[1].as<T>() + plane * in;
        T *dx = args.outputs[0].as<T>() + plane * in;
        if (scatter)
          std::fill_n(dx, in, T(0));
        int64_t *won = winners + (scatter ? 0 : plane * out);
        forEachWinner(w, x, [&](int64_t o, int64_t at) {
          if (!scatter)
            won[o] = at;
          else if (at >= 0)
            dx[at] = dy[o];
        });
        if (scatter)
          continue;
        gatherRows(w, dx, [&](double *sums, int64_t at, int64_t count, int64_t od, int64_t oh) {
          int64_t row = (od * w.out[1] + oh) * w.out[2];
          for (int64_t o = row; o < row + w.out[2]; ++o)
            if (won[o] >= at && won[o] < at + count)
              sums[won[o] - at] += real(dy[o]);
        });
      }
    });
  });
  return Status::success();
}

Status runAveragePoolGrad(const StepSpec &spec, const KernelArgs &args) {
  Window w = poolOf(spec);
  bool countPadding = spec.attrs.getInt("count_include_pad", 0) != 0;
  dispatchFloat(spec.outputs[0].dtype, [&]<typename T>() {
    int64_t in = w.inElems(), out = w.outElems();
    parallelFor(planesOf(spec.outputs[0]), grainFor(in * w.kernelElems()), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const T *dy = args.inputs[0].as<T>() + plane * out;
        Averager average(w, countPadding);
        gatherRows(w, args.outputs[0].as<T>() + plane * in,
                   [&](double *sums, int64_t at, int64_t count, int64_t od, int64_t oh) {
                     int64_t row = (od * w.out[1] + oh) * w.out[2], from = at % w.in[2];
                     for (int64_t ow = 0; ow < w.out[2]; ++ow) {
                       double share = average(real(dy[row + ow]), od, oh, ow);
                       Taps taps = tapsOf(w, 2, ow);
                       for (int64_t k = taps.begin; k < taps.end; ++k)
                         if (int64_t i = taps.start + k * w.dilation[2] - from; i >= 0 && i < count)
                           sums[i] += share;
                     }
                   });
      }
    });
  });
  return Status::success();
}

} // namespace recast::reference
