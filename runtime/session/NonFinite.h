// Which node first made a value infinite or NaN.
#pragma once
#include "runtime/exec/Executor.h"

namespace recast {

/// How many values of tensors are not finite, and the first of them.
struct NonFiniteCount {
  int64_t nans = 0, infinities = 0, first = -1;
  double firstValue = 0;

  void add(const TensorRef &tensor);
};

/// Watches every step of a plan. A node is named where its outputs hold NaN and its inputs do not, or an infinity and
/// its inputs neither: masks of -inf in the file name nobody. What follows from a finding is none of its own.
class NonFiniteSearch {
public:
  static constexpr size_t kMostFindings = 4;

  /// To be called before each run: forgets, and looks at what the run starts from.
  void begin(const Executor &executor);
  void observe(const StepEvent &event);
  /// Sentences, in the order in which things happened, at most kMostFindings. Empty where the run's outputs are all
  /// finite and no gradient was found to be otherwise: what went wrong inside has then done no harm.
  std::vector<std::string> findings(const Executor &executor) const;

private:
  std::vector<std::string> found;
  NonFiniteCount overwritten; ///< In inputs of the present step that its outputs take over.
};

} // namespace recast
