// Cross-entropy and negative log-likelihood with labels. Scores are [N, C, d1, ...], labels [N, d1, ...]; a position is
// one label, `inner` = d1 * ... of them for each n. A label that is no class and not ignored is reported.
#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

enum class LossReduction : int { None, Sum, Mean };

/// What all loss kernels share.
struct LossProblem {
  const void *scores, *labels, *weights; ///< `weights` may be null.
  Fault *fault;
  int64_t classes, inner, positions, ignoreIndex;
  int weightType; ///< A DType.
  bool ignores, isWide;
};

/// cross_entropy_T, nll_T: losses[i] = the weighted loss of position i, counts[i] its weight, 0 where it is ignored.
/// `logProb` may be null.
struct LossArgs {
  LossProblem problem;
  double *losses, *counts;
  void *logProb;
};

/// loss_join: `loss` from all positions. With `losses` null: only `total`, the sum of the weights that count.
struct LossJoinArgs {
  const double *losses, *counts;
  void *loss;
  double *total;
  int64_t positions;
  int lossType;
  LossReduction reduction;
};

/// cross_entropy_grad_T, nll_grad_T. `total` is null unless losses are averaged.
struct LossGradArgs {
  LossProblem problem;
  const void *dloss;
  const double *total;
  void *dscores;
  int dlossType;
  bool perPosition; ///< dloss has one element a position.
};

/// loss_weights: counts[i] = the weight of position i, 0 where it is ignored.
struct LossWeightArgs {
  LossProblem problem;
  double *counts;
};

} // namespace recast::cuda
