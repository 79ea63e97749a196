#include "passes/checkpoint/remat/Solver.h"
#include <algorithm>
#include <numeric>
#include <queue>
#include <set>

namespace recast::remat {

namespace {

using Set = std::vector<int>; ///< Sorted tensors.

void insert(Set &set, int tensor) {
  auto it = std::lower_bound(set.begin(), set.end(), tensor);
  if (it == set.end() || *it != tensor)
    set.insert(it, tensor);
}

/// Backwards from a run: a set of tensors that are live together. The member that was written last was written while
/// all others, and its writer's inputs, were live; these are the set before. Of all ways back to nothing one was
/// taken, so the least peak among them is a bound: the black pebbling number, weighted.
class Backwards {
public:
  explicit Backwards(const Problem &problem) : P(problem), Writer(problem.tensors.size(), -1) {
    for (size_t n = 0; n < P.nodes.size(); ++n)
      for (int t : P.nodes[n].writes)
        Writer[t] = static_cast<int>(n);
  }

  /// What is live when `node` runs and `after` stays live.
  int64_t need(const Node &node, const Set &after) const {
    Set live = after;
    for (int t : node.writes)
      insert(live, t);
    for (int t : node.reads)
      if (std::find(node.overwrites.begin(), node.overwrites.end(), t) == node.overwrites.end())
        insert(live, t);
    int64_t bytes = node.workspaceBytes;
    for (int t : live)
      bytes += P.tensors[t].bytes;
    return bytes;
  }

  /// The least peak with which `live` is reached from nothing, at least `known`; a lower bound of it when `effort`
  /// ends, which is lowered by the sizes of the sets that were looked at.
  int64_t bound(Set live, int64_t known, uint64_t &effort) const {
    struct State {
      int64_t peak;
      Set live;
    };
    // The lowest peak first; among equals what is nearest to the graph's start.
    auto isLater = [](const State &a, const State &b) {
      return a.peak != b.peak                 ? a.peak > b.peak
             : a.live.back() != b.live.back() ? a.live.back() > b.live.back()
                                              : a.live > b.live;
    };
    std::priority_queue<State, std::vector<State>, decltype(isLater)> queue(isLater);
    if (live.empty())
      return known;
    std::set<Set> done;
    int64_t least = INT64_MAX; ///< Of the ways that end.
    queue.push({known, std::move(live)});
    while (!queue.empty() && queue.top().peak < least) {
      State state = queue.top();
      if (effort == 0)
        return state.peak;
      effort -= std::min<uint64_t>(effort, state.live.size());
      queue.pop();
      if (!done.insert(state.live).second)
        continue;
      for (int last : state.live) {
        const Node &node = P.nodes[Writer[last]];
        int64_t peak = std::max(state.peak, need(node, state.live));
        Set before;
        for (int t : state.live)
          if (Writer[t] != Writer[last])
            before.push_back(t);
        for (int t : node.reads)
          insert(before, t);
        if (before.empty())
          least = std::min(least, peak);
        else if (peak < least && !done.count(before))
          queue.push({peak, std::move(before)});
      }
    }
    return least;
  }

private:
  const Problem &P;
  std::vector<int> Writer;
};

} // namespace

Floor floorBound(const Problem &problem, uint64_t effort) {
  Backwards backwards(problem);
  int count = static_cast<int>(problem.nodes.size());
  std::vector<std::pair<int64_t, int>> order;
  for (int n = 0; n < count; ++n)
    order.push_back({-backwards.need(problem.nodes[n], {}), n});
  Node end; // Reads what is kept.
  for (size_t t = 0; t < problem.tensors.size(); ++t)
    if (problem.tensors[t].isKept)
      end.reads.push_back(static_cast<int>(t));
  order.push_back({-backwards.need(end, {}), count});
  std::sort(order.begin(), order.end());
  Floor floor = {-order.front().first, order.front().second};
  uint64_t share = effort / 32 + 1;
  for (auto [need, n] : order) {
    Set live;
    for (int t : n == count ? end.reads : problem.nodes[n].reads)
      insert(live, t);
    uint64_t part = std::min(share, effort);
    effort -= part;
    int64_t bytes = backwards.bound(std::move(live), floor.bytes, part);
    effort += part;
    if (bytes > floor.bytes)
      floor = {bytes, n};
    if (effort == 0)
      break;
  }
  return floor;
}

} // namespace recast::remat
