// The bound against the optimum of tiny problems, which a search over all states finds.
#include "passes/checkpoint/remat/bound/LowerBound.h"
#include "passes/checkpoint/remat/bound/Relaxation.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <queue>
#include <random>

using namespace recast::remat;

namespace {

/// Few nodes, so that all states can be searched; every feature of Problem.h.
Problem randomProblem(std::mt19937 &random) {
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
int64_t optimum(const Problem &problem, int64_t budget) {
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

int64_t floorOf(const Problem &problem) {
  int64_t low = 0, high = plainPeakBytes(problem);
  while (low < high) {
    int64_t middle = low + (high - low) / 2;
    if (optimum(problem, middle) < 0)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

TEST(Bound, IsNeverAboveTheOptimum) {
  std::mt19937 random(7);
  int64_t boundSum = 0, optimumSum = 0, unreachable = 0, provenUnreachable = 0;
  for (int i = 0; i < 150; ++i) {
    Problem problem = randomProblem(random);
    int64_t peak = plainPeakBytes(problem);
    EXPECT_EQ(optimum(problem, peak), 0);
    EXPECT_EQ(lowerBound(problem, peak).extraCost, 0);
    for (int64_t budget = peak - 1; budget > 0; budget -= 1 + budget / 6) {
      int64_t least = optimum(problem, budget);
      Bound bound = lowerBound(problem, budget);
      if (least < 0) {
        ++unreachable;
        provenUnreachable += bound.isUnreachable;
        continue;
      }
      EXPECT_FALSE(bound.isUnreachable) << "problem " << i << ", budget " << budget;
      EXPECT_LE(bound.extraCost, least) << "problem " << i << ", budget " << budget;
      // A known schedule changes how it is proven, and must not make it wrong.
      Bound known = lowerBound(problem, budget, {.knownCost = least});
      EXPECT_LE(known.extraCost, least) << "problem " << i << ", budget " << budget;
      EXPECT_LE(lowerBound(problem, budget, {.knownCost = least + 3}).extraCost, least);
      EXPECT_LE(lowerBound(problem, budget, {.knownCost = least, .enough = 0.1}).extraCost, least);
      boundSum += known.extraCost;
      optimumSum += least;
    }
  }
  // What is left out (the order of runs within a gap) is seldom what costs.
  EXPECT_GT(optimumSum, 0);
  EXPECT_GE(boundSum * 10, optimumSum * 9);
  EXPECT_GE(provenUnreachable * 10, unreachable * 9);
}

TEST(Bound, TheFloorIsNeverAboveTheLeastPeak) {
  std::mt19937 random(11);
  int64_t boundSum = 0, floorSum = 0;
  for (int i = 0; i < 200; ++i) {
    Problem problem = randomProblem(random);
    int64_t least = floorOf(problem), bound = lowerBoundOfPeak(problem).peakBytes;
    EXPECT_LE(bound, least) << "problem " << i;
    boundSum += bound;
    floorSum += least;
  }
  EXPECT_GE(boundSum * 100, floorSum * 95);
}

TEST(Bound, IsTheSameAtEveryCall) {
  std::mt19937 random(3);
  Problem problem = randomProblem(random);
  int64_t budget = plainPeakBytes(problem) * 3 / 4;
  EXPECT_EQ(print(lowerBound(problem, budget).certificate), print(lowerBound(problem, budget).certificate));
}

/// A forward pass of `size` nodes and its backward: backward node i reads forward node i and the one after it.
Problem chain(int size) {
  Problem problem;
  problem.tensors.resize(2 * size, {.bytes = 1});
  problem.nodes.resize(2 * size);
  for (int v = 0; v < 2 * size; ++v) {
    auto &node = problem.nodes[v];
    node.cost = 1;
    node.writes = {v};
    if (v > 0)
      node.reads = {v - 1};
    if (v >= size && v > 0)
      node.reads.push_back(2 * size - 1 - v);
    std::ranges::sort(node.reads);
    node.reads.erase(std::unique(node.reads.begin(), node.reads.end()), node.reads.end());
  }
  return problem;
}

// A chain of units at half of its memory: what is dropped runs once more, and no byte can be saved for less.
TEST(Bound, OfAChainIsOneRunForEachByteThatIsMissing) {
  Problem problem = chain(40);
  int64_t peak = plainPeakBytes(problem), budget = peak / 2;
  EXPECT_GE(lowerBound(problem, budget).extraCost, peak - budget);
}

// Too large for linear programs, and as good.
TEST(Bound, OfALongChainToo) {
  Problem problem = chain(50'000);
  int64_t peak = plainPeakBytes(problem), budget = peak / 2;
  EXPECT_GE(lowerBound(problem, budget).extraCost, peak - budget);
}

} // namespace
