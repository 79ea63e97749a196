// The bound against the optimum of tiny problems, which a search over all states finds.
#include "passes/checkpoint/remat/bound/LowerBound.h"
#include "tests/unit/remat/TinyProblems.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <random>

using namespace recast::remat;

namespace {

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
