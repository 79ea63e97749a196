// Operators that look along one axis in order: ArgMax, ArgMin, TopK, CumSum, CumProd.
#include "runtime/reference/ElementwiseLoops.h"
#include "runtime/reference/ReductionLoops.h"
#include <algorithm>

namespace recast::reference {
namespace {

/// The tensor as [outer, n, inner] around one axis.
struct View {
  int64_t outer = 1, n = 1, inner = 1;
  View(std::span<const int64_t> dims, int64_t axis) {
    int64_t rank = static_cast<int64_t>(dims.size());
    outer = product(dims, 0, axis);
    n = rank ? dims[static_cast<size_t>(axis)] : 1;
    inner = product(dims, std::min(axis + 1, rank), rank);
  }
};

Status axisError(const StepSpec &spec, int64_t axis, int64_t rank) {
  return stepError(spec, "axis " + std::to_string(axis) + " is outside the input's rank " + std::to_string(rank));
}

/// A total order in which NaN is above everything, as in NumPy's argmax.
template <typename C> bool above(C a, C b) { return a > b || (a != a && b == b); }
template <typename C> bool below(C a, C b) { return a < b || (a != a && b == b); }

template <bool isMax> Status runArg(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  int64_t given = spec.attrs.getInt("axis", 0), axis = normalizeAxis(given, std::max<int64_t>(x.rank(), 1));
  if (axis < 0)
    return axisError(spec, given, x.rank());
  View view(x.dims, axis);
  if (view.n == 0 && y.elems() > 0)
    return stepError(spec, "the axis is empty");
  bool last = spec.attrs.getInt("select_last_index", 0) != 0;
  dispatchNumeric(x.dtype, [&]<typename T>() {
    parallelFor(view.outer * view.inner, grainFor(view.n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *row = x.as<T>() + r / view.inner * view.n * view.inner + r % view.inner;
        int64_t best = 0;
        auto bestValue = load(row[0]);
        for (int64_t i = 1; i < view.n; ++i) {
          auto value = load(row[i * view.inner]);
          bool better = isMax ? above(value, bestValue) : below(value, bestValue);
          bool equal = value == bestValue || (value != value && bestValue != bestValue);
          if (better || (last && equal)) {
            best = i;
            bestValue = value;
          }
        }
        y.as<int64_t>()[r] = best;
      }
    });
  });
  return Status::success();
}

/// Running sum or product along the axis of input 1.
template <bool isSum> Status runCumulative(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &y = args.outputs[0];
  int64_t given = loadIndex(args.inputs[1], 0), axis = normalizeAxis(given, x.rank());
  if (axis < 0)
    return axisError(spec, given, x.rank());
  View view(x.dims, axis);
  bool exclusive = spec.attrs.getInt("exclusive", 0) != 0, reverse = spec.attrs.getInt("reverse", 0) != 0;
  dispatchNumeric(x.dtype, [&]<typename T>() {
    using A = Accumulator<T>;
    parallelFor(view.outer * view.inner, grainFor(view.n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        int64_t at = r / view.inner * view.n * view.inner + r % view.inner;
        A acc = isSum ? 0 : 1;
        for (int64_t i = 0; i < view.n; ++i) {
          int64_t e = at + (reverse ? view.n - 1 - i : i) * view.inner;
          A value = static_cast<A>(load(x.as<T>()[e])), next = isSum ? acc + value : acc * value;
          y.as<T>()[e] = roundTo<T>(exclusive ? acc : next);
          acc = next;
        }
      }
    });
  });
  return Status::success();
}

/// Rows are shared out over this many slots of the workspace, whatever the number of threads.
constexpr int64_t kTopKSlots = 16;

int64_t topKAxis(const StepSpec &spec, int64_t rank) { return normalizeAxis(spec.attrs.getInt("axis", -1), rank); }
size_t topKWorkspace(const StepSpec &spec) {
  int64_t axis = topKAxis(spec, spec.inputs[0].rank());
  int64_t n = axis < 0 ? 0 : spec.inputs[0].dims[static_cast<size_t>(axis)];
  return static_cast<size_t>(kTopKSlots * n) * sizeof(int64_t);
}

/// The k largest (smallest) along the axis, sorted; the lower index first among equals. k is the output's size there.
Status runTopK(const StepSpec &spec, const KernelArgs &args) {
  const TensorRef &x = args.inputs[0], &values = args.outputs[0], &indices = args.outputs[1];
  int64_t axis = topKAxis(spec, x.rank());
  if (axis < 0)
    return axisError(spec, spec.attrs.getInt("axis", -1), x.rank());
  View view(x.dims, axis);
  int64_t k = values.present() ? values.dims[static_cast<size_t>(axis)] : indices.dims[static_cast<size_t>(axis)];
  if (k > view.n)
    return stepError(spec, "k = " + std::to_string(k) + " exceeds the axis of " + std::to_string(view.n));
  bool largest = spec.attrs.getInt("largest", 1) != 0;
  int64_t rows = view.outer * view.inner;
  auto *slots = reinterpret_cast<int64_t *>(args.workspace.data());
  dispatchNumeric(x.dtype, [&]<typename T>() {
    auto sortRow = [&](int64_t r, int64_t *order) {
      int64_t at = r / view.inner * view.n * view.inner + r % view.inner;
      const T *row = x.as<T>() + at;
      for (int64_t i = 0; i < view.n; ++i)
        order[i] = i;
      std::partial_sort(order, order + k, order + view.n, [&](int64_t i, int64_t j) {
        auto a = load(row[i * view.inner]), b = load(row[j * view.inner]);
        // NaN counts as the largest value both ways.
        if (above(a, b) || above(b, a))
          return above(a, b) == largest;
        return i < j;
      });
      int64_t to = r / view.inner * k * view.inner + r % view.inner;
      for (int64_t i = 0; i < k; ++i, to += view.inner) {
        if (values.present())
          values.as<T>()[to] = row[order[i] * view.inner];
        if (indices.present())
          indices.as<int64_t>()[to] = order[i];
      }
    };
    parallelFor(kTopKSlots, std::max<int64_t>(1, grainFor(rows * view.n * 4 / kTopKSlots)),
                [&](int64_t begin, int64_t end) {
                  for (int64_t slot = begin; slot < end; ++slot)
                    for (int64_t r = slot * rows / kTopKSlots; r < (slot + 1) * rows / kTopKSlots; ++r)
                      sortRow(r, slots + slot * view.n);
                });
  });
  return Status::success();
}
std::string refuseTopK(const StepSpec &spec) {
  if (!allowsNumeric(spec.inputs[0].dtype))
    return std::string(name(spec.inputs[0].dtype)) + " is not supported";
  return spec.outputs.size() == 2 ? "" : "it has two outputs";
}
std::string refuseFirst(const StepSpec &spec) {
  return allowsNumeric(spec.inputs[0].dtype) ? "" : std::string(name(spec.inputs[0].dtype)) + " is not supported";
}

} // namespace

std::span<const Entry> orderEntries() {
  static const Entry entries[] = {
      {"", "ArgMax", 1, 13, runArg<true>, nullptr, refuseFirst},
      {"", "ArgMin", 1, 13, runArg<false>, nullptr, refuseFirst},
      {"", "TopK", 1, 24, runTopK, topKWorkspace, refuseTopK},
      {"", "CumSum", 11, 14, runCumulative<true>, nullptr, refuseFirst, pairs<InPlace{0, 0}>, unlessConstant},
      {"", "CumProd", 26, 26, runCumulative<false>, nullptr, refuseFirst, pairs<InPlace{0, 0}>, unlessConstant},
  };
  return entries;
}

} // namespace recast::reference
