// The processes that train one model together.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <cstdint>

namespace recast {

/// Bytes of a flat bucket: large enough that a network's latency does not count.
inline constexpr size_t kBucketBytes = size_t(32) << 20;

/// One of `size` processes, all of which make the same calls in the same order, one call at a time.
class Communicator {
public:
  virtual ~Communicator() = default;
  int rank() const { return ownRank; } ///< From 0.
  int size() const { return ranks; }
  /// False where only the thread that joined may call.
  virtual bool worksOnThreads() const { return true; }

  /// Sums over all ranks, element by element, in place; every rank gets the same bits. An error says what was lost.
  virtual Status sum(float *data, size_t count) = 0;
  virtual Status sum(double *data, size_t count) = 0;
  /// Ends all ranks, this one too where the library knows no other way: for a rank that cannot go on.
  virtual void abort() = 0;

  /// What the steps have reduced so far: operators, calls of sum() for them (buckets), and bytes of a rank.
  struct Traffic {
    int64_t reductions = 0, buckets = 0, bytes = 0;
  } traffic;

protected:
  int ownRank = 0, ranks = 1;
};

} // namespace recast
