// The processes that train one model together.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <cstdint>

namespace recast {

/// One of `size` processes, all of which make the same calls in the same order. Not for several threads.
class Communicator {
public:
  virtual ~Communicator() = default;
  int rank() const { return ownRank; } ///< From 0.
  int size() const { return ranks; }

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
