// Softmax cross-entropy and negative log-likelihood losses with their gradients. Scores are [N, C, d1, ...], labels
// [N, d1, ...]; a position is one label, `inner` = d1 * ... of them for each n.
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"
#include <limits>

namespace recast::reference {
namespace {

enum class Reduction { None, Sum, Mean };

/// What the four operators share. `scores` are scores or log-probabilities.
struct Problem {
  TensorRef scores, labels, weights; ///< weights: [C], maybe absent.
  Reduction reduction;
  bool ignores;
  int64_t ignoreIndex;
  int64_t classes, inner, positions;

  int64_t label(int64_t position) const { return loadIndex(labels, position); }
  bool ignored(int64_t position) const { return ignores && label(position) == ignoreIndex; }
  double weight(int64_t label) const { return weights.present() ? loadDouble(weights, label) : 1.0; }
  /// The offset of the position's first class; the others follow at a distance of `inner`.
  int64_t base(int64_t position) const { return position / inner * classes * inner + position % inner; }

  /// The sum of the weights of the labels that count.
  double totalWeight() const {
    double total = 0;
    for (int64_t i = 0; i < positions; ++i)
      total += ignored(i) ? 0.0 : weight(label(i));
    return total;
  }
};

/// Fills `problem`; an error where a label is neither a class nor ignored.
Status makeProblem(const StepSpec &spec, const KernelArgs &args, size_t firstInput, Problem &problem) {
  problem.scores = args.inputs[firstInput];
  problem.labels = args.inputs[firstInput + 1];
  problem.weights = present(args.inputs, firstInput + 2) ? args.inputs[firstInput + 2] : TensorRef();
  std::string_view reduction = spec.attrs.stringView("reduction", "mean");
  problem.reduction = reduction == "none" ? Reduction::None : reduction == "sum" ? Reduction::Sum : Reduction::Mean;
  problem.ignores = spec.attrs.has("ignore_index");
  problem.ignoreIndex = spec.attrs.getInt("ignore_index", 0);
  if (problem.scores.rank() < 2)
    return stepError(spec, "scores need at least two dimensions");
  problem.classes = problem.scores.dims[1];
  problem.inner = product(problem.scores.dims, 2, problem.scores.rank());
  problem.positions = problem.labels.elems();
  if (problem.positions != problem.scores.dims[0] * problem.inner)
    return stepError(spec, std::to_string(problem.positions) + " labels for " +
                               std::to_string(problem.scores.dims[0] * problem.inner) + " rows of scores");
  if (problem.weights.present() && problem.weights.elems() != problem.classes)
    return stepError(spec, std::to_string(problem.weights.elems()) + " weights for " + std::to_string(problem.classes) +
                               " classes");
  for (int64_t i = 0; i < problem.positions; ++i) {
    int64_t label = problem.label(i);
    if ((label < 0 || label >= problem.classes) && !problem.ignored(i))
      return stepError(spec, "label " + std::to_string(label) + " at position " + std::to_string(i) +
                                 " is outside [0, " + std::to_string(problem.classes - 1) + "]" +
                                 (problem.ignores ? " and is not ignore_index" : ""));
  }
  return Status::success();
}

/// The maximum and the logarithm of the sum of exp(score - maximum) over one position's classes.
template <typename T> struct LogSum {
  using C = Compute<T>;
  C maximum;
  double sum = 0, logSum;

  /// Stores exp(score - maximum) too, where there is a place for it.
  LogSum(const T *scores, int64_t classes, int64_t stride, C *exponentials = nullptr) {
    maximum = -std::numeric_limits<C>::infinity();
    for (int64_t c = 0; c < classes; ++c) {
      C score = load(scores[c * stride]);
      maximum = score > maximum || std::isnan(score) ? score : maximum;
    }
    for (int64_t c = 0; c < classes; ++c) {
      C exponential = std::exp(load(scores[c * stride]) - maximum);
      if (exponentials)
        exponentials[c * stride] = exponential;
      sum += exponential;
    }
    logSum = std::log(sum);
  }
  double logProb(T score) const { return static_cast<double>(load(score)) - maximum - logSum; }
};

/// Writes the loss from one weighted loss a position, in double.
void reduceLosses(const Problem &problem, const double *losses, const TensorRef &loss) {
  dispatchFloat(loss.dtype, [&]<typename T>() {
    T *out = loss.as<T>();
    if (problem.reduction == Reduction::None) {
      for (int64_t i = 0; i < problem.positions; ++i)
        out[i] = roundTo<T>(losses[i]);
      return;
    }
    double sum = 0;
    for (int64_t i = 0; i < problem.positions; ++i)
      sum += losses[i];
    // Without any label that counts the mean is 0/0, NaN.
    *out = roundTo<T>(problem.reduction == Reduction::Mean ? sum / problem.totalWeight() : sum);
  });
}

/// The factor of position `position`'s loss in the gradient: dloss / total weight for the mean, for example.
struct LossFactor {
  TensorRef dloss;
  bool perPosition;
  double divisor;

  LossFactor(const Problem &problem, const TensorRef &dloss)
      : dloss(dloss), perPosition(problem.reduction == Reduction::None),
        divisor(problem.reduction == Reduction::Mean ? problem.totalWeight() : 1.0) {}
  double operator()(int64_t position) const { return loadDouble(dloss, perPosition ? position : 0) / divisor; }
};

/// One weighted loss a position. The labels come second, after scores or log-probabilities.
size_t lossWorkspaceBytes(const StepSpec &spec) { return static_cast<size_t>(spec.inputs[1].elems()) * sizeof(double); }

Status runCrossEntropy(const StepSpec &spec, const KernelArgs &args) {
  Problem problem;
  if (Status status = makeProblem(spec, args, 0, problem); !status.ok())
    return status;
  double *losses = reinterpret_cast<double *>(args.workspace.data());
  bool wantsLogProb = present(args.outputs, 1);
  int64_t classes = problem.classes, inner = problem.inner;
  dispatchFloat(problem.scores.dtype, [&]<typename T>() {
    parallelFor(problem.positions, grainFor(8 * classes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T *scores = problem.scores.as<T>() + problem.base(i);
        LogSum<T> sum(scores, classes, inner);
        int64_t label = problem.label(i);
        losses[i] = problem.ignored(i) ? 0.0 : -problem.weight(label) * sum.logProb(scores[label * inner]);
        if (!wantsLogProb)
          continue;
        T *out = args.outputs[1].as<T>() + problem.base(i);
        for (int64_t c = 0; c < classes; ++c)
          out[c * inner] = roundTo<T>(sum.logProb(scores[c * inner]));
      }
    });
  });
  reduceLosses(problem, losses, args.outputs[0]);
  return Status::success();
}

Status runNll(const StepSpec &spec, const KernelArgs &args) {
  Problem problem;
  if (Status status = makeProblem(spec, args, 0, problem); !status.ok())
    return status;
  double *losses = reinterpret_cast<double *>(args.workspace.data());
  parallelFor(problem.positions, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t label = problem.label(i);
      losses[i] = problem.ignored(i)
                      ? 0.0
                      : -problem.weight(label) * loadDouble(problem.scores, problem.base(i) + label * problem.inner);
    }
  });
  reduceLosses(problem, losses, args.outputs[0]);
  return Status::success();
}

/// dscores = (softmax(scores) - onehot(label)) * weight * factor; 0 where the label is ignored.
Status runCrossEntropyGrad(const StepSpec &spec, const KernelArgs &args) {
  Problem problem;
  if (Status status = makeProblem(spec, args, 1, problem); !status.ok())
    return status;
  LossFactor factor(problem, args.inputs[0]);
  int64_t classes = problem.classes, inner = problem.inner;
  dispatchFloat(problem.scores.dtype, [&]<typename T>() {
    using C = Compute<T>;
    parallelFor(problem.positions, grainFor(8 * classes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T *out = args.outputs[0].as<T>() + problem.base(i);
        if (problem.ignored(i)) {
          for (int64_t c = 0; c < classes; ++c)
            out[c * inner] = roundTo<T>(C(0));
          continue;
        }
        const T *scores = problem.scores.as<T>() + problem.base(i);
        // The output holds the exponentials in between, unless its type would round them.
        C *exponentials = nullptr;
        if constexpr (std::is_same_v<T, C>)
          exponentials = out;
        LogSum<T> sums(scores, classes, inner, exponentials);
        int64_t label = problem.label(i);
        double scale = problem.weight(label) * factor(i), perSum = scale / sums.sum;
        for (int64_t c = 0; c < classes; ++c) {
          C exponential = exponentials ? exponentials[c * inner] : std::exp(load(scores[c * inner]) - sums.maximum);
          double target = c == label ? scale : 0.0;
          out[c * inner] = roundTo<T>(exponential * perSum - target);
        }
      }
    });
  });
  return Status::success();
}

/// dlog_prob = -weight * factor at the label, 0 elsewhere and where the label is ignored.
Status runNllGrad(const StepSpec &spec, const KernelArgs &args) {
  Problem problem;
  if (Status status = makeProblem(spec, args, 1, problem); !status.ok())
    return status;
  LossFactor factor(problem, args.inputs[0]);
  dispatchFloat(problem.scores.dtype, [&]<typename T>() {
    parallelFor(problem.positions, grainFor(problem.classes), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T *out = args.outputs[0].as<T>() + problem.base(i);
        for (int64_t c = 0; c < problem.classes; ++c)
          out[c * problem.inner] = roundTo<T>(0.0f);
        if (!problem.ignored(i))
          out[problem.label(i) * problem.inner] = roundTo<T>(-problem.weight(problem.label(i)) * factor(i));
      }
    });
  });
  return Status::success();
}

} // namespace

std::span<const Entry> lossEntries() {
  static constexpr Entry entries[] = {
      {"", "SoftmaxCrossEntropyLoss", 12, kNewest, runCrossEntropy, lossWorkspaceBytes, nullptr, pairs<InPlace{1, 0}>,
       always},
      {"", "NegativeLogLikelihoodLoss", 12, kNewest, runNll, lossWorkspaceBytes, nullptr, nullptr, always},
      {"recast", "cross_entropy_grad", 1, kNewest, runCrossEntropyGrad, nullptr, nullptr, pairs<InPlace{0, 1}>, always},
      {"recast", "nll_loss_grad", 1, kNewest, runNllGrad, nullptr, nullptr, pairs<InPlace{0, 1}>, always},
  };
  return entries;
}

} // namespace recast::reference
