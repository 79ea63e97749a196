#include "passes/checkpoint/remat/Solver.h"
#include "passes/checkpoint/remat/Hoist.h"
#include "passes/checkpoint/remat/Timeline.h"
#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <queue>
#include <random>
#include <tuple>

namespace recast::remat {
namespace {

/// With all that training graphs have: several results, workspace, effects, results of the graph, operands overwritten.
Problem randomProblem(std::mt19937 &random, int nodes) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Problem problem;
  for (int n = 0; n < nodes; ++n) {
    Node node;
    node.cost = below(20);
    node.workspaceBytes = below(4) ? 0 : below(30);
    node.canRepeat = below(7) > 0;
    int before = static_cast<int>(problem.tensors.size());
    for (int r = 0, reads = before ? below(4) : 0; r < reads; ++r) {
      int t = below(3) ? std::max(0, before - 1 - below(4)) : below(before);
      if (std::find(node.reads.begin(), node.reads.end(), t) == node.reads.end())
        node.reads.push_back(t);
    }
    for (int w = 0, writes = below(5) ? 1 : 2; w < writes; ++w) {
      node.writes.push_back(static_cast<int>(problem.tensors.size()));
      problem.tensors.push_back({1 + below(40), below(8) == 0});
    }
    if (!node.reads.empty() && below(3) == 0) {
      node.overwrites = {node.reads[0]};
      problem.tensors[node.writes[0]].bytes = problem.tensors[node.reads[0]].bytes;
    }
    problem.nodes.push_back(node);
  }
  return problem;
}

/// The same, where some tensors may be fetched: what cannot repeat among them.
Problem randomOffload(std::mt19937 &random, int nodes) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Problem problem = randomProblem(random, nodes);
  for (size_t t = 0; t < problem.tensors.size(); ++t)
    if (below(2))
      problem.fetches.push_back({static_cast<int>(t), below(12), below(6)});
  return problem;
}

/// The least cost within the budget, or -1: Dijkstra over (nodes that ran, tensors that are live, tensors that are on
/// the host), where after every run any of the live tensors are dropped.
int64_t exhaustive(const Problem &problem, int64_t budget) {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  auto mask = [](const std::vector<int> &list) {
    unsigned bits = 0;
    for (int t : list)
      bits |= 1u << t;
    return bits;
  };
  unsigned kept = 0;
  for (int t = 0; t < tensors; ++t)
    kept |= static_cast<unsigned>(problem.tensors[t].isKept) << t;
  std::vector<int64_t> bytes(1u << tensors, 0);
  for (unsigned set = 1; set < bytes.size(); ++set)
    bytes[set] = bytes[set & (set - 1)] + problem.tensors[__builtin_ctz(set)].bytes;
  using Place = std::tuple<int, unsigned, unsigned>;
  using State = std::pair<int64_t, Place>;
  std::map<Place, int64_t> best;
  std::priority_queue<State, std::vector<State>, std::greater<>> queue;
  std::vector<int> writer(tensors);
  for (int n = 0; n < nodes; ++n)
    for (int t : problem.nodes[n].writes)
      writer[t] = n;
  queue.push({0, {0, 0, 0}});
  while (!queue.empty()) {
    auto [cost, state] = queue.top();
    queue.pop();
    auto [next, live, stored] = state;
    if (!best.emplace(state, cost).second)
      continue;
    if (next == nodes && (live & kept) == kept)
      return cost;
    for (int n = 0; n <= std::min(next, nodes - 1); ++n) {
      const Node &node = problem.nodes[n];
      unsigned reads = mask(node.reads), writes = mask(node.writes), over = mask(node.overwrites);
      if ((n < next && !node.canRepeat) || (reads & ~live))
        continue;
      unsigned after = live | writes;
      for (unsigned left = after;; left = (left - 1) & after) {
        unsigned during = left | writes | (reads & ~over);
        if (bytes[during] + node.workspaceBytes <= budget && !best.count({next + (n == next), left, stored}))
          queue.push({cost + node.cost, {next + (n == next), left, stored}});
        if (left == 0)
          break;
      }
    }
    // Copies go to the host at once, so which ones is chosen with hindsight; what is live stays, to be dropped later.
    for (const Fetch &fetch : problem.fetches)
      if (unsigned bit = 1u << fetch.tensor; writer[fetch.tensor] < next && bytes[live | bit] <= budget)
        queue.push({cost + fetch.cost + (stored & bit ? 0 : fetch.storeCost), {next, live | bit, stored | bit}});
  }
  return -1;
}

TEST(Timeline, AgreesWithUsageAfterEveryChange) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 80; ++trial) {
    int nodes = 5 + static_cast<int>(random() % 60);
    Problem problem = trial % 2 ? randomOffload(random, nodes) : randomProblem(random, nodes);
    Timeline line(problem, plainSchedule(problem));
    for (int step = 0; step < 120; ++step) {
      std::vector<int> repeats = line.repeats();
      if (!repeats.empty() && random() % 3 == 0) {
        line.erase(repeats[random() % repeats.size()]);
      } else {
        int next = line.end(), back = static_cast<int>(random() % (line.runs() - 1));
        for (int i = 0; i < back; ++i)
          next = line.previous(next);
        // A node that has run before that place.
        int node = static_cast<int>(random() % (problem.nodes.size() + problem.fetches.size())), writer = node;
        if (problem.isFetch(node)) {
          EXPECT_EQ(line.firstOf(node), -1);
          int tensor = problem.fetch(node).tensor;
          for (writer = 0;
               std::ranges::find(problem.nodes[writer].writes, tensor) == problem.nodes[writer].writes.end();)
            ++writer;
        } else if (!problem.nodes[node].canRepeat) {
          continue;
        }
        if (line.before(line.firstOf(writer)) >= line.before(next))
          continue;
        line.insert(node, next);
      }
      Schedule schedule = line.schedule();
      ASSERT_EQ(check(problem, schedule), "");
      Usage used = usage(problem, schedule);
      ASSERT_EQ(line.peak(), used.peakBytes);
      ASSERT_EQ(line.cost(), used.cost);
    }
  }
}

/// Holds what solve() finds for tiny problems of a kind against the best of all schedules.
void compareWithAll(Problem (*make)(std::mt19937 &, int), unsigned seed) {
  std::mt19937 random(seed);
  int fitting = 0, least = 0, impossible = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Problem problem = make(random, 3 + trial % 5);
    Usage plain = usage(problem, plainSchedule(problem));
    int64_t budget = plain.peakBytes * static_cast<int64_t>(50 + random() % 50) / 100;
    int64_t optimum = exhaustive(problem, budget);
    Solution solution = solve(problem, budget, {.moves = 5000, .seconds = 0, .seed = 1});
    ASSERT_EQ(check(problem, solution.schedule), "");
    if (optimum < 0) {
      ++impossible;
      EXPECT_FALSE(solution.fits);
      continue;
    }
    EXPECT_LE(floorBound(problem).bytes, budget);
    ++fitting;
    if (solution.fits) {
      EXPECT_GE(solution.usage.cost, optimum);
      least += solution.usage.cost == optimum;
    }
  }
  EXPECT_GT(fitting, 20);
  EXPECT_GT(impossible, 20);
  EXPECT_GE(least, fitting * 95 / 100);
}

TEST(Solver, TinyGraphsAgainstAllSchedules) { compareWithAll(randomProblem, 11); }
TEST(Solver, TinyOffloadsAgainstAllSchedules) { compareWithAll(randomOffload, 13); }

/// The same of fitAtAnyCost().
void fitAll(Problem (*make)(std::mt19937 &, int), unsigned seed) {
  std::mt19937 random(seed);
  int possible = 0, found = 0, impossible = 0;
  for (int trial = 0; trial < 300; ++trial) {
    Problem problem = make(random, 3 + trial % 5);
    int64_t budget = usage(problem, plainSchedule(problem)).peakBytes * static_cast<int64_t>(50 + random() % 50) / 100;
    std::optional<Schedule> schedule = fitAtAnyCost(problem, budget, 100'000);
    if (exhaustive(problem, budget) < 0) {
      ++impossible;
      EXPECT_FALSE(schedule);
      continue;
    }
    ++possible;
    if (!schedule)
      continue;
    ++found;
    ASSERT_EQ(check(problem, *schedule), "");
    EXPECT_LE(usage(problem, *schedule).peakBytes, budget);
  }
  EXPECT_GT(impossible, 20);
  EXPECT_GT(possible, 20);
  EXPECT_GE(found, possible * 9 / 10);
}

TEST(AnyCost, TinyGraphsAgainstAllSchedules) { fitAll(randomProblem, 17); }
TEST(AnyCost, TinyOffloadsAgainstAllSchedules) { fitAll(randomOffload, 23); }

TEST(AnyCost, LeastPeaksReachTheirBound) {
  std::mt19937 random(19);
  int reached = 0;
  constexpr int kTrials = 20;
  for (int trial = 0; trial < kTrials; ++trial) {
    Problem problem = randomProblem(random, 40);
    for (Node &node : problem.nodes)
      node.canRepeat = true;
    for (Tensor &tensor : problem.tensors)
      tensor.isKept = false;
    Solution least = leastPeak(problem, {.moves = 200'000, .seconds = 0, .seed = 1});
    ASSERT_EQ(check(problem, least.schedule), "");
    int64_t bound = floorBound(problem).bytes;
    EXPECT_GE(least.usage.peakBytes, bound);
    reached += least.usage.peakBytes == bound;
  }
  EXPECT_GE(reached, kTrials * 9 / 10);
}

TEST(Solver, RandomGraphs) {
  std::mt19937 random(3);
  int repeats = 0;
  for (int trial = 0; trial < 60; ++trial) {
    int nodes = 10 + static_cast<int>(random() % 80);
    Problem problem = trial % 2 ? randomOffload(random, nodes) : randomProblem(random, nodes);
    Usage plain = usage(problem, plainSchedule(problem));
    std::vector<int64_t> budgets;
    for (int percent : {60, 100, 85, 95, 0, 75})
      budgets.push_back(plain.peakBytes * percent / 100);
    std::vector<Solution> solutions = curve(problem, budgets, {.moves = 20000, .seconds = 0, .seed = 1});
    int64_t bound = floorBound(problem).bytes;
    for (size_t i = 0; i < budgets.size(); ++i) {
      const Solution &solution = solutions[i];
      ASSERT_EQ(check(problem, solution.schedule), "");
      Usage used = usage(problem, solution.schedule);
      EXPECT_EQ(used.peakBytes, solution.usage.peakBytes);
      EXPECT_EQ(used.cost, solution.usage.cost);
      EXPECT_EQ(solution.fits, used.peakBytes <= budgets[i]);
      EXPECT_GE(used.peakBytes, bound);
      EXPECT_LE(used.peakBytes, plain.peakBytes);
      repeats += solution.fits && used.cost > plain.cost;
      for (size_t k = 0; k < budgets.size(); ++k)
        if (budgets[k] > budgets[i] && solution.fits) {
          EXPECT_TRUE(solutions[k].fits);
          EXPECT_LE(solutions[k].usage.cost, used.cost);
        }
    }
    EXPECT_EQ(solutions[1].usage.cost, plain.cost); // The plain peak is enough for the plain order.
    EXPECT_FALSE(solutions[4].fits);                // No budget at all.
  }
  EXPECT_GT(repeats, 30);
}

TEST(Solver, TheSameEffortGivesTheSameSchedule) {
  std::mt19937 random(5);
  Problem problem = randomProblem(random, 80);
  int64_t budget = usage(problem, plainSchedule(problem)).peakBytes * 8 / 10;
  SolverOptions options = {.moves = 30000, .seconds = 0, .seed = 4};
  EXPECT_EQ(solve(problem, budget, options).schedule.runs, solve(problem, budget, options).schedule.runs);
}

TEST(Solver, AStartIsNeverMadeWorse) {
  std::mt19937 random(9);
  int starts = 0;
  for (int trial = 0; trial < 20; ++trial) {
    Problem problem = randomProblem(random, 70);
    Usage plain = usage(problem, plainSchedule(problem));
    int64_t budget = plain.peakBytes * 9 / 10;
    Solution good = solve(problem, budget, {.moves = 100000, .seconds = 0, .seed = 1});
    if (!good.fits)
      continue;
    Solution again = solve(problem, budget, {.moves = 1, .seconds = 0, .seed = 2}, &good.schedule);
    EXPECT_TRUE(again.fits);
    EXPECT_LE(again.usage.cost, good.usage.cost);
    starts += good.usage.cost > plain.cost;
  }
  EXPECT_GT(starts, 3);
}

/// A chain of `layers` with its backward: each output of the forward is read again, the last first.
Problem chain(int layers) {
  Problem problem;
  auto add = [&](std::vector<int> reads) {
    problem.nodes.push_back({.cost = 1,
                             .workspaceBytes = 0,
                             .canRepeat = true,
                             .reads = std::move(reads),
                             .writes = {static_cast<int>(problem.tensors.size())},
                             .overwrites = {}});
    problem.tensors.push_back({1, false});
  };
  for (int i = 0; i < layers; ++i)
    add(i ? std::vector<int>{i - 1} : std::vector<int>{});
  for (int i = layers; i-- > 0;)
    add(i == layers - 1 ? std::vector<int>{i} : std::vector<int>{static_cast<int>(problem.tensors.size()) - 1, i});
  return problem;
}

/// Griewank and Walther's revolve: with `slots` for outputs of the forward beside the one that is in use, layers - 1
/// steps are reversed with at least this many steps forward.
int64_t revolve(int64_t layers, int64_t slots) {
  int64_t rounds = 0, reach = 1; // reach = binomial(slots + rounds, slots).
  while (reach < layers) {
    ++rounds;
    reach = reach * (slots + rounds) / rounds;
  }
  return rounds * layers - reach * rounds / (slots + 1);
}

TEST(Solver, ChainsAsGoodAsTheTheory) {
  for (auto [layers, slots] : {std::pair(20, 4), {40, 6}, {64, 12}}) {
    Problem problem = chain(layers);
    // Peak: the slots, and while a backward node runs its two inputs and its output.
    Solution solution = solve(problem, slots + 2, {.moves = 2'000'000, .seconds = 0, .seed = 1});
    ASSERT_TRUE(solution.fits);
    int64_t forward = solution.usage.cost - layers;
    EXPECT_LE(forward - layers, revolve(layers, slots)) << layers << " layers, " << slots << " slots";
  }
}

TEST(Floor, WhatTheInputsNeedCounts) {
  // Two inputs of 10, each from an input of 100 of its own: the second is made while the first is there.
  Problem problem;
  problem.tensors = {{100, false}, {10, false}, {100, false}, {10, false}, {1, false}};
  auto add = [&](std::vector<int> reads, int write) {
    problem.nodes.push_back(
        {.cost = 1, .workspaceBytes = 0, .canRepeat = true, .reads = reads, .writes = {write}, .overwrites = {}});
  };
  add({}, 0), add({0}, 1), add({}, 2), add({2}, 3), add({1, 3}, 4);
  Floor floor = floorBound(problem);
  EXPECT_EQ(floor.bytes, 120);
  EXPECT_EQ(floor.node, 4);
  EXPECT_EQ(leastPeak(problem).usage.peakBytes, 120);
}

/// a is read at once and by the last of eight nodes; b and c, of 6 bytes, are there in nodes 2 and 3.
Problem longInterval() {
  Problem problem;
  problem.tensors = {{5, false}, {6, false}, {6, false}};
  auto add = [&](std::vector<int> reads, std::vector<int> writes) {
    problem.nodes.push_back(
        {.cost = 2, .workspaceBytes = 0, .canRepeat = true, .reads = reads, .writes = writes, .overwrites = {}});
  };
  add({}, {0}), add({0}, {1}), add({1}, {2}), add({2}, {});
  for (int i = 0; i < 3; ++i)
    add({}, {});
  add({0}, {});
  return problem;
}

TEST(Hoist, ACopyEndsBeforeItIsRead) {
  Problem problem = longInterval();
  problem.fetches = {{0, 4, 4}};
  EXPECT_EQ(hoistFetches(problem, {{0, 1, 2, 3, 4, 5, 6, 8, 7}}).runs, (std::vector<int>{0, 1, 2, 3, 4, 8, 5, 6, 7}));
  problem.fetches[0].cost = 5; // Begins with the node before.
  EXPECT_EQ(hoistFetches(problem, {{0, 1, 2, 3, 4, 5, 6, 8, 7}}).runs, (std::vector<int>{0, 1, 2, 3, 8, 4, 5, 6, 7}));
}

TEST(Hoist, NoHigherThanThePeak) {
  Problem problem = longInterval();
  problem.fetches = {{0, 1000, 0}};
  // 12 bytes at node 2: beside b alone there is room, beside both there is not.
  EXPECT_EQ(hoistFetches(problem, {{0, 1, 2, 3, 4, 5, 6, 8, 7}}).runs, (std::vector<int>{0, 1, 2, 8, 3, 4, 5, 6, 7}));
}

TEST(Hoist, CopiesThatOverlapTakeTheTimeThatNothingHides) {
  Problem problem = longInterval(); // Eight nodes of 2.
  problem.fetches = {{0, 4, 4}};
  Schedule late{{0, 1, 2, 3, 4, 5, 6, 8, 7}}, early{{0, 1, 2, 3, 4, 8, 5, 6, 7}};
  EXPECT_EQ(timeOf(problem, late), 16 + 4 + 4);
  problem.copiesOverlap = true;
  // To the host from 2 to 6; node 2 at 4 waits, since the tensor was read for the last time before it.
  EXPECT_EQ(timeOf(problem, early), 16 + 2);
  EXPECT_EQ(timeOf(problem, late), 16 + 2 + 4);
  EXPECT_EQ(timeOf(problem, plainSchedule(problem)), 16);
  problem.fetches[0].cost = 7; // Begins at 12, is wanted at 16.
  EXPECT_EQ(timeOf(problem, early), 12 + 7 + 2);
  // A link that cannot keep up: two copies one after another.
  problem.fetches = {{0, 4, 4}, {1, 4, 9}};
  problem.nodes[7].reads = {0, 1};
  EXPECT_EQ(timeOf(problem, {{0, 1, 2, 3, 4, 5, 6, 8, 9, 7}}), 2 + 4 + 9 + 3 * 2 + 2 + 8 + 2);
}

TEST(Hoist, RandomSchedulesStaySound) {
  std::mt19937 random(29);
  int moved = 0;
  for (int trial = 0; trial < 100; ++trial) {
    Problem problem = randomOffload(random, 20 + static_cast<int>(random() % 60));
    int64_t budget = usage(problem, plainSchedule(problem)).peakBytes * 7 / 10;
    Schedule schedule = solve(problem, budget, {.moves = 5000, .seconds = 0, .seed = 1}).schedule;
    Schedule hoisted = hoistFetches(problem, schedule);
    ASSERT_EQ(check(problem, hoisted), "");
    EXPECT_LE(usage(problem, hoisted).peakBytes, usage(problem, schedule).peakBytes);
    EXPECT_EQ(usage(problem, hoisted).cost, usage(problem, schedule).cost);
    moved += hoisted.runs != schedule.runs;
  }
  EXPECT_GT(moved, 30);
}

} // namespace
} // namespace recast::remat
