#include "passes/checkpoint/remat/Backwards.h"
#include "passes/checkpoint/remat/Solver.h"
#include <algorithm>
#include <queue>
#include <utility>

namespace recast::remat {

namespace {

/// Sets that were looked at. One that holds another is no better than that one.
class Looked {
public:
  explicit Looked(size_t tensors) : ByLast(tensors) {}

  /// False where `set`, or a part of it, is among them already.
  bool add(const LiveSet &set) {
    uint64_t mark = 0;
    for (int t : set)
      mark |= uint64_t(1) << (t % 64);
    for (int t : set)
      for (const auto &[otherMark, other] : ByLast[t])
        if ((otherMark & ~mark) == 0 && std::includes(set.begin(), set.end(), other.begin(), other.end()))
          return false;
    ByLast[set.back()].emplace_back(mark, set);
    return true;
  }

private:
  std::vector<std::vector<std::pair<uint64_t, LiveSet>>> ByLast; ///< By a set's last tensor; with bits of its tensors.
};

/// The least peak with which `live` is reached from nothing, at least `known`; a lower bound of it when `effort` ends,
/// which is lowered by the sizes of the sets that were looked at. Backwards from a run: of tensors that are live
/// together, the one that was written last was written while all others, and its writer's inputs, were live; these are
/// the set before. Of all ways back to nothing one was taken, so the least peak among them is a bound: the black
/// pebbling number, weighted.
int64_t bound(const Problem &problem, const Backwards &back, LiveSet live, int64_t known, uint64_t &effort) {
  struct State {
    int64_t peak;
    LiveSet live;
  };
  // The lowest peak first; among equals what is nearest to the graph's start.
  auto isLater = [](const State &a, const State &b) {
    return a.peak != b.peak                 ? a.peak > b.peak
           : a.live.back() != b.live.back() ? a.live.back() > b.live.back()
                                            : a.live > b.live;
  };
  std::priority_queue<State, std::vector<State>, decltype(isLater)> queue(isLater);
  Looked looked(problem.tensors.size());
  int64_t least = INT64_MAX; // Of the ways that end.
  auto add = [&](int64_t peak, LiveSet set) {
    back.shrink(set, peak, [](int) { return true; }, [](int, const LiveSet &) {});
    if (set.empty())
      least = std::min(least, peak);
    else if (peak < least)
      queue.push({peak, std::move(set)});
  };
  add(known, std::move(live));
  while (!queue.empty() && queue.top().peak < least) {
    State state = queue.top();
    if (effort == 0)
      return state.peak;
    effort -= std::min<uint64_t>(effort, state.live.size());
    queue.pop();
    if (!looked.add(state.live))
      continue;
    for (int last : state.live) {
      int run = back.source(last);
      add(std::max(state.peak, back.need(back.run(run), state.live)), back.before(run, state.live));
    }
  }
  return least;
}

} // namespace

Floor floorBound(const Problem &problem, uint64_t effort) {
  Backwards back(problem);
  int count = static_cast<int>(problem.nodes.size());
  std::vector<std::pair<int64_t, int>> order;
  for (int n = 0; n < count; ++n)
    order.push_back({-back.need(problem.nodes[n], {}), n});
  Node end; // Reads what is kept.
  for (size_t t = 0; t < problem.tensors.size(); ++t)
    if (problem.tensors[t].isKept)
      end.reads.push_back(static_cast<int>(t));
  order.push_back({-back.need(end, {}), count});
  std::sort(order.begin(), order.end());
  Floor floor = {-order.front().first, order.front().second};
  uint64_t share = effort / 32 + 1;
  for (auto [need, n] : order) {
    LiveSet live;
    for (int t : n == count ? end.reads : problem.nodes[n].reads)
      insert(live, t);
    uint64_t part = std::min(share, effort);
    effort -= part;
    int64_t bytes = bound(problem, back, std::move(live), floor.bytes, part);
    effort += part;
    if (bytes > floor.bytes)
      floor = {bytes, n};
    if (effort == 0)
      break;
  }
  return floor;
}

} // namespace recast::remat
