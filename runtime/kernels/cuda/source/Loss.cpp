#include "runtime/kernels/cuda/source/Loss.h"
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Reduce.h"
#include "runtime/kernels/cuda/source/Values.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

/// A position's label and weight; the weight is 0 and `counts` false where it is ignored, or, after a report, no class.
struct Label {
  int64_t label;
  double weight;
  bool counts;
};
Label labelOf(const LossProblem &p, int64_t position) {
  int64_t label = loadIndex(p.labels, p.isWide, position);
  if (p.ignores && label == p.ignoreIndex)
    return {0, 0, false};
  if (label < 0 || label >= p.classes) {
    report(p.fault, position);
    return {0, 0, false};
  }
  auto type = static_cast<DType>(p.weightType);
  const char *weight = static_cast<const char *>(p.weights) + label * static_cast<int64_t>(byteSize(type));
  return {label, p.weights ? loadScalar(weight, type) : 1.0, true};
}
/// The offset of the position's first class; the others follow at a distance of `inner`.
int64_t baseOf(const LossProblem &p, int64_t position) {
  return position / p.inner * p.classes * p.inner + position % p.inner;
}

/// The maximum over a position's classes and the sum of exp(score - maximum), by a warp.
template <typename T> struct LogSum {
  float maximum;
  double sum;
  LogSum(const T *scores, int64_t classes, int64_t stride) {
    maximum = -std::numeric_limits<float>::infinity();
    for (int64_t c = lane(); c < classes; c += kWarp)
      maximum = joinMax(maximum, static_cast<float>(load(scores[c * stride])));
    maximum = reduceWarp(maximum, joinMax<float>);
    sum = 0;
    for (int64_t c = lane(); c < classes; c += kWarp)
      sum += exponential(static_cast<float>(load(scores[c * stride])) - maximum);
    sum = sumWarp(sum);
  }
};

/// Calls body(position) in every lane of a warp, for the warp's positions.
template <typename Body> void forPositions(int64_t positions, Body body) {
  for (int64_t i = gridThread() / kWarp; i < positions; i += gridThreads() / kWarp)
    body(i);
}

template <typename T> void crossEntropy(const LossArgs &a) {
  const LossProblem &p = a.problem;
  forPositions(p.positions, [&](int64_t i) {
    const T *scores = static_cast<const T *>(p.scores) + baseOf(p, i);
    LogSum<T> sums(scores, p.classes, p.inner);
    double logSum = logarithm(sums.sum);
    auto logProb = [&](int64_t c) {
      return static_cast<double>(load(scores[c * p.inner])) - static_cast<double>(sums.maximum) - logSum;
    };
    if (lane() == 0) {
      Label label = labelOf(p, i);
      a.losses[i] = label.counts ? -label.weight * logProb(label.label) : 0;
      a.counts[i] = label.weight;
    }
    if (!a.logProb)
      return;
    syncWarp(); // logProb may lie where the scores do: the label's score has been read.
    T *out = static_cast<T *>(a.logProb) + baseOf(p, i);
    for (int64_t c = lane(); c < p.classes; c += kWarp)
      out[c * p.inner] = roundTo<T>(logProb(c));
  });
}

template <typename T> void nll(const LossArgs &a) {
  const LossProblem &p = a.problem;
  for (int64_t i = gridThread(); i < p.positions; i += gridThreads()) {
    Label label = labelOf(p, i);
    const T *logProb = static_cast<const T *>(p.scores) + baseOf(p, i);
    a.losses[i] = label.counts ? -label.weight * static_cast<double>(load(logProb[label.label * p.inner])) : 0;
    a.counts[i] = label.weight;
  }
}

void lossWeights(const LossWeightArgs &a) {
  for (int64_t i = gridThread(); i < a.problem.positions; i += gridThreads())
    a.counts[i] = labelOf(a.problem, i).weight;
}

/// One block, or for losses that stay apart a grid.
void lossJoin(const LossJoinArgs &a) {
  auto type = static_cast<DType>(a.lossType);
  if (a.losses && a.reduction == LossReduction::None) {
    for (int64_t i = gridThread(); i < a.positions; i += gridThreads())
      storeScalar(static_cast<char *>(a.loss) + i * static_cast<int64_t>(byteSize(type)), type, a.losses[i]);
    return;
  }
  double loss = 0, total = 0;
  for (int64_t i = threadIndex(); i < a.positions; i += kThreads) {
    loss += a.losses ? a.losses[i] : 0;
    total += a.counts[i];
  }
  loss = sumBlock(loss), total = sumBlock(total);
  if (threadIndex())
    return;
  if (a.losses) // Without any label that counts the mean is 0/0, NaN.
    storeScalar(a.loss, type, a.reduction == LossReduction::Mean ? loss / total : loss);
  if (a.total)
    *a.total = total;
}

double factorOf(const LossGradArgs &a, int64_t position) {
  auto type = static_cast<DType>(a.dlossType);
  const char *at =
      static_cast<const char *>(a.dloss) + (a.perPosition ? position : 0) * static_cast<int64_t>(byteSize(type));
  double dloss = loadScalar(at, type);
  return a.total ? dloss / *a.total : dloss;
}

/// dscores = (softmax(scores) - onehot(label)) * weight * factor; 0 where the label is ignored.
template <typename T> void crossEntropyGrad(const LossGradArgs &a) {
  const LossProblem &p = a.problem;
  forPositions(p.positions, [&](int64_t i) {
    const T *scores = static_cast<const T *>(p.scores) + baseOf(p, i);
    T *out = static_cast<T *>(a.dscores) + baseOf(p, i);
    Label label = labelOf(p, i);
    LogSum<T> sums(scores, p.classes, p.inner);
    double scale = label.weight * factorOf(a, i), perSum = scale / sums.sum;
    for (int64_t c = lane(); c < p.classes; c += kWarp) {
      float share = exponential(static_cast<float>(load(scores[c * p.inner])) - sums.maximum);
      double gradient = static_cast<double>(share) * perSum - (c == label.label ? scale : 0);
      out[c * p.inner] = roundTo<T>(label.counts ? gradient : 0.0);
    }
  });
}

/// dlog_prob = -weight * factor at the label, 0 elsewhere and where the label is ignored.
template <typename T> void nllGrad(const LossGradArgs &a) {
  const LossProblem &p = a.problem;
  forPositions(p.positions, [&](int64_t i) {
    T *out = static_cast<T *>(a.dscores) + baseOf(p, i);
    Label label = labelOf(p, i);
    double gradient = -label.weight * factorOf(a, i);
    for (int64_t c = lane(); c < p.classes; c += kWarp)
      out[c * p.inner] = roundTo<T>(label.counts && c == label.label ? gradient : 0.0);
  });
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(lossKernels,
  RECAST_KERNEL_BY_FLOAT(cross_entropy, kThreads, LossArgs, crossEntropy)
  RECAST_KERNEL_BY_FLOAT(nll, kThreads, LossArgs, nll)
  RECAST_KERNEL_BY_FLOAT(cross_entropy_grad, kThreads, LossGradArgs, crossEntropyGrad)
  RECAST_KERNEL_BY_FLOAT(nll_grad, kThreads, LossGradArgs, nllGrad)
  RECAST_KERNEL(loss_weights, kThreads, LossWeightArgs, lossWeights)
  RECAST_KERNEL(loss_join, kThreads, LossJoinArgs, lossJoin))
// clang-format on

} // namespace recast::cuda
