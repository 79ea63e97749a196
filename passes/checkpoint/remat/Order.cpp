#include "passes/checkpoint/remat/Order.h"
#include <algorithm>
#include <numeric>
#include <queue>
#include <tuple>

namespace recast::remat {

namespace {

/// Peak, then bytes over time.
using Score = std::pair<int64_t, int64_t>;

class Orderer {
public:
  Orderer(const Problem &problem, const Precedences &precedences);

  std::vector<int> best();

private:
  /// How the next node is picked among those that can come.
  enum class Pick {
    Pressed, ///< One that takes no memory on balance at once; else the next of the order so far.
    Lightest ///< The one that takes least on balance.
  };
  std::vector<int> schedule(const std::vector<int> &order, Pick pick, bool isReverse) const;
  Score score(const std::vector<int> &order) const;
  int64_t balance(int node, bool isReverse, const std::vector<int> &readersLeft) const;

  const Problem &problem;
  std::vector<std::vector<int>> before, after; ///< Of each node, without repetitions.
  std::vector<std::vector<int>> readers;       ///< Of each tensor.
  std::vector<int> writer;                     ///< Of each tensor.
};

Orderer::Orderer(const Problem &problem, const Precedences &precedences)
    : problem(problem), before(problem.nodes.size()), after(problem.nodes.size()), readers(problem.tensors.size()),
      writer(problem.tensors.size(), -1) {
  for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v) {
    for (int t : problem.nodes[v].writes)
      writer[t] = v;
    for (int t : problem.nodes[v].reads) {
      readers[t].push_back(v);
      before[v].push_back(writer[t]);
    }
  }
  for (auto [first, second] : precedences)
    before[second].push_back(first);
  for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v) {
    std::sort(before[v].begin(), before[v].end());
    before[v].erase(std::unique(before[v].begin(), before[v].end()), before[v].end());
    for (int u : before[v])
      after[u].push_back(v);
  }
}

/// What is live more (forwards: after the node, backwards: before it) for having the node now.
int64_t Orderer::balance(int v, bool isReverse, const std::vector<int> &readersLeft) const {
  const Node &node = problem.nodes[v];
  int64_t written = 0, read = 0;
  for (int t : node.writes) {
    bool isHeld = isReverse ? true : !readers[t].empty() || problem.tensors[t].isKept;
    written += isHeld ? problem.tensors[t].bytes : 0;
  }
  for (int t : node.reads) {
    // Forwards the last reader that is left frees it; backwards the first one that is met brings it up.
    int all = static_cast<int>(readers[t].size());
    bool changes = isReverse ? readersLeft[t] == all : readersLeft[t] == 1;
    read += changes && !problem.tensors[t].isKept ? problem.tensors[t].bytes : 0;
  }
  return isReverse ? read - written : written - read;
}

std::vector<int> Orderer::schedule(const std::vector<int> &order, Pick pick, bool isReverse) const {
  size_t count = order.size();
  const auto &blockers = isReverse ? after : before, &blocked = isReverse ? before : after;
  std::vector<int> place(count), left(count), readersLeft(problem.tensors.size());
  for (size_t i = 0; i < count; ++i) {
    place[order[i]] = static_cast<int>(isReverse ? count - 1 - i : i);
    left[i] = static_cast<int>(blockers[i].size());
  }
  for (size_t t = 0; t < readers.size(); ++t)
    readersLeft[t] = static_cast<int>(readers[t].size());
  using Entry = std::tuple<int64_t, int, int>; // Balance or 0, place, node. Least first.
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
  auto keyOf = [&](int v) {
    int64_t bytes = balance(v, isReverse, readersLeft);
    return pick == Pick::Lightest ? bytes : bytes <= 0 ? -1 : 0;
  };
  for (size_t v = 0; v < count; ++v)
    if (left[v] == 0)
      ready.emplace(keyOf(static_cast<int>(v)), place[v], static_cast<int>(v));
  std::vector<int> result;
  std::vector<char> isDone(count, 0);
  while (!ready.empty()) {
    auto [key, at, v] = ready.top();
    ready.pop();
    if (isDone[v])
      continue;
    isDone[v] = 1;
    result.push_back(v);
    for (int t : problem.nodes[v].reads) {
      --readersLeft[t];
      // Those that read it too weigh something else now.
      if (isReverse ? readersLeft[t] + 1 == static_cast<int>(readers[t].size()) : readersLeft[t] == 1)
        for (int reader : readers[t])
          if (!isDone[reader] && left[reader] == 0)
            ready.emplace(keyOf(reader), place[reader], reader);
    }
    for (int next : blocked[v])
      if (--left[next] == 0)
        ready.emplace(keyOf(next), place[next], next);
  }
  if (isReverse)
    std::reverse(result.begin(), result.end());
  return result;
}

Score Orderer::score(const std::vector<int> &order) const {
  std::vector<int> place(order.size()), last(problem.tensors.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) {
    place[order[i]] = static_cast<int>(i);
    for (int t : problem.nodes[order[i]].reads)
      last[t] = static_cast<int>(i);
  }
  Score score{usage(reordered(problem, order), plainSchedule(problem)).peakBytes, 0};
  for (size_t t = 0; t < problem.tensors.size(); ++t) {
    int end = problem.tensors[t].isKept ? static_cast<int>(order.size()) : last[t];
    if (writer[t] >= 0 && end >= 0)
      score.second += problem.tensors[t].bytes / 64 * (end - place[writer[t]]); // In units that cannot overflow.
  }
  return score;
}

std::vector<int> Orderer::best() {
  std::vector<int> result(problem.nodes.size());
  std::iota(result.begin(), result.end(), 0);
  Score least = score(result);
  constexpr int kRounds = 4; // Later ones have found nothing in practice.
  for (int round = 0; round < kRounds; ++round) {
    Score start = least;
    for (auto [pick, isReverse] : {std::pair(Pick::Pressed, true), std::pair(Pick::Pressed, false),
                                   std::pair(Pick::Lightest, true), std::pair(Pick::Lightest, false)}) {
      std::vector<int> order = schedule(result, pick, isReverse);
      if (Score found = score(order); found < least) {
        least = found;
        result = std::move(order);
      }
    }
    if (least == start)
      break;
  }
  return result;
}

} // namespace

std::vector<int> orderForMemory(const Problem &problem, const Precedences &precedences) {
  return Orderer(problem, precedences).best();
}

Problem reordered(const Problem &problem, const std::vector<int> &order) {
  Problem result;
  result.tensors = problem.tensors;
  for (int v : order)
    result.nodes.push_back(problem.nodes[v]);
  return result;
}

} // namespace recast::remat
