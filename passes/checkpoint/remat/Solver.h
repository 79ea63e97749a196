// What to run again so that a graph fits into its memory at little cost.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <cstdint>
#include <optional>
#include <vector>

namespace recast::remat {

struct SolverOptions {
  /// Looks at runs, about 5 million a second on small graphs: the same result on every machine. 0: one or two seconds'
  /// worth for 350 nodes, and a single greedy descent from about 100,000.
  uint64_t moves = 0;
  /// Wall-clock limit; where positive, `moves` does not count. The first descent always ends, and a budget that is not
  /// reached at once may take four times as long.
  double seconds = 0;
  uint64_t seed = 1;
};

struct Solution {
  Schedule schedule;
  Usage usage;
  bool fits = false; ///< Else the schedule is that with the lowest peak found; usage.peakRun holds it.
};

/// The cheapest schedule found whose peak is at most `budgetBytes`. `start`: a schedule to improve on, beside the plain
/// one; the result is never worse. Precondition: budgetBytes >= 0.
Solution solve(const Problem &problem, int64_t budgetBytes, const SolverOptions &options = {},
               const Schedule *start = nullptr);

/// One solution for each budget: a larger budget never costs more, and never fits where a smaller one does not.
std::vector<Solution> curve(const Problem &problem, const std::vector<int64_t> &budgets,
                            const SolverOptions &options = {});

/// A schedule whose peak is at most `budgetBytes`, whatever it costs; none where `effort` ends before one is found: the
/// sizes of the sets of tensors that are looked at. Much of what it runs again is not needed: solve() takes that out.
std::optional<Schedule> fitAtAnyCost(const Problem &problem, int64_t budgetBytes, uint64_t effort);

/// The lowest peak found; never above that of `start`.
Solution leastPeak(const Problem &problem, const SolverOptions &options = {}, const Schedule *start = nullptr);

struct Floor {
  int64_t bytes = 0; ///< No schedule's peak is less.
  int node = -1;     ///< Whose run needs that; the number of nodes where it is the end.
};

/// A proven lower bound of every schedule's peak: what a node's run needs, and what must have been live when the last
/// of its inputs was made, and so on backwards, as far as `effort` allows: the
/// sizes of the sets that are looked at, together.
Floor floorBound(const Problem &problem, uint64_t effort = 200'000);

} // namespace recast::remat
