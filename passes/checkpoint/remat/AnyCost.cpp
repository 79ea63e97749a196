#include "passes/checkpoint/remat/Backwards.h"
#include "passes/checkpoint/remat/Solver.h"
#include <algorithm>
#include <queue>
#include <tuple>
#include <unordered_set>

namespace recast::remat {

namespace {

/// Part of the effort that the way to one node may take.
constexpr uint64_t kShare = 8;

/// Node by node in the order of first runs: a search backwards from what the node reads to tensors that are live,
/// through sets that fit; then forwards along that way, while what is live anyway stays for as long as there is room.
class Pebbles {
public:
  Pebbles(const Problem &problem, int64_t budgetBytes, uint64_t effort)
      : P(problem), Back(problem), Budget(budgetBytes), Effort(effort), Share(effort / kShare + 1),
        Readers(problem.tensors.size()), IsLive(problem.tensors.size(), 0), Wanted(problem.tensors.size(), 0) {
    FetchOf = fetchesByTensor(problem);
    for (size_t n = 0; n < P.nodes.size(); ++n)
      for (int t : P.nodes[n].reads)
        Readers[t].push_back(static_cast<int>(n));
    for (size_t t = 0; t < P.tensors.size(); ++t)
      if (P.tensors[t].isKept) {
        End.reads.push_back(static_cast<int>(t));
        Readers[t].push_back(static_cast<int>(P.nodes.size()));
      }
  }

  std::optional<Schedule> run() {
    int count = static_cast<int>(P.nodes.size());
    for (int n = 0; n <= count; ++n) {
      Next = n;
      const Node &node = n < count ? P.nodes[n] : End;
      LiveSet target;
      for (int t : node.reads) {
        release(t);
        if (!Back.isHeld(t))
          insert(target, t);
      }
      if (Effort == 0 || Back.need(node, {}) + HeldBytes > Budget || !reach(target))
        return std::nullopt;
      if (n < count)
        execute(n, {});
      for (int t : node.writes)
        if (!canRun(t))
          hold(t);
    }
    return std::move(Done);
  }

private:
  /// A tensor that cannot be made again stays as long as first runs read it.
  void hold(int tensor) {
    if (nextReader(tensor) == kNever)
      return;
    drop(tensor);
    Back.hold(tensor, true);
    HeldBytes += P.tensors[tensor].bytes;
  }
  void release(int tensor) {
    if (!Back.isHeld(tensor) || nextReader(tensor) != kNever)
      return;
    Back.hold(tensor, false);
    HeldBytes -= P.tensors[tensor].bytes;
    keep(tensor);
  }

  /// The first node after the one that is on turn that reads the tensor.
  int nextReader(int tensor) const {
    auto at = std::upper_bound(Readers[tensor].begin(), Readers[tensor].end(), Next);
    return at == Readers[tensor].end() ? kNever : *at;
  }

  void keep(int tensor) {
    if (IsLive[tensor])
      return;
    IsLive[tensor] = 1;
    Live.push_back(tensor);
    LiveBytes += P.tensors[tensor].bytes;
  }
  void drop(int tensor) {
    if (!IsLive[tensor])
      return;
    IsLive[tensor] = 0;
    std::iter_swap(std::find(Live.begin(), Live.end(), tensor), Live.end() - 1);
    Live.pop_back();
    LiveBytes -= P.tensors[tensor].bytes;
  }

  struct Step {
    LiveSet live; ///< Before the run.
    int after;    ///< The step whose set is live after it.
    int node;
  };

  /// Runs what makes `target` live. False where no way was found: searches first for the nearest way from what is live,
  /// then, where that leads nowhere, as if nothing were.
  bool reach(const LiveSet &target) {
    return search(target, /*fromNothing=*/false, Share / 8) || search(target, true, Share);
  }

  bool search(const LiveSet &target, bool fromNothing, uint64_t share) {
    uint64_t effort = std::min(share, Effort);
    Effort -= effort;
    std::vector<Step> steps;
    std::unordered_set<LiveSet, LiveSetHash> seen;
    // First what is nearest to the graph's start, then what takes the fewest bytes, then what was found first.
    std::priority_queue<std::tuple<int, int64_t, int>> queue;
    int end = -1; // The step before which all is live.
    auto add = [&](int node, int after, LiveSet live) {
      if (after >= 0)
        effort -= std::min<uint64_t>(effort, live.size());
      steps.push_back({live, after, node});
      Back.shrink(
          live, Budget - HeldBytes,
          // What is there need not be fetched, unless it has to make room.
          [&](int t) { return canRun(t) && (fromNothing || FetchOf[t] < 0 || !IsLive[t]); },
          [&](int run, const LiveSet &before) { steps.push_back({before, static_cast<int>(steps.size()) - 1, run}); });
      auto isLive = [&](int t) { return IsLive[t]; };
      int at = static_cast<int>(steps.size()) - 1;
      if (std::all_of(live.begin(), live.end(), isLive)) {
        end = at;
      } else if (std::all_of(live.begin(), live.end(), [&](int t) { return IsLive[t] || canRun(t); }) &&
                 seen.insert(live).second) {
        int last = -1; // Of the nodes that have to run.
        for (int t : live)
          if (fromNothing || !IsLive[t])
            last = std::max(last, writerOf(t));
        queue.emplace(-last, -Back.bytes(live), -at);
      }
    };
    for (add(-1, -1, target); end < 0 && effort > 0 && !queue.empty();) {
      int at = -std::get<2>(queue.top());
      queue.pop();
      LiveSet live = steps[at].live;
      for (int t : live)
        if (int run = Back.source(t); end < 0 && canRun(t) && Back.need(Back.run(run), live) + HeldBytes <= Budget)
          add(run, at, Back.before(run, live));
    }
    Effort += effort;
    if (end < 0)
      return false;
    for (; steps[end].after >= 0; end = steps[end].after)
      execute(steps[end].node, steps[steps[end].after].live);
    return true;
  }

  bool canRun(int tensor) const { return FetchOf[tensor] >= 0 || P.nodes[Back.source(tensor)].canRepeat; }
  /// Where in the graph the run is that makes a tensor again; fetches go back to its start.
  int writerOf(int tensor) const { return FetchOf[tensor] >= 0 ? -1 : Back.source(tensor); }

  /// A run whose operands are live; `after` stays live, and of the rest what fits, the soonest read first.
  void execute(int run, const LiveSet &after) {
    Done.runs.push_back(run);
    const Node &n = Back.run(run);
    ++Epoch;
    for (int t : after)
      Wanted[t] = Epoch;
    for (int t : n.overwrites)
      if (Wanted[t] != Epoch)
        drop(t);
    for (int t : n.reads)
      Wanted[t] = Epoch;
    for (int t : n.writes) {
      Wanted[t] = Epoch;
      keep(t);
    }
    if (LiveBytes + HeldBytes + n.workspaceBytes <= Budget)
      return;
    std::vector<std::pair<int, int>> others;
    for (int t : Live)
      if (Wanted[t] != Epoch)
        others.emplace_back(canRun(t) ? -nextReader(t) : 0, t); // What cannot be made again stays longest.
    std::sort(others.begin(), others.end());
    Effort -= std::min<uint64_t>(Effort, others.size());
    // What no first run reads any more would only draw searches towards it.
    for (auto [reader, t] : others)
      if (reader == -kNever || LiveBytes + HeldBytes + n.workspaceBytes > Budget)
        drop(t);
  }

  static constexpr int kNever = INT32_MAX;

  const Problem &P;
  Node End; ///< Reads what is kept.
  Backwards Back;
  int64_t Budget, HeldBytes = 0, LiveBytes = 0; ///< LiveBytes: of `Live`.
  uint64_t Effort, Share;
  std::vector<int> FetchOf;              ///< fetchesByTensor().
  std::vector<std::vector<int>> Readers; ///< Of each tensor, in order.
  std::vector<int> Live;                 ///< Those that are not held.
  std::vector<char> IsLive;
  std::vector<uint32_t> Wanted; ///< Epoch in which a tensor must stay.
  uint32_t Epoch = 0;
  int Next = 0; ///< The node whose first run is on turn.
  Schedule Done;
};

} // namespace

std::optional<Schedule> fitAtAnyCost(const Problem &problem, int64_t budgetBytes, uint64_t effort) {
  return Pebbles(problem, budgetBytes, effort).run();
}

} // namespace recast::remat
