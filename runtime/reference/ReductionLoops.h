// Reduction of a dense tensor over any set of axes. One thread makes each output, always in the same order, so the
// number of threads does not show in the result.
#pragma once
#include "runtime/reference/Loops.h"
#include <bitset>

namespace recast::reference {

using AxisSet = std::bitset<kMaxRank>;

/// Accumulators that one pass keeps on the stack.
inline constexpr int64_t kReduceTile = 128;
/// Partial results of one contiguous row: enough that the loop vectorises.
inline constexpr int64_t kReduceLanes = 16;

/// Splits the index space of a dense tensor in two: the axes that stay, and those that are reduced.
struct ReduceSpace {
  StridedLoop<1> kept, reduced;

  ReduceSpace(std::span<const int64_t> dims, AxisSet axes)
      : kept(part(dims, axes, false)), reduced(part(dims, axes, true)) {}

private:
  static StridedLoop<1> part(std::span<const int64_t> dims, AxisSet axes, bool wanted) {
    IndexArray dense = denseStrides(dims), size{}, strides{};
    size_t rank = 0;
    for (size_t d = 0; d < dims.size(); ++d)
      if (axes[d] == wanted) {
        size[rank] = dims[d];
        strides[rank++] = dense[d];
      }
    StridedLoop<1> loop(std::span<const int64_t>(size.data(), rank));
    loop.setStrides(0, strides);
    loop.coalesce();
    return loop;
  }
};

namespace detail {

/// Reduces m neighbouring outputs together: their inputs lie side by side, and the loop over them vectorises.
template <typename T, typename A, typename Step>
void reduceColumns(const T *x, const StridedLoop<1> &reduced, A *acc, int64_t m, Step &step) {
  reduced.walk(0, reduced.count(), [&](const std::array<int64_t, 1> &at, int64_t n) {
    for (int64_t r = 0; r < n; ++r) {
      const T *row = x + at[0] + r * reduced.inner(0);
      for (int64_t j = 0; j < m; ++j)
        acc[j] = step(acc[j], load(row[j]));
    }
  });
}

/// Reduces one output.
template <typename T, typename A, typename Step, typename Merge>
A reduceRow(const T *x, const StridedLoop<1> &reduced, A init, Step &step, Merge &merge) {
  A total = init;
  reduced.walk(0, reduced.count(), [&](const std::array<int64_t, 1> &at, int64_t n) {
    const T *row = x + at[0];
    int64_t stride = reduced.inner(0), i = 0;
    if (stride == 1 && n >= 2 * kReduceLanes) {
      A lanes[kReduceLanes];
      std::fill_n(lanes, kReduceLanes, init);
      for (; i + kReduceLanes <= n; i += kReduceLanes)
        for (int64_t j = 0; j < kReduceLanes; ++j)
          lanes[j] = step(lanes[j], load(row[i + j]));
      for (A lane : lanes)
        total = merge(total, lane);
    }
    for (; i < n; ++i)
      total = step(total, load(row[i * stride]));
  });
  return total;
}

} // namespace detail

/// y[o] = finish(reduction), o in row-major order of the kept axes. Each reduction begins with `init`, takes the
/// elements by step(acc, value) and joins partial results by merge(acc, acc); `init` must be neutral.
template <typename T, typename Y, typename A, typename Step, typename Merge, typename Finish>
void reduce(const T *x, const ReduceSpace &space, Y *y, A init, Step step, Merge merge, Finish finish) {
  const StridedLoop<1> &kept = space.kept;
  parallelFor(kept.count(), grainFor(space.reduced.count()), [&](int64_t begin, int64_t end) {
    Y *out = y + begin;
    kept.walk(begin, end, [&](const std::array<int64_t, 1> &at, int64_t n) {
      if (kept.inner(0) == 1) {
        for (int64_t first = 0; first < n; first += kReduceTile) {
          int64_t m = std::min(kReduceTile, n - first);
          A acc[kReduceTile];
          std::fill_n(acc, m, init);
          detail::reduceColumns(x + at[0] + first, space.reduced, acc, m, step);
          for (int64_t j = 0; j < m; ++j)
            out[first + j] = finish(acc[j]);
        }
      } else {
        for (int64_t i = 0; i < n; ++i)
          out[i] = finish(detail::reduceRow(x + at[0] + i * kept.inner(0), space.reduced, init, step, merge));
      }
      out += n;
    });
  });
}

/// y = the sum of x over `axes`, rounded once.
template <typename T> void reduceSum(const T *x, const ReduceSpace &space, T *y) {
  using A = Accumulator<T>;
  auto add = [](A acc, auto value) { return acc + static_cast<A>(value); };
  reduce(x, space, y, A(0), add, add, [](A acc) { return roundTo<T>(acc); });
}

} // namespace recast::reference
