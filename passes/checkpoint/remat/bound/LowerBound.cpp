#include "passes/checkpoint/remat/bound/LowerBound.h"
#include "passes/checkpoint/remat/bound/DualAscent.h"
#include "passes/checkpoint/remat/bound/Prover.h"
#include "passes/checkpoint/remat/bound/VirtualEvents.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <sstream>

namespace recast::remat {

namespace {

/// Bytes that are live at each first run when every node runs once; last, what is kept.
std::vector<int64_t> plainBytes(const Problem &problem) {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  std::vector<int> first(tensors, nodes), last(tensors, -1);
  for (int v = 0; v < nodes; ++v) {
    for (int t : problem.nodes[v].writes)
      first[t] = last[t] = v;
    for (int t : problem.nodes[v].reads)
      last[t] = v;
  }
  std::vector<int64_t> change(nodes + 2);
  for (int t = 0; t < tensors; ++t)
    if (last[t] >= 0) {
      change[first[t]] += problem.tensors[t].bytes;
      change[(problem.tensors[t].isKept ? nodes : last[t]) + 1] -= problem.tensors[t].bytes;
    }
  std::partial_sum(change.begin(), change.end(), change.begin());
  change.pop_back();
  for (int v = 0; v < nodes; ++v) {
    change[v] += problem.nodes[v].workspaceBytes;
    for (int t : problem.nodes[v].overwrites)
      if (last[t] == v && !problem.tensors[t].isKept)
        change[v] -= problem.tensors[t].bytes;
  }
  return change;
}

/// Looks for the few events whose relaxation bounds best. More events are no better in general: a coarse gap says that
/// a node ran or did not, where a fine one lets the LP spread one run over many gaps.
class EventSearch {
public:
  EventSearch(const Problem &problem, int64_t budget, int64_t target)
      : problem(problem), budget(budget), target(target), live(plainBytes(problem)) {
    for (size_t v = 0; v < live.size(); ++v)
      if (live[v] > budget)
        pool.push_back(static_cast<int>(v));
  }

  bool isEmpty() const { return pool.empty(); }

  /// The highest event of each of `count` equal parts of the pool.
  std::vector<int> peaks(int count) const {
    count = std::min(count, static_cast<int>(pool.size()));
    std::vector<int> events;
    for (int i = 0; i < count; ++i) {
      auto at = [&](int part) { return pool.begin() + static_cast<int64_t>(pool.size()) * part / count; };
      events.push_back(*std::max_element(at(i), at(i + 1), [&](int a, int b) { return live[a] < live[b]; }));
    }
    return events;
  }

  std::vector<int> run(Work &work) {
    Candidate best = evaluate({*std::ranges::max_element(pool, {}, [&](int v) { return live[v]; })}, work);
    for (int count : {2, 4, 8, 12, 16, 24}) {
      if (count > static_cast<int>(pool.size()) || work.isDone())
        break;
      improve(best, evaluate(peaks(count), work));
    }
    Work coarse = work.part(0.1);
    explore(best, coarse);
    work.spend(coarse.usedUnits());
    hasSpans = true;
    improve(best, evaluate(best.events, work));
    explore(best, work);
    return best.events;
  }

  /// The event at which a point of the relaxation seems to break the budget most; -1: none.
  int worstEvent(const Relaxation &relaxation, const std::vector<double> &point) const {
    auto bytes = relaxation.estimatedBytes(point);
    for (auto &event : relaxation.events())
      if (event.node < static_cast<int>(bytes.size()))
        bytes[event.node] = 0;
    auto worst = std::ranges::max_element(bytes);
    if (*worst <= static_cast<double>(budget) * (1 + 1e-6))
      return -1;
    return static_cast<int>(worst - bytes.begin());
  }

private:
  static constexpr int kIdle = 12; ///< Moves without a gain.
  static constexpr double kGain = 1e-6;
  static constexpr size_t kMostEvents = 24;
  struct Candidate {
    std::vector<int> events;
    double value = -1;
    int worst = -1; ///< Of worstEvent.
  };

  /// True where it bounds better.
  static bool improve(Candidate &best, Candidate other) {
    bool isBetter = other.value > best.value * (1 + kGain);
    if (isBetter || (other.value >= best.value && other.events.size() < best.events.size()))
      best = std::move(other);
    return isBetter;
  }

  void explore(Candidate &best, Work &work) {
    // Adds the event that the point breaks most, again and again.
    Candidate now = best;
    for (size_t i = 0; i < kMostEvents && !work.isDone() && now.worst >= 0 && now.events.size() < kMostEvents; ++i) {
      auto events = now.events;
      events.push_back(now.worst);
      std::ranges::sort(events);
      now = evaluate(events, work);
      improve(best, now);
    }
    for (int idle = 0; idle < kIdle && !work.isDone() && best.value < static_cast<double>(target); ++idle)
      if (improve(best, evaluate(neighbour(best.events), work)))
        idle = 0;
  }

  Candidate evaluate(std::vector<int> events, Work &work) const {
    int end = static_cast<int>(problem.nodes.size());
    if (events.empty() || events.back() != end)
      events.push_back(end);
    auto cuts = firstRuns(events);
    Relaxation relaxation(problem, budget, cuts, hasSpans ? spansOf(cuts) : std::vector<Span>());
    Prover prover(problem, relaxation, target, true);
    prover.solveRoot(work);
    Candidate candidate{.events = {}, .value = prover.value()};
    if (prover.isClosed()) {
      candidate.events = events;
      return candidate;
    }
    candidate.worst = worstEvent(relaxation, prover.point());
    auto prices = prover.eventPrices();
    for (size_t g = 0; g < events.size(); ++g)
      if (prices[g] > 1e-9 || events[g] == end)
        candidate.events.push_back(events[g]);
    return candidate;
  }

  std::vector<int> neighbour(std::vector<int> events) {
    int end = static_cast<int>(problem.nodes.size());
    if (events.back() == end)
      events.pop_back();
    auto below = [&](size_t limit) { return static_cast<size_t>(random() % std::max<size_t>(limit, 1)); };
    size_t kind = below(8);
    if (kind == 0 && events.size() > 1) {
      events.erase(events.begin() + below(events.size()));
    } else if (kind < 4 && events.size() < kMostEvents) {
      events.push_back(pool[below(pool.size())]);
    } else if (!events.empty()) {
      // Moves by a distance of any order of magnitude.
      int &event = events[below(events.size())];
      auto at = std::ranges::lower_bound(pool, event) - pool.begin();
      int64_t reach = std::max<int64_t>(1, static_cast<int64_t>(pool.size()) >> (1 + below(8)));
      int64_t to = at + static_cast<int64_t>(below(2 * reach + 1)) - reach;
      event = pool[std::clamp<int64_t>(to, 0, static_cast<int64_t>(pool.size()) - 1)];
    }
    std::ranges::sort(events);
    events.erase(std::unique(events.begin(), events.end()), events.end());
    return events;
  }

  const Problem &problem;
  int64_t budget, target;
  std::vector<int64_t> live;
  std::mt19937 random{1};
  bool hasSpans = false;
  std::vector<int> pool; ///< Events at which the plain order exceeds the budget.
};

/// Graphs with more nodes get what dualAscent proves.
constexpr size_t kLargestForLp = 4000;
constexpr int kCutRounds = 30;
constexpr int kAscents = 6; ///< Events that it is tried for.

/// Raises `bound` to what dualAscent proves for one event.
void ascend(const Problem &problem, int event, int64_t target, Work &work, Bound &bound) {
  Relaxation relaxation(problem, bound.certificate.budgetBytes,
                        firstRuns({event, static_cast<int>(problem.nodes.size())}), {});
  Prover prover(problem, relaxation, target, true);
  double critical = criticalPrice(problem, relaxation);
  for (double factor : {1.0, 0.7, 1.5, 2.5}) {
    if (work.isDone())
      return;
    prover.takeRoot(dualAscent(problem, relaxation, critical * factor));
    work.spend(static_cast<int64_t>(relaxation.rows().size()));
    if (prover.bound() > bound.extraCost) {
      bound.extraCost = prover.bound();
      bound.certificate = prover.certificate(bound.certificate.budgetBytes);
    }
  }
}

Certificate zeroClaim(const Problem &problem, int64_t budget) {
  Certificate certificate;
  certificate.budgetBytes = budget;
  certificate.events = firstRuns({static_cast<int>(problem.nodes.size())});
  return certificate;
}

} // namespace

int64_t plainPeakBytes(const Problem &problem) { return std::ranges::max(plainBytes(problem)); }

Bound lowerBound(const Problem &problem, int64_t budgetBytes, const BoundOptions &options) {
  Bound bound;
  bound.certificate = zeroClaim(problem, budgetBytes);
  if (!problem.fetches.empty()) // Its inequalities know of runs alone.
    return bound;
  int64_t total = 0;
  for (auto &node : problem.nodes)
    total += node.cost;
  // Without a known schedule the search ends far above what any would cost.
  int64_t target = 16 * total + 1;
  if (options.knownCost) {
    int64_t known = total + *options.knownCost;
    target =
        std::min(known, static_cast<int64_t>(std::ceil(static_cast<double>(known) / (1 + options.enough)))) - total;
  }
  EventSearch search(problem, budgetBytes, target);
  if (search.isEmpty() || target <= 0)
    return bound;
  Work work(options.effort, options.seconds);
  for (int event : options.events.empty() ? search.peaks(kAscents) : std::vector<int>())
    if (event < static_cast<int>(problem.nodes.size()))
      ascend(problem, event, target, work, bound);
  if (problem.nodes.size() > kLargestForLp || bound.extraCost >= target)
    return bound;
  auto events = options.events;
  if (events.empty()) {
    Work searchWork = work.part(0.4);
    events = firstRuns(search.run(searchWork));
    work.spend(searchWork.usedUnits());
    Work virtualWork = work.part(0.4);
    events = withVirtualEvents(problem, target, std::move(events), virtualWork, bound);
    work.spend(virtualWork.usedUnits());
  } else {
    events.push_back({static_cast<int>(problem.nodes.size()), {}});
  }
  if (options.knownCost && bound.extraCost >= target)
    return bound;
  bool isLast = false;
  while (!work.isDone() && !isLast) {
    Relaxation relaxation(problem, budgetBytes, events, spansOf(events));
    Prover prover(problem, relaxation, target, true);
    prover.solveRoot(work);
    prover.addCuts(work, kCutRounds);
    prover.branch(work);
    if (prover.bound() > bound.extraCost) {
      bound.extraCost = prover.bound();
      bound.certificate = prover.certificate(budgetBytes);
    }
    if (prover.isClosed()) {
      isLast = true;
      if (!options.knownCost) {
        // Closed far above any sensible cost: mostly because nothing fits at all.
        Prover reach(problem, relaxation, target, false);
        reach.solveRoot(work);
        reach.branch(work);
        if (reach.isClosed()) {
          bound.isUnreachable = true;
          bound.certificate = reach.certificate(budgetBytes);
        }
      }
    } else if (int worst = search.worstEvent(relaxation, prover.point()); worst >= 0 && options.events.empty()) {
      // A point of whole columns that costs as much as the bound: only another event can raise it.
      events.insert(std::ranges::lower_bound(events, worst, {}, &Event::node), {worst, {}});
    } else {
      isLast = true;
    }
  }
  return bound;
}

Floor lowerBoundOfPeak(const Problem &problem, const BoundOptions &options) {
  // What one node uses, and what the end keeps, is needed in any case.
  int nodes = static_cast<int>(problem.nodes.size());
  int64_t proven = 0, reached = plainPeakBytes(problem);
  int event = 0;
  for (int v = 0; v < nodes; ++v)
    if (usedBytes(problem, v) > proven) {
      proven = usedBytes(problem, v);
      event = v;
    }
  int64_t kept = 0;
  for (auto &tensor : problem.tensors)
    kept += tensor.isKept ? tensor.bytes : 0;
  if (kept > proven) {
    proven = kept;
    event = nodes;
  }
  auto prove = [&](int64_t budget, const std::vector<int> &nodes, Work &work) -> std::optional<Certificate> {
    auto events = firstRuns(nodes);
    Relaxation relaxation(problem, budget, events, spansOf(events));
    Prover prover(problem, relaxation, 1, false);
    prover.solveRoot(work);
    if (!prover.isClosed())
      return std::nullopt;
    return prover.certificate(budget);
  };
  Work work(options.effort, options.seconds);
  Floor floor{proven, zeroClaim(problem, 0)};
  if (proven == 0)
    return floor;
  std::vector<int> events{event};
  if (event != nodes)
    events.push_back(nodes);
  floor.certificate = *prove(proven - 1, events, work);
  // Beyond that: all events, or as many as the LP stands, and bisection to a thousandth.
  std::vector<int> all;
  const int count = std::clamp(40'000 / nodes, 1, std::min(nodes, 100));
  for (int i = 0; i < count; ++i)
    all.push_back(static_cast<int>(static_cast<int64_t>(nodes) * i / count));
  all.push_back(nodes);
  while (nodes <= static_cast<int>(kLargestForLp) && reached - proven > std::max<int64_t>(1, reached / 1000) &&
         !work.isDone()) {
    int64_t middle = proven + (reached - proven) / 2;
    if (auto certificate = prove(middle - 1, all, work)) {
      floor = {middle, std::move(*certificate)};
      proven = middle;
    } else {
      reached = middle;
    }
  }
  return floor;
}

} // namespace recast::remat
