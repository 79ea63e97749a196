#include "passes/checkpoint/remat/bound/VirtualEvents.h"
#include <algorithm>
#include <functional>
#include <numeric>

namespace recast::remat {

namespace {

bool contains(const std::vector<int> &list, int item) { return std::ranges::find(list, item) != list.end(); }

class VirtualSearch {
public:
  VirtualSearch(const Problem &problem, int64_t target, Work &work, Bound &bound)
      : problem(problem), budget(bound.certificate.budgetBytes), target(target), work(work), bound(bound) {}

  std::vector<Event> run(std::vector<Event> events) {
    best = evaluate(std::move(events), kShare);
    tryChains(nodesToTry(), false);
    std::vector<int> followed;
    for (auto &event : best.events)
      if (event.isVirtual())
        followed.push_back(event.node + 1);
    tryChains(followed, true);
    return best.events;
  }

private:
  static constexpr size_t kTried = 4;
  static constexpr double kGain = 1e-3;
  static constexpr double kShare = 0.02; ///< Of what is left of the work, for one try.
  static constexpr double kLongShare = 0.4;
  static constexpr double kOtherShare = 0.1; ///< Of the budget: what others need that close a long chain.
  static constexpr int kCutRounds = 10;
  static constexpr double kLevel = 0.95; ///< Needs of memory above that part of the largest are much the same.
  struct Candidate {
    std::vector<Event> events;
    double value = -1;
    std::vector<double> prices; ///< By event.
  };

  void tryChains(const std::vector<int> &nodes, bool isLong) {
    const auto base = best.events;
    for (int node : nodes)
      for (auto &chain : chainsBefore(node, isLong)) {
        if (work.isDone() || best.value >= static_cast<double>(target))
          return;
        Candidate now = evaluate(with(base, node, chain), isLong ? kLongShare : kShare);
        if (now.value > best.value * (1 + kGain))
          best = std::move(now);
      }
  }

  /// First runs before which there is no virtual event yet: those of the events that bind most, and those after them.
  std::vector<int> nodesToTry() const {
    std::vector<int> order(best.events.size()), nodes;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order,
                      [&](int a, int b) { return std::pair(-best.prices[a], a) < std::pair(-best.prices[b], b); });
    if (order.size() > kTried)
      order.resize(kTried);
    for (int g : order)
      for (int node : {best.events[g].node, best.events[g].node + 1})
        if (node > 0 && node < static_cast<int>(problem.nodes.size()) &&
            std::ranges::none_of(
                best.events, [&](auto &e) { return e.isVirtual() && e.node == node - 1; }) &&
            std::ranges::find(nodes, node) == nodes.end())
          nodes.push_back(node);
    return nodes;
  }

  /// With these virtual events before the first run of `node` instead of those that are there.
  static std::vector<Event> with(std::vector<Event> events, int node, const std::vector<std::vector<int>> &chain) {
    std::erase_if(events, [&](auto &event) { return event.isVirtual() && event.node == node - 1; });
    for (int first : {node - 1, node})
      if (auto at = std::ranges::lower_bound(events, first, {}, &Event::node); at == events.end() || at->node != first)
        events.insert(at, {first, {}});
    auto at = std::ranges::lower_bound(events, node, {}, &Event::node);
    for (auto &last : chain)
      at = events.insert(at, {node - 1, last}) + 1;
    return events;
  }

  /// Chains of sets of nodes, the smallest first, whose last repeat before the first run of `node` may be what breaks
  /// the budget: those whose results it reads, for a long chain by how much memory their repeat needs beyond what
  /// `node` reads, and then others that need much. One that needs little can repeat at any time, and says nothing where
  /// it is the last.
  std::vector<std::vector<std::vector<int>>> chainsBefore(int node, bool isLong) const {
    auto &reads = problem.nodes[node].reads;
    std::vector<std::pair<int64_t, int>> needs, otherNeeds; // Bytes, node.
    for (int v = 0; v < node; ++v) {
      auto &it = problem.nodes[v];
      int64_t bytes = 0;
      for (int t : it.reads)
        bytes += contains(reads, t) ? 0 : problem.tensors[t].bytes;
      bool isRead = std::ranges::any_of(it.writes, [&](int t) { return contains(reads, t); });
      if (it.canRepeat)
        (isRead ? needs : otherNeeds).push_back({bytes, v});
    }
    std::ranges::sort(needs, std::greater());
    auto nodesAbove = [](auto &list, double bytes) {
      std::vector<int> nodes;
      for (auto [need, v] : list)
        if (static_cast<double>(need) > bytes)
          nodes.push_back(v);
      std::ranges::sort(nodes);
      return nodes;
    };
    std::vector<std::vector<std::vector<int>>> chains;
    auto all = static_cast<double>(budget);
    if (!isLong) {
      for (double share : {-1.0, 0.0, 0.02})
        if (auto last = nodesAbove(needs, share * all);
            !last.empty() && (chains.empty() || chains.back().front() != last))
          chains.push_back({last});
      return chains;
    }
    std::vector<std::vector<int>> levels;
    for (size_t i = 0; i < needs.size(); ++i)
      if (auto need = static_cast<double>(needs[i].first);
          i + 1 == needs.size() || static_cast<double>(needs[i + 1].first) < kLevel * need)
        levels.push_back(nodesAbove(needs, i + 1 == needs.size() ? -1 : static_cast<double>(needs[i + 1].first)));
    if (auto others = nodesAbove(otherNeeds, kOtherShare * all); !levels.empty() && !others.empty()) {
      others.insert(others.end(), levels.back().begin(), levels.back().end());
      std::ranges::sort(others);
      levels.push_back(std::move(others));
    }
    if (levels.size() > 1)
      chains.push_back(std::move(levels));
    return chains;
  }

  Candidate evaluate(std::vector<Event> events, double share) const {
    Relaxation relaxation(problem, budget, events, spansOf(events));
    Prover prover(problem, relaxation, target, true);
    Work own = work.part(share);
    prover.solveRoot(own);
    auto prices = prover.eventPrices();
    prover.addCuts(own, kCutRounds);
    prover.branch(own);
    work.spend(own.usedUnits());
    if (prover.bound() > bound.extraCost) {
      bound.extraCost = prover.bound();
      bound.certificate = prover.certificate(budget);
    }
    return {.events = std::move(events), .value = prover.value(), .prices = std::move(prices)};
  }

  const Problem &problem;
  int64_t budget, target;
  Work &work;
  Bound &bound;
  Candidate best;
};

} // namespace

std::vector<Span> spansOf(const std::vector<Event> &events) {
  std::vector<Span> spans;
  int last = static_cast<int>(events.size()) - 1;
  for (int from = 0; from < last; ++from)
    for (int to = from + 2; to <= last; ++to)
      if (from == 0 || to == last || events[to].node - events[from].node <= 1)
        spans.push_back({from, to});
  return spans;
}

std::vector<Event> withVirtualEvents(const Problem &problem, int64_t target, std::vector<Event> events, Work &work,
                                     Bound &bound) {
  return VirtualSearch(problem, target, work, bound).run(std::move(events));
}

} // namespace recast::remat
