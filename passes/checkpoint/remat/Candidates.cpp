#include "passes/checkpoint/remat/Candidates.h"
#include "passes/checkpoint/remat/Hoist.h"
#include <algorithm>
#include <cmath>

namespace recast::remat {

namespace {

/// Budgets that are tried, from the plain peak down to the least: more than placement can tell apart on small graphs.
constexpr int kBudgets = 40;

/// Where copies overlap, what pays is found with copies that cost these parts of what they take: most of it is hidden.
constexpr int64_t kHidden[] = {1, 4, 16};

/// For budgets from the plain peak down to the least, and by the rules.
std::vector<Schedule> search(const Problem &problem, const Roles &roles, const SolverOptions &options) {
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
  std::vector<Schedule> found;
  for (Solution &solution : curve(problem, budgets, part))
    found.push_back(std::move(solution.schedule));
  found.push_back(std::move(least.schedule));
  found.push_back(sqrtSegments(problem, roles));
  found.push_back(selective(problem, roles));
  return found;
}

} // namespace

std::vector<Candidate> candidates(const Problem &problem, const Roles &roles, const SolverOptions &options) {
  std::vector<Candidate> found;
  auto add = [&](const Problem &variant) {
    for (Schedule &schedule : search(variant, roles, options)) {
      if (problem.copiesOverlap)
        schedule = hoistFetches(problem, schedule);
      Usage use = usage(problem, schedule);
      use.cost = timeOf(problem, schedule);
      found.push_back({std::move(schedule), use});
    }
  };
  Problem variant = problem;
  variant.fetches.clear(); // To be allowed more is never to pay more.
  add(variant);
  for (int64_t part : kHidden) {
    if (problem.fetches.empty() || (part > 1 && !problem.copiesOverlap))
      break;
    variant.fetches = problem.fetches;
    for (Fetch &fetch : variant.fetches)
      fetch.cost /= part, fetch.storeCost /= part;
    add(variant);
  }
  std::sort(found.begin(), found.end(), [](const Candidate &a, const Candidate &b) {
    return std::pair(a.usage.cost, a.usage.peakBytes) < std::pair(b.usage.cost, b.usage.peakBytes);
  });
  std::vector<Candidate> result;
  int64_t peak = usage(problem, plainSchedule(problem)).peakBytes;
  for (Candidate &candidate : found)
    if (candidate.usage.peakBytes < peak) {
      peak = candidate.usage.peakBytes;
      result.push_back(std::move(candidate));
    }
  return result;
}

} // namespace recast::remat
