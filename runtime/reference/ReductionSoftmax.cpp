// Softmax, LogSoftmax and Hardmax, and the gradients of the first two. Before opset 13 the tensor is coerced to two
// dimensions at `axis` and the second is normalised; from 13 on it is the one axis.
#include "runtime/reference/ElementwiseLoops.h"
#include "runtime/reference/ReductionLoops.h"

namespace recast::reference {

// softmax_grad and log_softmax_grad: rows of trainEntries().
std::span<const Entry> softmaxGradientEntries();

namespace {

/// The tensor as [outer, n, inner]; n is normalised.
struct View {
  int64_t outer = 1, n = 1, inner = 1;
};
/// False: the axis is out of range.
bool viewAt(const StepSpec &spec, std::span<const int64_t> dims, View &view) {
  bool coerced = spec.domain.empty() && spec.version < 13;
  int64_t rank = static_cast<int64_t>(dims.size()), given = spec.attrs.getInt("axis", coerced ? 1 : -1);
  if (coerced && given == rank) { // Everything is outer: rows of one element.
    view = {elementCount(dims), 1, 1};
    return true;
  }
  int64_t axis = normalizeAxis(given, std::max<int64_t>(rank, 1));
  if (axis < 0)
    return false;
  view.outer = product(dims, 0, axis);
  view.n = product(dims, axis, coerced ? rank : std::min(axis + 1, rank));
  view.inner = coerced ? 1 : product(dims, std::min(axis + 1, rank), rank);
  return true;
}

/// Calls row(offset) for each of the view's rows, whose elements are `inner` apart.
template <typename Row> void forRows(const View &view, Row row) {
  parallelFor(view.outer * view.inner, grainFor(view.n * 4), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      row(r / view.inner * view.n * view.inner + r % view.inner);
  });
}

template <typename T> Compute<T> maximum(const T *x, int64_t n, int64_t stride) {
  using C = Compute<T>;
  C max = -std::numeric_limits<C>::infinity();
  for (int64_t i = 0; i < n; ++i) {
    C v = load(x[i * stride]);
    max = v > max || v != v ? v : max;
  }
  return max;
}

/// Exponentials are computed in Compute<T>, their sum in double.
template <typename T> void softmaxRow(const T *x, T *y, int64_t n, int64_t stride) {
  using C = Compute<T>;
  C max = maximum(x, n, stride);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    C e = std::exp(load(x[i * stride]) - max);
    sum += e;
    if constexpr (std::is_same_v<T, C>) // Else the exponential would be rounded twice; it is computed again below.
      y[i * stride] = e;
  }
  for (int64_t i = 0; i < n; ++i) {
    C e = std::is_same_v<T, C> ? load(y[i * stride]) : std::exp(load(x[i * stride]) - max);
    y[i * stride] = roundTo<T>(static_cast<C>(e / sum));
  }
}
template <typename T> void logSoftmaxRow(const T *x, T *y, int64_t n, int64_t stride) {
  Compute<T> max = maximum(x, n, stride);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += std::exp(load(x[i * stride]) - max);
  double shift = static_cast<double>(max) + std::log(sum);
  for (int64_t i = 0; i < n; ++i)
    y[i * stride] = roundTo<T>(static_cast<Compute<T>>(static_cast<double>(load(x[i * stride])) - shift));
}
/// One at the first maximum, zero elsewhere.
template <typename T> void hardmaxRow(const T *x, T *y, int64_t n, int64_t stride) {
  int64_t best = 0;
  for (int64_t i = 0; i < n; ++i) {
    y[i * stride] = roundTo<T>(0.0);
    if (load(x[i * stride]) > load(x[best * stride]))
      best = i;
  }
  if (n > 0)
    y[best * stride] = roundTo<T>(1.0);
}

enum class Kind { Softmax, LogSoftmax, Hardmax };
template <Kind kind> Status runRows(const StepSpec &spec, const KernelArgs &args) {
  View view;
  if (!viewAt(spec, args.inputs[0].dims, view))
    return stepError(spec, "axis " + std::to_string(spec.attrs.getInt("axis", -1)) + " is outside the input's rank");
  dispatchFloat(args.outputs[0].dtype, [&]<typename T>() {
    const T *x = args.inputs[0].as<T>();
    T *y = args.outputs[0].as<T>();
    forRows(view, [&](int64_t at) {
      if constexpr (kind == Kind::Softmax)
        softmaxRow(x + at, y + at, view.n, view.inner);
      else if constexpr (kind == Kind::LogSoftmax)
        logSoftmaxRow(x + at, y + at, view.n, view.inner);
      else
        hardmaxRow(x + at, y + at, view.n, view.inner);
    });
  });
  return Status::success();
}

/// With s = softmax: dx = y * (dy - sum(dy * y)) for y = s, dx = dy - exp(y) * sum(dy) for y = log(s).
template <bool isLog> Status runGradient(const StepSpec &spec, const KernelArgs &args) {
  View view;
  if (!viewAt(spec, args.inputs[1].dims, view))
    return stepError(spec, "axis " + std::to_string(spec.attrs.getInt("axis", -1)) + " is outside the input's rank");
  dispatchFloat(args.outputs[0].dtype, [&]<typename T>() {
    using C = Compute<T>;
    const T *dy = args.inputs[0].as<T>(), *y = args.inputs[1].as<T>();
    T *dx = args.outputs[0].as<T>();
    forRows(view, [&](int64_t at) {
      int64_t stop = at + view.n * view.inner;
      double sum = 0;
      for (int64_t i = at; i < stop; i += view.inner)
        sum += static_cast<double>(load(dy[i])) * (isLog ? 1.0 : static_cast<double>(load(y[i])));
      for (int64_t i = at; i < stop; i += view.inner) {
        double g = load(dy[i]);
        C out = isLog ? static_cast<C>(g - std::exp(load(y[i])) * sum) : static_cast<C>(load(y[i]) * (g - sum));
        dx[i] = roundTo<T>(out);
      }
    });
  });
  return Status::success();
}

} // namespace

std::span<const Entry> softmaxEntries() {
  static const Entry entries[] = {
      {"", "Softmax", 1, 13, runRows<Kind::Softmax>, nullptr, refuseInputs<allowsFloat>, pairs<InPlace{0, 0}>},
      {"", "LogSoftmax", 1, 13, runRows<Kind::LogSoftmax>, nullptr, refuseInputs<allowsFloat>, pairs<InPlace{0, 0}>},
      {"", "Hardmax", 1, 13, runRows<Kind::Hardmax>, nullptr, refuseInputs<allowsFloat>},
  };
  return entries;
}

std::span<const Entry> softmaxGradientEntries() {
  static const Entry entries[] = {
      {"recast", "softmax_grad", 1, 1, runGradient<false>, nullptr, refuseInputs<allowsFloat>, elementwise},
      {"recast", "log_softmax_grad", 1, 1, runGradient<true>, nullptr, refuseInputs<allowsFloat>, elementwise},
  };
  return entries;
}

} // namespace recast::reference
