#include "passes/checkpoint/remat/Candidates.h"
#include <algorithm>
#include <cmath>

namespace recast::remat {

namespace {

/// Budgets that are tried, from the plain peak down to the least: more than placement can tell apart on small graphs.
constexpr int kBudgets = 40;

} // namespace

std::vector<Candidate> candidates(const Problem &problem, const Roles &roles, const SolverOptions &options) {
  std::vector<Candidate> found;
  if (!problem.fetches.empty()) { // To be allowed more is never to pay more.
    Problem runsOnly = problem;
    runsOnly.fetches.clear();
    found = candidates(runsOnly, roles, options);
  }
  auto add = [&](Schedule schedule) {
    Usage use = usage(problem, schedule);
    found.push_back({std::move(schedule), use});
  };
  SolverOptions part = options;
  // Neighbours start from each other: each needs a fraction of what a budget by itself would.
  double nodes = static_cast<double>(problem.nodes.size()) + 1;
  part.moves = options.moves ? std::max<uint64_t>(1, options.moves / (kBudgets + 1))
                             : static_cast<uint64_t>(std::clamp(2e7 / nodes, 4e3, 1e5));
  part.seconds = options.seconds / 2 / kBudgets;
  SolverOptions first = part;
  first.seconds = options.seconds / 2;
  first.moves *= 8; // Everything depends on how low it gets.
  Solution least = leastPeak(problem, first);
  Usage plain = usage(problem, plainSchedule(problem));
  std::vector<int64_t> budgets;
  // Closer together where memory is dear.
  auto range = static_cast<double>(plain.peakBytes - least.usage.peakBytes);
  for (int i = 0; i < kBudgets; ++i)
    budgets.push_back(least.usage.peakBytes + static_cast<int64_t>(range * std::pow(double(i) / kBudgets, 1.5)));
  for (Solution &solution : curve(problem, budgets, part))
    found.push_back({std::move(solution.schedule), solution.usage});
  found.push_back({std::move(least.schedule), least.usage});
  add(sqrtSegments(problem, roles));
  add(selective(problem, roles));
  std::sort(found.begin(), found.end(), [](const Candidate &a, const Candidate &b) {
    return std::pair(a.usage.cost, a.usage.peakBytes) < std::pair(b.usage.cost, b.usage.peakBytes);
  });
  std::vector<Candidate> result;
  int64_t peak = plain.peakBytes;
  for (Candidate &candidate : found)
    if (candidate.usage.peakBytes < peak) {
      peak = candidate.usage.peakBytes;
      result.push_back(std::move(candidate));
    }
  return result;
}

} // namespace recast::remat
