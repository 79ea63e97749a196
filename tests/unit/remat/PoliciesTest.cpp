// Policies, their minimum cut, and the order of operators.
#include "passes/checkpoint/remat/Candidates.h"
#include "passes/checkpoint/remat/MinCut.h"
#include "passes/checkpoint/remat/Order.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace recast::remat {
namespace {

/// A problem under construction: nodes by what they read; each writes one tensor, whose number is the node's.
struct Graph {
  Problem problem;
  Roles roles;

  int add(std::vector<int> reads, int64_t bytes, bool isForward, bool isCheap = true) {
    Node node;
    node.reads = std::move(reads);
    node.writes = {static_cast<int>(problem.tensors.size())};
    node.cost = bytes + 1;
    problem.nodes.push_back(node);
    problem.tensors.push_back({bytes, false});
    roles.isForward.push_back(isForward);
    roles.isCheap.push_back(isCheap);
    return node.writes[0];
  }
  int forward(std::vector<int> reads, int64_t bytes, bool isCheap = true) {
    return add(std::move(reads), bytes, true, isCheap);
  }
  int backward(std::vector<int> reads, int64_t bytes) { return add(std::move(reads), bytes, false); }

  int64_t peak(const Schedule &schedule) const { return usage(problem, schedule).peakBytes; }
  int64_t plainPeak() const { return peak(plainSchedule(problem)); }
  int runs(const Schedule &schedule, int node) const {
    return static_cast<int>(std::count(schedule.runs.begin(), schedule.runs.end(), node));
  }
};

/// f_1 .. f_n, and backward b_n .. b_1 where b_i reads f_{i-1} and b_{i+1}.
Graph chain(int n, int64_t bytes) {
  Graph g;
  std::vector<int> f;
  for (int i = 0; i < n; ++i)
    f.push_back(g.forward(f.empty() ? std::vector<int>{} : std::vector{f.back()}, bytes));
  int gradient = -1;
  for (int i = n; i-- > 0;) {
    std::vector<int> reads{f[i]};
    if (gradient >= 0)
      reads.push_back(gradient);
    gradient = g.backward(reads, bytes);
  }
  g.problem.tensors[gradient].isKept = true;
  return g;
}

/// Random layered graph: forward nodes read earlier ones, backward nodes read forward ones and the gradient before.
Graph randomGraph(std::mt19937 &random) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Graph g;
  int n = 2 + below(20);
  for (int i = 0; i < n; ++i) {
    std::vector<int> reads;
    for (int r = 0, count = i ? below(3) : 0; r < count; ++r)
      reads.push_back(std::max(0, i - 1 - below(5)));
    std::sort(reads.begin(), reads.end());
    reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
    g.forward(reads, below(8) * 8, below(3) > 0);
    g.problem.nodes.back().canRepeat = below(6) > 0;
    g.problem.nodes.back().workspaceBytes = below(3) * 8;
    g.problem.tensors.back().isKept = below(12) == 0;
  }
  for (int i = n; i-- > 0;) {
    std::vector<int> reads;
    if (below(4) > 0)
      reads.push_back(i);
    if (i + 1 < n)
      reads.push_back(static_cast<int>(g.problem.tensors.size()) - 1);
    g.backward(reads, below(8) * 8);
  }
  return g;
}

std::vector<Schedule> allPolicies(const Graph &g) {
  std::vector<char> some(g.problem.nodes.size(), 0);
  for (size_t i = 0; i < some.size(); i += 3)
    some[i] = 1;
  return {everyN(g.problem, g.roles, 1), everyN(g.problem, g.roles, 4), sqrtSegments(g.problem, g.roles),
          selective(g.problem, g.roles), keepOnly(g.problem, g.roles, some)};
}

TEST(Policies, GiveSchedulesOfTheProblemThatRunForwardNodesAtMostTwice) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Graph g = randomGraph(random);
    for (const Schedule &schedule : allPolicies(g)) {
      ASSERT_EQ(check(g.problem, schedule), "") << "round " << round;
      for (int v = 0; v < static_cast<int>(g.problem.nodes.size()); ++v)
        ASSERT_LE(g.runs(schedule, v), g.roles.isForward[v] ? 2 : 1) << "round " << round << ", node " << v;
    }
  }
}

TEST(Policies, SqrtTakesAChainOfNToAboutTwoRootsOfN) {
  constexpr int kNodes = 100;
  Graph g = chain(kNodes, 8);
  EXPECT_GE(g.plainPeak(), kNodes * 8);
  Schedule schedule = sqrtSegments(g.problem, g.roles);
  // 10 kept, 10 of a stretch, two gradients and rounding.
  EXPECT_LE(g.peak(schedule), (10 + 10 + 4) * 8);
  EXPECT_LT(usage(g.problem, schedule).cost, usage(g.problem, plainSchedule(g.problem)).cost * 3 / 2 + 1);
}

TEST(Policies, RecomputeJustInTimeAndNotAheadOfTheBackward) {
  Graph g = chain(64, 8);
  Schedule schedule = everyN(g.problem, g.roles, 8);
  // Of every second run, the stretch's backward begins before the next stretch runs again.
  int live = 0, most = 0;
  std::vector<char> hasRun(g.problem.nodes.size(), 0);
  for (int run : schedule.runs) {
    bool isAgain = hasRun[run];
    hasRun[run] = 1;
    live = isAgain ? live + 1 : g.roles.isForward[run] ? 0 : std::max(0, live - 1);
    most = std::max(most, live);
  }
  EXPECT_GT(most, 0);
  EXPECT_LE(most, 8);
}

TEST(Policies, TheLastStretchIsKept) {
  Graph g = chain(16, 8);
  Schedule schedule = everyN(g.problem, g.roles, 8);
  for (int v = 8; v < 16; ++v)
    EXPECT_EQ(g.runs(schedule, v), 1) << v;
  EXPECT_EQ(g.runs(schedule, 3), 2);
}

TEST(Policies, AStretchWithoutGradientRunsOnce) {
  // Frozen first layers: no backward node reads what they give.
  Graph g;
  int f = g.forward({}, 8);
  for (int i = 0; i < 7; ++i)
    f = g.forward({f}, 8);
  std::vector<int> trained;
  for (int i = 0; i < 8; ++i)
    trained.push_back(f = g.forward({f}, 8));
  int gradient = -1;
  for (int i = 8; i-- > 0;)
    gradient = g.backward(gradient < 0 ? std::vector{trained[i]} : std::vector{trained[i], gradient}, 8);
  for (const Schedule &schedule : {everyN(g.problem, g.roles, 4), sqrtSegments(g.problem, g.roles)})
    for (int v = 0; v < 7; ++v)
      EXPECT_EQ(g.runs(schedule, v), 1) << v;
}

TEST(Policies, WhatCannotRepeatIsKept) {
  Graph g = chain(16, 8);
  g.problem.nodes[5].canRepeat = false;
  for (const Schedule &schedule : allPolicies(g))
    EXPECT_EQ(g.runs(schedule, 5), 1);
}

TEST(Policies, SelectiveLeavesProductsAlone) {
  Graph g;
  int x = g.forward({}, 8, false), scores = g.forward({x}, 64, false), shifted = g.forward({scores}, 64),
      weights = g.forward({shifted}, 64), y = g.forward({weights}, 8, false);
  int z = y;
  for (int i = 0; i < 20; ++i)
    z = g.forward({z}, 8, false);
  int gradient = g.backward({z}, 8);
  gradient = g.backward({gradient, weights}, 64);
  g.backward({gradient, shifted}, 64);
  Schedule schedule = selective(g.problem, g.roles);
  EXPECT_EQ(g.runs(schedule, scores), 1);
  EXPECT_EQ(g.runs(schedule, x), 1);
  // From scores, or from what comes of them: one of the three big ones is kept.
  EXPECT_EQ(g.runs(schedule, weights), 2);
}

// (a * c) * x + b * y + ((a * b) * c) * z: the gradients of x, y and z need a * c, b and (a * b) * c, those of a, b and
// c need these themselves.
TEST(MinCut, KeepsTheSourcesAndNothingComputedFromThem) {
  enum { A, B, C, AC, ACX, BY, AB, ABC, ABCZ, Count };
  CutGraph graph{std::vector<int64_t>(Count, 8),
                 {{A, AC}, {C, AC}, {AC, ACX}, {B, BY}, {A, AB}, {B, AB}, {AB, ABC}, {C, ABC}, {ABC, ABCZ}},
                 {A, B, C},
                 {A, B, C, AC, AB, ABC}};
  std::vector<char> cut = minVertexCut(graph);
  std::vector<char> expected(Count, 0);
  expected[A] = expected[B] = expected[C] = 1;
  EXPECT_EQ(cut, expected);
}

TEST(MinCut, OfEqualCutsTheOneNearestTheSinks) {
  CutGraph graph{{5, 5, 5}, {{0, 1}, {1, 2}}, {0}, {2}};
  EXPECT_EQ(minVertexCut(graph), (std::vector<char>{0, 0, 1}));
  graph.weights = {5, 4, 5};
  EXPECT_EQ(minVertexCut(graph), (std::vector<char>{0, 1, 0}));
}

TEST(MinCut, IsTheLightestOfAllCuts) {
  std::mt19937 random(2);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 3000; ++round) {
    CutGraph graph;
    int n = 1 + below(8);
    for (int v = 0; v < n; ++v) {
      graph.weights.push_back(below(5));
      if (below(3) == 0)
        graph.sources.push_back(v);
      if (below(3) == 0)
        graph.sinks.push_back(v);
      for (int u = 0; u < v; ++u)
        if (below(3) == 0)
          graph.edges.emplace_back(u, v);
    }
    auto separates = [&](const std::vector<char> &cut) {
      std::vector<char> isReached(n, 0);
      for (int v = 0; v < n; ++v) {
        bool isSource = std::count(graph.sources.begin(), graph.sources.end(), v) > 0;
        for (auto [from, to] : graph.edges)
          isSource |= to == v && isReached[from];
        isReached[v] = isSource && !cut[v];
      }
      return std::none_of(graph.sinks.begin(), graph.sinks.end(), [&](int v) { return isReached[v] != 0; });
    };
    auto weight = [&](const std::vector<char> &cut) {
      int64_t sum = 0;
      for (int v = 0; v < n; ++v)
        sum += cut[v] ? graph.weights[v] : 0;
      return sum;
    };
    int64_t least = std::accumulate(graph.weights.begin(), graph.weights.end(), int64_t(0));
    for (unsigned bits = 0; bits < 1u << n; ++bits) {
      std::vector<char> cut(n);
      for (int v = 0; v < n; ++v)
        cut[v] = bits >> v & 1;
      if (separates(cut))
        least = std::min(least, weight(cut));
    }
    std::vector<char> found = minVertexCut(graph);
    ASSERT_TRUE(separates(found)) << "round " << round;
    ASSERT_EQ(weight(found), least) << "round " << round;
  }
}

TEST(Order, IsNeverWorseAndObeysWhatMustComeBefore) {
  std::mt19937 random(3);
  int better = 0;
  for (int round = 0; round < 1000; ++round) {
    Graph g = randomGraph(random);
    int count = static_cast<int>(g.problem.nodes.size());
    Precedences precedences;
    for (int i = 0; i < 3; ++i) {
      int a = static_cast<int>(random() % count), b = static_cast<int>(random() % count);
      if (a != b)
        precedences.emplace_back(std::min(a, b), std::max(a, b));
    }
    std::vector<int> order = orderForMemory(g.problem, precedences), place(count, -1);
    ASSERT_EQ(static_cast<int>(order.size()), count);
    for (int i = 0; i < count; ++i)
      place[order[i]] = i;
    for (int v = 0; v < count; ++v) {
      ASSERT_GE(place[v], 0) << "round " << round << ": node " << v << " is missing";
      for (int t : g.problem.nodes[v].reads)
        ASSERT_LT(place[t], place[v]) << "round " << round; // Tensors have their writers' numbers.
    }
    for (auto [a, b] : precedences)
      ASSERT_LT(place[a], place[b]) << "round " << round;
    Problem after = reordered(g.problem, order);
    int64_t peak = usage(after, plainSchedule(after)).peakBytes;
    ASSERT_LE(peak, g.plainPeak()) << "round " << round;
    better += peak < g.plainPeak();
  }
  EXPECT_GT(better, 100);
}

TEST(Order, BringsASourceToItsReader) {
  // Large casts of parameters at the start, read one after another.
  Graph g;
  std::vector<int> casts;
  for (int i = 0; i < 8; ++i)
    casts.push_back(g.forward({}, 100));
  int x = g.forward({casts[0]}, 8);
  for (int i = 1; i < 8; ++i)
    x = g.forward({x, casts[i]}, 8);
  Problem after = reordered(g.problem, orderForMemory(g.problem, {}));
  EXPECT_GE(g.plainPeak(), 800);
  EXPECT_LE(usage(after, plainSchedule(after)).peakBytes, 116);
}

TEST(Candidates, FetchesNeverCostMore) {
  std::mt19937 random(8);
  int cheaper = 0;
  for (int round = 0; round < 30; ++round) {
    Graph g = randomGraph(random);
    std::vector<Candidate> runs = candidates(g.problem, g.roles, {.moves = 5000});
    for (size_t t = 0; t < g.problem.tensors.size(); t += 2)
      g.problem.fetches.push_back({static_cast<int>(t), 3, 3});
    g.problem.copiesOverlap = round % 2;
    std::vector<Candidate> all = candidates(g.problem, g.roles, {.moves = 5000});
    for (const Candidate &run : runs) {
      auto fits = std::ranges::find_if(
          all, [&](const Candidate &candidate) { return candidate.usage.peakBytes <= run.usage.peakBytes; });
      ASSERT_NE(fits, all.end());
      ASSERT_EQ(check(g.problem, fits->schedule), "");
      EXPECT_LE(fits->usage.cost, run.usage.cost);
      cheaper += fits->usage.cost < run.usage.cost;
    }
  }
  EXPECT_GT(cheaper, 30);
}

TEST(Candidates, GetDearerAndSmaller) {
  std::mt19937 random(4);
  for (int round = 0; round < 100; ++round) {
    Graph g = randomGraph(random);
    Usage last = usage(g.problem, plainSchedule(g.problem));
    for (const Candidate &candidate : candidates(g.problem, g.roles, {.moves = 20'000})) {
      ASSERT_EQ(check(g.problem, candidate.schedule), "");
      Usage use = usage(g.problem, candidate.schedule);
      EXPECT_EQ(use.peakBytes, candidate.usage.peakBytes);
      ASSERT_LT(use.peakBytes, last.peakBytes);
      ASSERT_GE(use.cost, last.cost);
      last = use;
    }
    ASSERT_LE(floorBound(g.problem).bytes, last.peakBytes);
  }
}

} // namespace
} // namespace recast::remat
