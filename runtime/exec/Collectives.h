// Steps in which ranks meet: the executor runs them where there are several.
#pragma once
#include "runtime/exec/ReductionThread.h"
#include "runtime/plan/Plan.h"
#include <memory>

namespace recast {

/// When the operands of an all_reduce are known, in steps of its plan.
struct KnownAfter {
  std::vector<size_t> steps; ///< For each operand how many steps have run then.
  size_t backward = 0;       ///< How many have run when the last one has that does more than to prepare an operand.
};

/// all_reduce among several ranks. Buckets that are known before the backward ends may begin then; run() waits for
/// them, and reduces the others.
class AllReduce : public Kernel {
public:
  /// After how many steps each bucket that may begin early is known, in ascending order.
  virtual std::vector<size_t> early() const = 0;
  /// Begins one of these, each in turn. `args` are those of the run() to come.
  virtual void begin(size_t bucket, const KernelArgs &args) = 0;
};

/// Null for another operator than `recast.all_reduce`. An error names the step. Without a `thread` nothing begins
/// early, and run() sums bucket after bucket.
Result<std::unique_ptr<AllReduce>> createAllReduce(const Step &step, Communicator &communicator,
                                                   ReductionThread *thread, const KnownAfter &known,
                                                   size_t bucketBytes = kBucketBytes);
/// The kernel of `recast.rank`; null for other operators.
std::unique_ptr<Kernel> createRank(const Step &step, const Communicator &communicator);

} // namespace recast
