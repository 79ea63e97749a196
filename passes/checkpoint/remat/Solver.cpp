#include "passes/checkpoint/remat/Solver.h"
#include "passes/checkpoint/remat/Search.h"
#include <algorithm>
#include <cmath>
#include <numeric>

namespace recast::remat {

namespace {

/// Searches that begin anew, each with this part of the effort; the best one goes on with the rest.
constexpr int kStarts = 3;
constexpr double kStartPart = 0.2;
/// Budgets on the way down to one that is not reached at once.
constexpr int kSteps = 24;
/// Times the effort that these may take.
constexpr int kPatience = 4;
/// Times the plain cost, from which on one search begins at a schedule that fits whatever it costs.
constexpr double kHardCost = 1.1;
/// Peaks that are tried on the way to the least one, and how near to one that is not reached ends that.
constexpr int kPeaks = 12;
constexpr double kNearBound = 1e-3;

/// Of what does not look at the clock.
constexpr double kMovesPerSecond = 2e6;

uint64_t movesOf(const Problem &problem, const SolverOptions &options) {
  if (options.seconds > 0)
    return static_cast<uint64_t>(std::min(options.seconds * kMovesPerSecond, 1e9)) + 1;
  double nodes = static_cast<double>(problem.nodes.size()) + 1;
  return options.moves ? options.moves : static_cast<uint64_t>(std::clamp(4e9 / nodes, 1e5, 1e7));
}

class Solver {
public:
  Solver(const Problem &problem, int64_t budgetBytes, const SolverOptions &options)
      : P(problem), Budget(budgetBytes), Options(options), Seed(options.seed), Moves(movesOf(problem, options)) {}

  Solution solve(const Schedule *start) {
    Schedule plain = plainSchedule(P);
    take(plain);
    if (Best.fits)
      return Best;
    if (start)
      take(*start);
    for (int i = 0; i < kStarts && !(Best.fits && isSpent(1)); ++i) {
      std::optional<Schedule> dear = i == 1 && isHard() ? fitAtAnyCost(P, Budget, Moves) : std::nullopt;
      search(dear ? *dear : start && i == 0 ? *start : plain, Budget, kStartPart, false);
    }
    if (!Best.fits)
      descend();
    if (Best.fits && !isSpent(1))
      search(Schedule(Best.schedule), Budget, 1 - kStarts * kStartPart, false);
    return Best;
  }

private:
  using Clock = std::chrono::steady_clock;

  /// Remembers the schedule where it is the best.
  void take(const Schedule &schedule) {
    Usage used = usage(P, schedule);
    bool fits = used.peakBytes <= Budget;
    bool isBetter = fits != Best.fits        ? fits
                    : fits                   ? used.cost < Best.usage.cost
                    : Best.usage.peakRun < 0 ? true
                                             : used.peakBytes < Best.usage.peakBytes;
    if (isBetter)
      Best = {schedule, used, fits};
  }

  void search(const Schedule &start, int64_t budget, double part, bool stopWhenFits) {
    Effort effort = {static_cast<uint64_t>(static_cast<double>(Moves) * part), {}};
    if (Options.seconds > 0)
      effort.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(Options.seconds * part));
    Search search(P, start, budget, Seed++);
    search.repair(0);
    search.prune();
    search.improve(effort, stopWhenFits);
    take(search.best());
    Spent += search.moves();
  }

  /// Whether it costs so much that a start from the plain order may have led into a dead end.
  bool isHard() const {
    return !Best.fits ||
           static_cast<double>(Best.usage.cost) > kHardCost * static_cast<double>(usage(P, plainSchedule(P)).cost);
  }

  /// Whether so many times the effort is used up. One descent of a large graph may be more.
  bool isSpent(int times) const {
    if (Options.seconds > 0)
      return Clock::now() - Start > times * std::chrono::duration<double>(Options.seconds);
    return Spent >= static_cast<uint64_t>(times) * Moves;
  }

  /// Lower budgets step by step, each from the schedule that fits the one before: what does not fit at once may then.
  void descend() {
    double step = 0.15; // Of the way that is left.
    for (int i = 0; i < kSteps && !Best.fits && !isSpent(kPatience); ++i) {
      int64_t above = Best.usage.peakBytes - Budget;
      int64_t budget =
          Best.usage.peakBytes - std::max<int64_t>(1, static_cast<int64_t>(step * static_cast<double>(above)));
      search(Schedule(Best.schedule), budget, 1.0 / kSteps, true);
      step = std::clamp(Best.usage.peakBytes <= budget ? 1.5 * step : 0.5 * step, 0.01, 1.0);
    }
  }

  const Problem &P;
  int64_t Budget;
  SolverOptions Options;
  uint64_t Seed, Moves, Spent = 0;
  Clock::time_point Start = Clock::now();
  Solution Best;
};

} // namespace

Solution solve(const Problem &problem, int64_t budgetBytes, const SolverOptions &options, const Schedule *start) {
  return Solver(problem, budgetBytes, options).solve(start);
}

std::vector<Solution> curve(const Problem &problem, const std::vector<int64_t> &budgets, const SolverOptions &options) {
  std::vector<size_t> order(budgets.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return budgets[a] > budgets[b]; });
  std::vector<Solution> result(budgets.size());
  const Schedule *start = nullptr;
  for (size_t i : order) {
    result[i] = solve(problem, budgets[i], options, start);
    start = &result[i].schedule;
  }
  // What fits into less fits into more.
  const Solution *smaller = nullptr;
  for (size_t k = order.size(); k-- > 0;) {
    Solution &solution = result[order[k]];
    if (smaller && (smaller->fits ? !solution.fits || smaller->usage.cost < solution.usage.cost
                                  : !solution.fits && smaller->usage.peakBytes < solution.usage.peakBytes)) {
      solution = *smaller;
      solution.fits = solution.usage.peakBytes <= budgets[order[k]];
    }
    smaller = &solution;
  }
  return result;
}

Solution leastPeak(const Problem &problem, const SolverOptions &options, const Schedule *start) {
  uint64_t effort = movesOf(problem, options);
  int64_t low = floorBound(problem, effort / kPeaks).bytes, bound = low;
  auto isNear = [&](int64_t peak) { return static_cast<double>(peak - low) <= kNearBound * static_cast<double>(low); };
  Schedule best = start ? *start : plainSchedule(problem);
  int64_t peak = usage(problem, best).peakBytes, aim = low;
  for (int i = 0; i < kPeaks && !isNear(peak); ++i) {
    if (auto schedule = fitAtAnyCost(problem, aim, effort)) {
      best = std::move(*schedule);
      peak = usage(problem, best).peakBytes;
    } else {
      low = aim;
    }
    aim = static_cast<int64_t>(std::sqrt(static_cast<double>(low) * static_cast<double>(peak)));
  }
  if (peak > bound) { // On dense graphs the search for a cheap schedule may get lower.
    SolverOptions part = options;
    part.moves = movesOf(problem, options) / kPatience + 1;
    part.seconds = options.seconds / kPatience;
    Solution lower = solve(problem, bound, part, &best);
    best = std::move(lower.schedule);
    peak = lower.usage.peakBytes;
  }
  return solve(problem, peak, options, &best);
}

} // namespace recast::remat
