#include "passes/checkpoint/remat/bound/VirtualEvents.h"
#include <algorithm>
#include <numeric>

namespace recast::remat {

namespace {

class VirtualSearch {
public:
  VirtualSearch(const Problem &problem, int64_t budget, int64_t target, Work &work)
      : problem(problem), budget(budget), target(target), work(work), writers(problem.tensors.size(), -1) {
    for (size_t v = 0; v < problem.nodes.size(); ++v)
      for (int t : problem.nodes[v].writes)
        writers[t] = static_cast<int>(v);
  }

  std::vector<Event> run(std::vector<Event> events) {
    Candidate best = evaluate(std::move(events));
    for (bool isBetter = true; isBetter;) {
      isBetter = false;
      const Candidate base = best;
      for (int node : nodesToTry(base))
        for (auto &last : setsBefore(node)) {
          if (work.isDone() || best.value >= static_cast<double>(target))
            return best.events;
          Candidate now = evaluate(with(base.events, node, last));
          if (now.value > best.value * (1 + kGain)) {
            best = std::move(now);
            isBetter = true;
          }
        }
    }
    return best.events;
  }

private:
  static constexpr size_t kTried = 6;
  static constexpr double kGain = 1e-3;
  static constexpr double kShare = 0.02; ///< Of what is left of the work, for one try.
  static constexpr int kCutRounds = 10;
  struct Candidate {
    std::vector<Event> events;
    double value = -1;
    std::vector<double> prices; ///< By event.
  };

  /// First runs before which there is no virtual event yet: those of the events that bind most, and those after them.
  std::vector<int> nodesToTry(const Candidate &base) const {
    std::vector<int> order(base.events.size()), nodes;
    std::iota(order.begin(), order.end(), 0);
    std::ranges::sort(order,
                      [&](int a, int b) { return std::pair(-base.prices[a], a) < std::pair(-base.prices[b], b); });
    if (order.size() > kTried)
      order.resize(kTried);
    for (int g : order)
      for (int node : {base.events[g].node, base.events[g].node + 1})
        if (node > 0 && node < static_cast<int>(problem.nodes.size()) &&
            std::ranges::none_of(
                base.events, [&](auto &e) { return e.isVirtual() && e.node == node - 1; }) &&
            std::ranges::find(nodes, node) == nodes.end())
          nodes.push_back(node);
    return nodes;
  }

  /// With a virtual event before the first run of `node`, which has none.
  static std::vector<Event> with(std::vector<Event> events, int node, const std::vector<int> &last) {
    for (auto &event : {Event{node - 1, {}}, Event{node - 1, last}, Event{node, {}}}) {
      auto at = std::ranges::lower_bound(events, event);
      if (at == events.end() || *at != event)
        events.insert(at, event);
    }
    return events;
  }

  /// Nodes whose last repeat before the first run of `node` may be what breaks the budget: those whose results it
  /// reads. One whose inputs are there for it anyway can repeat at any time, and says nothing where it is the last.
  std::vector<std::vector<int>> setsBefore(int node) const {
    std::vector<std::vector<int>> sets;
    auto &reads = problem.nodes[node].reads;
    for (double share : {-1.0, 0.0, 0.02}) {
      std::vector<int> last;
      for (int t : reads) {
        auto &writer = problem.nodes[writers[t]];
        int64_t more = 0;
        for (int input : writer.reads)
          more += std::ranges::find(reads, input) == reads.end() ? problem.tensors[input].bytes : 0;
        if (writer.canRepeat && static_cast<double>(more) > share * static_cast<double>(budget))
          last.push_back(writers[t]);
      }
      std::ranges::sort(last);
      last.erase(std::unique(last.begin(), last.end()), last.end());
      if (!last.empty() && std::ranges::find(sets, last) == sets.end())
        sets.push_back(std::move(last));
    }
    return sets;
  }

  Candidate evaluate(std::vector<Event> events) const {
    Relaxation relaxation(problem, budget, events, spansOf(events));
    Prover prover(problem, relaxation, target, true);
    Work own = work.part(kShare);
    prover.solveRoot(own);
    auto prices = prover.eventPrices();
    prover.addCuts(own, kCutRounds);
    prover.branch(own);
    work.spend(own.usedUnits());
    return {.events = std::move(events), .value = prover.value(), .prices = std::move(prices)};
  }

  const Problem &problem;
  int64_t budget, target;
  Work &work;
  std::vector<int> writers; ///< By tensor.
};

} // namespace

std::vector<Span> spansOf(const std::vector<Event> &events) {
  std::vector<Span> spans;
  int last = static_cast<int>(events.size()) - 1;
  for (int from = 0; from < last; ++from)
    for (int to = from + 2; to <= last; ++to)
      if (from == 0 || to == last || events[from].isVirtual() || events[to].isVirtual())
        spans.push_back({from, to});
  return spans;
}

std::vector<Event> withVirtualEvents(const Problem &problem, int64_t budget, int64_t target, std::vector<Event> events,
                                     Work &work) {
  return VirtualSearch(problem, budget, target, work).run(std::move(events));
}

} // namespace recast::remat
