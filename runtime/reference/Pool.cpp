#include "runtime/reference/ConvolutionWindow.h"
#include "runtime/reference/Loops.h"
#include <limits>

namespace recast::reference {
namespace {

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

/// Calls body(o, index) for each tap of the output's window inside the plane, in row-major order, and done(o) after.
template <typename Body, typename Done>
void forEachWindow(const Window &w, Body &&body, Done &&done) {
  int64_t o = 0;
  for (int64_t od = 0; od < w.out[0]; ++od) {
    Taps d = tapsOf(w, 0, od);
    for (int64_t oh = 0; oh < w.out[1]; ++oh) {
      Taps h = tapsOf(w, 1, oh);
      for (int64_t ow = 0; ow < w.out[2]; ++ow, ++o) {
        Taps v = tapsOf(w, 2, ow);
        for (int64_t kd = d.begin; kd < d.end; ++kd)
          for (int64_t kh = h.begin; kh < h.end; ++kh) {
            int64_t row = (d.start + kd * w.dilation[0]) * w.in[1] + h.start + kh * w.dilation[1];
            int64_t at = row * w.in[2] + v.start + v.begin * w.dilation[2];
            for (int64_t kw = v.begin; kw < v.end; ++kw, at += w.dilation[2])
              body(o, at);
          }
        done(o);
      }
    }
  }
}

/// The running maximum of a window: the first one in row-major order; NaN is larger than any number, as in PyTorch.
template <typename T> struct FirstMaximum {
  T value{};
  int64_t index = -1;

  void add(T candidate, int64_t at) {
    if (index < 0 || candidate > value || (candidate != candidate && value == value)) {
      value = candidate;
      index = at;
    }
  }
};

template <typename T> T lowest() {
  if constexpr (isFloatType<T>)
    return T(-std::numeric_limits<double>::infinity());
  else
    return std::numeric_limits<T>::lowest();
}

/// Calls done(o, maximum) for each output of the plane; the maximum's index is -1 where the window is all padding.
template <typename T, typename Done> void forEachMaximum(const Window &w, const T *x, Done &&done) {
  using C = Compute<T>;
  FirstMaximum<C> best;
  forEachWindow(
      w, [&](int64_t, int64_t at) { best.add(load(x[at]), at); },
      [&](int64_t o) {
        done(o, best);
        best = {};
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

int64_t averaged(const Window &w, int64_t o, bool countPadding) {
  return averaged(w, 0, o / w.out[2] / w.out[1], countPadding) * averaged(w, 1, o / w.out[2] % w.out[1], countPadding) *
         averaged(w, 2, o % w.out[2], countPadding);
}

int64_t planesOf(const TensorType &type) { return type.dims[0] * type.dims[1]; }

/// The norm's p: an integer attribute since version 2, a float before.
double normOf(const StepSpec &spec) {
  return static_cast<double>(spec.attrs.getFloat("p", static_cast<float>(spec.attrs.getInt("p", 2))));
}

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
      for (int64_t plane = begin; plane < end; ++plane)
        forEachMaximum(w, x + plane * in, [&](int64_t o, const FirstMaximum<Compute<T>> &best) {
          y[plane * out + o] = best.index < 0 ? lowest<T>() : roundTo<T>(best.value);
          if (indices)
            indices[plane * out + o] =
                plane * in + (columns ? columnMajor(w, std::max<int64_t>(best.index, 0)) : std::max<int64_t>(best.index, 0));
        });
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
        double sum = 0;
        forEachWindow(
            w, [&](int64_t, int64_t at) { sum += real(x[at]); },
            [&](int64_t o) {
              y[o] = roundTo<T>(sum / static_cast<double>(averaged(w, o, countPadding)));
              sum = 0;
            });
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
        double sum = 0;
        forEachWindow(
            w, [&](int64_t, int64_t at) { sum += power(real(x[at]), p); },
            [&](int64_t o) {
              y[o] = roundTo<T>(root(sum, p));
              sum = 0;
            });
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
        FirstMaximum<Compute<T>> best;
        double sum = 0;
        for (int64_t i = 0; i < elems; ++i)
          if (maximum)
            best.add(load(x[i]), i);
          else
            sum += mean ? real(x[i]) : power(real(x[i]), p);
        T &y = args.outputs[0].as<T>()[plane];
        if (maximum)
          y = best.index < 0 ? lowest<T>() : roundTo<T>(best.value);
        else
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

/// Calls visit(o) for each output whose window holds input (i0, i1, i2).
template <typename Visit> void forEachCover(const Window &w, const Spatial &i, Visit &&visit) {
  auto along = [&](int axis, auto &&next) {
    for (int64_t k = 0; k < w.kernel[axis]; ++k) {
      int64_t t = i[axis] + w.padBegin[axis] - k * w.dilation[axis];
      if (t >= 0 && t % w.stride[axis] == 0 && t / w.stride[axis] < w.out[axis])
        next(t / w.stride[axis]);
    }
  };
  along(0, [&](int64_t od) {
    along(1, [&](int64_t oh) {
      along(2, [&](int64_t ow) { visit((od * w.out[1] + oh) * w.out[2] + ow); });
    });
  });
}

/// dx[i] = sum of term(o) over the windows o that hold i, for each element of a plane.
template <typename T, typename Term> void gatherPlane(const Window &w, T *dx, Term &&term) {
  int64_t at = 0;
  for (int64_t id = 0; id < w.in[0]; ++id)
    for (int64_t ih = 0; ih < w.in[1]; ++ih)
      for (int64_t iw = 0; iw < w.in[2]; ++iw, ++at) {
        double sum = 0;
        forEachCover(w, {id, ih, iw}, [&](int64_t o) { sum += term(at, o); });
        dx[at] = roundTo<T>(sum);
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
        forEachMaximum(w, x, [&](int64_t o, const FirstMaximum<Compute<T>> &best) {
          if (!scatter)
            winners[plane * out + o] = best.index;
          else if (best.index >= 0)
            dx[best.index] = dy[o];
        });
        if (!scatter)
          gatherPlane(w, dx, [&](int64_t at, int64_t o) { return winners[plane * out + o] == at ? real(dy[o]) : 0.0; });
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
        gatherPlane(w, args.outputs[0].as<T>() + plane * in, [&](int64_t, int64_t o) {
          return real(dy[o]) / static_cast<double>(averaged(w, o, countPadding));
        });
      }
    });
  });
  return Status::success();
}

} // namespace recast::reference
