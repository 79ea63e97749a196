#include "runtime/kernels/cuda/source/Order.h"
#include "runtime/kernels/cuda/source/Reduce.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

/// A total order in which NaN is above everything, as in NumPy.
template <typename C> bool above(C a, C b) { return a > b || (a != a && b == b); }
template <typename C> bool below(C a, C b) { return a < b || (a != a && b == b); }

/// The offset of the first element of row `row`; the others follow at a distance of `inner`.
int64_t rowOf(const AxisView &view, int64_t row, int64_t n) {
  return row / view.inner * n * view.inner + row % view.inner;
}

/// The best place of all lanes by `isBetter(i, j)`; -1 is none.
template <typename Better> int64_t bestOfWarp(int64_t best, Better isBetter) {
  return reduceWarp(best, [&](int64_t a, int64_t b) { return a < 0 || (b >= 0 && isBetter(b, a)) ? b : a; });
}

template <typename T> void arg(const ArgArgs &a) {
  int64_t rows = a.view.outer * a.view.inner;
  for (int64_t row = gridThread() / kWarp; row < rows; row += gridThreads() / kWarp) {
    const T *x = static_cast<const T *>(a.x) + rowOf(a.view, row, a.view.n);
    auto isBetter = [&](int64_t i, int64_t j) {
      auto v = load(x[i * a.view.inner]), w = load(x[j * a.view.inner]);
      if (v == w || (v != v && w != w))
        return a.takesLast ? i > j : i < j;
      return a.isMax ? above(v, w) : below(v, w);
    };
    int64_t best = -1;
    for (int64_t i = lane(); i < a.view.n; i += kWarp)
      best = best < 0 || isBetter(i, best) ? i : best;
    best = bestOfWarp(best, isBetter);
    if (lane() == 0)
      a.y[row] = best;
  }
}

template <typename T> void topK(const TopKArgs &a) {
  using Places = Array<int64_t, kWarp>;
  RECAST_SHARED(Places, places);
  int64_t rows = a.view.outer * a.view.inner, inner = a.view.inner;
  for (int64_t row = blockIndex(); row < rows; row += gridBlocks()) {
    const T *x = static_cast<const T *>(a.x) + rowOf(a.view, row, a.view.n);
    auto comesBefore = [&](int64_t i, int64_t j) {
      auto v = load(x[i * inner]), w = load(x[j * inner]);
      if (above(v, w) || above(w, v))
        return above(v, w) == a.largest;
      return i < j;
    };
    int64_t last = -1, to = rowOf(a.view, row, a.k);
    for (int64_t place = 0; place < a.k; ++place, to += inner) {
      int64_t best = -1;
      for (int64_t i = threadIndex(); i < a.view.n; i += blockThreads())
        if ((last < 0 || comesBefore(last, i)) && i != last && (best < 0 || comesBefore(i, best)))
          best = i;
      best = bestOfWarp(best, comesBefore);
      if (lane() == 0)
        places[warp()] = best;
      syncThreads();
      best = places[0];
      for (int w = 1; w < blockThreads() / kWarp; ++w)
        best = best < 0 || (places[w] >= 0 && comesBefore(places[w], best)) ? places[w] : best;
      last = best;
      if (threadIndex() == 0 && a.values)
        static_cast<T *>(a.values)[to] = x[best * inner];
      if (threadIndex() == 0 && a.indices)
        a.indices[to] = best;
      syncThreads(); // Before the next place is written.
    }
  }
}

template <typename T> void cumulative(const CumulativeArgs &a) {
  using A = Accumulator<T>;
  int64_t rows = a.view.outer * a.view.inner, n = a.view.n;
  for (int64_t row = gridThread(); row < rows; row += gridThreads()) {
    int64_t at = rowOf(a.view, row, n);
    A sum = a.isSum ? 0 : 1;
    for (int64_t i = 0; i < n; ++i) {
      int64_t e = at + (a.reverse ? n - 1 - i : i) * a.view.inner;
      A value = static_cast<A>(load(static_cast<const T *>(a.x)[e])), next = a.isSum ? sum + value : sum * value;
      static_cast<T *>(a.y)[e] = roundTo<T>(a.exclusive ? sum : next);
      sum = next;
    }
  }
}

} // namespace
RECAST_DEVICE_END

#define RECAST_BY_TYPE(Name, Args, Function)                                                                           \
  RECAST_KERNEL_BY_FLOAT(Name, kThreads, Args, Function)                                                               \
  RECAST_KERNEL(Name##_f64, kThreads, Args, Function<double>)                                                          \
  RECAST_KERNEL(Name##_i32, kThreads, Args, Function<int32_t>)                                                         \
  RECAST_KERNEL(Name##_i64, kThreads, Args, Function<int64_t>)

// clang-format off
RECAST_KERNELS(orderKernels,
  RECAST_BY_TYPE(arg, ArgArgs, arg)
  RECAST_BY_TYPE(top_k, TopKArgs, topK)
  RECAST_BY_TYPE(cumulative, CumulativeArgs, cumulative))
// clang-format on

} // namespace recast::cuda
