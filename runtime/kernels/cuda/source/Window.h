// Poolings, batch normalisation, and convolutions in plain form: for machines without cuDNN, and for what it refuses.
// Tensors are [N, C, d1, ...] with up to three spatial axes; fewer have leading axes of size 1.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

using Axes = Array<int64_t, 3>;

/// Output position o reads input positions o * stride - pad + k * dilation, 0 <= k < kernel, along each axis.
struct WindowArgs {
  Axes in, out, kernel, stride, dilation, padBegin, padEnd;
};

/// conv_T: y[n,m,o] = bias[m] + sum of w[m,c,k] x[n,c,o s - p + k d]. conv_grad_input_T: x from y. Of a transposed
/// convolution x and y are swapped. conv_grad_weight_T: w from x and y.
struct ConvolutionArgs {
  WindowArgs window;
  const void *a, *b, *bias; ///< What is multiplied; `bias` may be null.
  void *result;
  int64_t n, c, m, group;
};

/// add_bias_T: y[n,c,i] += bias[c], over n * c planes of `elems`. Rounds once more than a kernel that sums both.
struct BiasArgs {
  void *y;
  const void *bias;
  int64_t planes, channels, elems;
};

enum class PoolKind : int { Max, Average, Lp };

/// pool_T: of each window. `indices` of the maxima may be null.
struct PoolArgs {
  WindowArgs window;
  const void *x;
  void *y;
  int64_t *indices;
  int64_t planes;
  double p;
  PoolKind kind;
  bool countsPadding, isColumnMajor;
};

/// max_pool_winners_T: the index in its plane of each window's maximum, -1 for one that is all padding.
/// max_pool_grad_T, average_pool_grad_T: dx.
struct PoolGradArgs {
  WindowArgs window;
  const void *x, *dy;
  int64_t *winners;
  void *dx;
  int64_t planes;
  bool countsPadding;
};

/// global_pool_T: one block a plane.
struct GlobalPoolArgs {
  const void *x;
  void *y;
  int64_t elems;
  double p;
  PoolKind kind;
};

/// batch_norm_T: one block a channel. Parameters and statistics have types of their own; those after `variance` may be
/// null. With `trains` the statistics are those of the batch.
struct BatchNormArgs {
  const void *x, *scale, *bias, *mean, *variance;
  void *y, *newMean, *newVariance;
  int64_t batch, channels, inner;
  double epsilon, momentum;
  int scaleType, biasType, meanType, varianceType, newMeanType, newVarianceType;
  bool trains;
};

/// batch_norm_grad_T. Any of the results may be null.
struct BatchNormGradArgs {
  const void *dy, *x, *scale;
  void *dx, *dscale, *dbias;
  int64_t batch, channels, inner;
  double epsilon;
  int scaleType, dscaleType, dbiasType;
};

} // namespace recast::cuda
