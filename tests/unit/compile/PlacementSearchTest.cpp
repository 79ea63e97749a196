#include "runtime/compile/PlacementSearch.h"
#include <algorithm>
#include <climits>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace recast::placement {
namespace {

Problem randomProblem(uint64_t seed, size_t count, int steps, int sizes, int length = INT_MAX) {
  std::mt19937_64 random(seed);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  Problem problem;
  for (size_t i = 0; i < count; ++i) {
    int first = below(steps), last = first + below(std::min(steps - first, length));
    problem.items.push_back({64 * static_cast<size_t>(1 + below(sizes)), first, last});
  }
  return problem;
}

/// The optimum, by every order in which items can be dropped on what lies there: an optimal placement whose items
/// cannot move down comes from the order of its offsets.
size_t bruteForce(const Problem &problem) {
  std::vector<size_t> order(problem.items.size());
  std::iota(order.begin(), order.end(), 0);
  size_t best = SIZE_MAX;
  do {
    std::vector<size_t> top(problem.items.size());
    size_t high = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      const Item &item = problem.items[order[k]];
      size_t offset = 0;
      for (size_t j = 0; j < k; ++j)
        if (const Item &other = problem.items[order[j]]; other.first <= item.last && item.first <= other.last)
          offset = std::max(offset, top[order[j]]);
      high = std::max(high, top[order[k]] = offset + item.bytes);
    }
    best = std::min(best, high);
  } while (std::ranges::next_permutation(order).found);
  return best;
}

/// Cuts a full rectangle of `steps` by `height` units into items: the capacity that the cuts leave no room in.
Problem perfectProblem(uint64_t seed, int steps, int height) {
  std::mt19937_64 random(seed);
  Problem problem;
  auto cut = [&](auto &&self, int first, int last, int size) -> void {
    bool isWide = last > first, isTall = size > 1;
    if ((!isWide && !isTall) || random() % 8 == 0 || (last - first < steps / 8 && size < height / 8)) {
      problem.items.push_back({64 * static_cast<size_t>(size), first, last});
    } else if (isWide && (!isTall || random() % 2)) {
      int at = first + static_cast<int>(random() % static_cast<uint64_t>(last - first));
      self(self, first, at, size);
      self(self, at + 1, last, size);
    } else {
      int part = 1 + static_cast<int>(random() % static_cast<uint64_t>(size - 1));
      self(self, first, last, part);
      self(self, first, last, size - part);
    }
  };
  cut(cut, 0, steps - 1, height);
  std::ranges::shuffle(problem.items, random);
  return problem;
}

TEST(PlacementSearch, SmallProblemsReachTheOptimumOfBruteForce) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Problem problem = randomProblem(seed, 7, 6, 5);
    size_t optimum = bruteForce(problem);
    Solution solution = minimise(problem, heuristics(problem), 100000);
    ASSERT_EQ(check(problem, solution), "") << "seed " << seed;
    ASSERT_EQ(solution.bytes, optimum) << "seed " << seed;
    // The proof that less is impossible, and the optimum without a start that has it.
    uint64_t nodes = 100000;
    ASSERT_EQ(fit(problem, optimum - 64, nodes, solution), Fit::Impossible) << "seed " << seed;
    ASSERT_EQ(fit(problem, optimum, nodes, solution), Fit::Found) << "seed " << seed;
    ASSERT_EQ(check(problem, solution), "") << "seed " << seed;
  }
}

// Few small problems need more than what is live at the fullest step; these are found among many, and both answers of
// the search are compared with brute force.
TEST(PlacementSearch, ProvesThatTheLowerBoundIsOutOfReach) {
  int proofs = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Problem problem = randomProblem(seed, 9, 10, 2, 4);
    uint64_t nodes = 100000;
    Solution solution;
    Fit result = fit(problem, lowerBound(problem), nodes, solution);
    ASSERT_NE(result, Fit::OutOfNodes) << "seed " << seed;
    if (result == Fit::Found) {
      ASSERT_EQ(check(problem, solution), "") << "seed " << seed;
      continue;
    }
    ++proofs;
    size_t optimum = bruteForce(problem);
    ASSERT_GT(optimum, lowerBound(problem)) << "seed " << seed;
    ASSERT_EQ(minimise(problem, heuristics(problem), 100000).bytes, optimum) << "seed " << seed;
  }
  EXPECT_GT(proofs, 0);
}

TEST(PlacementSearch, FillsARectangleWithoutAGap) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Problem problem = perfectProblem(seed, 24, 64);
    uint64_t nodes = 1'000'000;
    Solution solution;
    ASSERT_EQ(fit(problem, lowerBound(problem), nodes, solution), Fit::Found)
        << "seed " << seed << ", " << problem.items.size() << " items";
    ASSERT_EQ(check(problem, solution), "") << "seed " << seed;
    ASSERT_EQ(solution.bytes, 64u * 64);
  }
}

// MiniMalloc's challenging instances; bench/allocation times them. Most leave no byte of the arena unused.
TEST(PlacementSearch, PlacesMiniMallocsInstancesAtTheirCapacity) {
  auto folder = std::filesystem::path(RECAST_CORPUS).parent_path() / "benchmarks" / "allocation";
  for (char name = 'A'; name <= 'K'; ++name) {
    std::ifstream file(folder / (std::string(1, name) + ".csv"));
    ASSERT_TRUE(file) << folder << " lacks instance " << name;
    file.ignore(INT_MAX, '\n');
    Problem problem{.items = {}, .alignment = 1};
    int id, first, end;
    size_t bytes;
    for (char comma; file >> id >> comma >> first >> comma >> end >> comma >> bytes;)
      problem.items.push_back({bytes, first, end - 1});
    ASSERT_GT(problem.items.size(), 100u) << name;
    uint64_t nodes = 2'000'000;
    Solution solution;
    ASSERT_EQ(fit(problem, 1 << 20, nodes, solution), Fit::Found) << name;
    ASSERT_EQ(check(problem, solution), "") << name;
    ASSERT_LE(solution.bytes, size_t(1) << 20) << name;
  }
}

TEST(PlacementSearch, NeverWorseThanItsStart) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Problem problem = randomProblem(seed, 20 + 3 * seed, 40, 100);
    Solution start = heuristics(problem);
    Solution solution = minimise(problem, start, 300 * (seed % 10));
    ASSERT_EQ(check(problem, solution), "") << "seed " << seed;
    ASSERT_LE(solution.bytes, start.bytes);
    ASSERT_GE(solution.bytes, lowerBound(problem));
  }
}

TEST(PlacementSearch, EndsWithItsNodes) {
  Problem problem = randomProblem(5, 200, 40, 1000);
  uint64_t nodes = 50; // Fewer than there are items.
  Solution solution;
  EXPECT_EQ(fit(problem, lowerBound(problem), nodes, solution), Fit::OutOfNodes);
  EXPECT_EQ(nodes, 0u);
}

TEST(PlacementSearch, NothingToPlace) {
  Problem problem{{{0, 0, 3}}};
  uint64_t nodes = 10;
  Solution solution;
  EXPECT_EQ(fit(problem, 0, nodes, solution), Fit::Found);
  EXPECT_EQ(check(problem, solution), "");
}

} // namespace
} // namespace recast::placement
