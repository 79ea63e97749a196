// Steps in which ranks meet: the executor runs them where there are several.
#pragma once
#include "runtime/exec/Communicator.h"
#include "runtime/plan/Plan.h"
#include <memory>

namespace recast {

/// Bytes of a flat bucket: large enough that a network's latency does not count.
inline constexpr size_t kBucketBytes = size_t(32) << 20;

/// The kernel of `recast.all_reduce` and `recast.rank`; null for other operators. An error names the step.
Result<std::unique_ptr<Kernel>> createCollective(const Step &step, Communicator &communicator,
                                                 size_t bucketBytes = kBucketBytes);

} // namespace recast
