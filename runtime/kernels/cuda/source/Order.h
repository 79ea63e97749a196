// What looks along one axis in order: ArgMax, ArgMin, TopK, CumSum, CumProd. The tensor is [outer, n, inner] around it.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

struct AxisView {
  int64_t outer, n, inner;
};

/// arg_T: the index of the largest (smallest) element; NaN counts as the largest of either order. One warp a row.
struct ArgArgs {
  AxisView view;
  const void *x;
  int64_t *y;
  bool isMax, takesLast;
};

/// top_k_T: the k largest (smallest) in order, the lower index first among equals. One block a row: each place is
/// what comes next after the one before. `values` or `indices` may be null.
struct TopKArgs {
  AxisView view;
  const void *x;
  void *values;
  int64_t *indices;
  int64_t k;
  bool largest;
};

/// cumulative_T: the running sum or product, one thread a row.
struct CumulativeArgs {
  AxisView view;
  const void *x;
  void *y;
  bool isSum, exclusive, reverse;
};

} // namespace recast::cuda
