// Problems of few nodes, and their optimum.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <algorithm>
#include <map>
#include <queue>
#include <random>

namespace recast::remat {

/// Few nodes, so that all states can be searched; every feature of Problem.h.
inline Problem randomProblem(std::mt19937 &random) {
  auto below = [&](int limit) { return static_cast<int>(random() % limit); };
  Problem problem;
  int nodes = 4 + below(5);
  for (int v = 0; v < nodes; ++v) {
    Node node;
    node.cost = below(8);
    node.workspaceBytes = below(4) ? 0 : below(6);
    node.canRepeat = below(6) != 0;
    int known = static_cast<int>(problem.tensors.size());
    // A backward half that reads the forward half from its end, and some random reads.
    for (int t = 0; t < known; ++t)
      if (bool isPartner = t == v - 1 || (v >= nodes / 2 && t == nodes - 1 - v); below(10) < (isPartner ? 8 : 1))
        node.reads.push_back(t);
    for (int i = 1 + !below(4); i > 0; --i) {
      node.writes.push_back(static_cast<int>(problem.tensors.size()));
      problem.tensors.push_back({.bytes = 1 + below(9), .isKept = !below(8)});
      for (int t : node.reads)
        if (problem.tensors[t].bytes == problem.tensors.back().bytes && !below(3) && node.overwrites.empty())
          node.overwrites.push_back(t);
    }
    problem.nodes.push_back(std::move(node));
  }
  return problem;
}

/// The least cost beyond the plain one within the budget; -1: none. A state is the number of first runs and the set of
/// tensors that are held; a run is followed by dropping any of them.
inline int64_t optimum(const Problem &problem, int64_t budget) {
  int nodes = static_cast<int>(problem.nodes.size());
  auto bytesOf = [&](unsigned set) {
    int64_t sum = 0;
    for (size_t t = 0; t < problem.tensors.size(); ++t)
      sum += set >> t & 1 ? problem.tensors[t].bytes : 0;
    return sum;
  };
  auto setOf = [](const std::vector<int> &list) {
    unsigned set = 0;
    for (int t : list)
      set |= 1u << t;
    return set;
  };
  unsigned kept = 0;
  for (size_t t = 0; t < problem.tensors.size(); ++t)
    kept |= unsigned(problem.tensors[t].isKept) << t;
  using State = std::pair<int, unsigned>;
  std::map<State, int64_t> costs{{{0, 0}, 0}};
  std::priority_queue<std::pair<int64_t, State>, std::vector<std::pair<int64_t, State>>, std::greater<>> queue;
  queue.push({0, {0, 0}});
  while (!queue.empty()) {
    auto [cost, state] = queue.top();
    auto [done, held] = state;
    queue.pop();
    if (cost != costs[state])
      continue;
    if (done == nodes && (held & kept) == kept)
      return cost;
    for (int v = 0; v <= std::min(done, nodes - 1); ++v) {
      auto &node = problem.nodes[v];
      unsigned reads = setOf(node.reads), writes = setOf(node.writes), overwrites = setOf(node.overwrites);
      bool isFirst = v == done;
      if ((reads & held) != reads || (!isFirst && !node.canRepeat))
        continue;
      unsigned live = held | writes;
      for (unsigned after = live;; after = (after - 1) & live) {
        // What is dropped here was not needed since its last reader: only this run's reads may end at it.
        unsigned dropped = held & ~after & ~writes;
        if ((dropped & ~reads) == 0) {
          int64_t bytes = bytesOf(live & ~(overwrites & dropped)) + node.workspaceBytes;
          State next{done + isFirst, after};
          int64_t total = cost + (isFirst ? 0 : node.cost);
          if (auto found = costs.find(next); bytes <= budget && (found == costs.end() || total < found->second)) {
            costs[next] = total;
            queue.push({total, next});
          }
        }
        if (after == 0)
          break;
      }
    }
    // Anything may be dropped at any time.
    for (size_t t = 0; t < problem.tensors.size(); ++t)
      if (held >> t & 1) {
        State next{done, held & ~(1u << t)};
        if (auto found = costs.find(next); found == costs.end() || cost < found->second) {
          costs[next] = cost;
          queue.push({cost, next});
        }
      }
  }
  return -1;
}

} // namespace recast::remat
