#include "passes/checkpoint/remat/Problem.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace recast::remat {
namespace {

Node node(std::vector<int> reads, std::vector<int> writes, int64_t cost = 1) {
  return {.cost = cost,
          .workspaceBytes = 0,
          .canRepeat = true,
          .reads = std::move(reads),
          .writes = std::move(writes),
          .overwrites = {}};
}

// 0 -> a -> 1 -> b -> 2 -> c -> 3 (reads a too).
Problem skip() {
  Problem problem;
  problem.tensors = {{10, false}, {20, false}, {5, false}, {1, false}};
  problem.nodes = {node({}, {0}, 3), node({0}, {1}), node({1}, {2}), node({0, 2}, {3})};
  return problem;
}

TEST(Usage, PlainOrder) {
  Usage plain = usage(skip(), plainSchedule(skip()));
  EXPECT_EQ(plain.peakBytes, 10 + 20 + 5); // At node 2.
  EXPECT_EQ(plain.peakRun, 2);
  EXPECT_EQ(plain.cost, 6);
}

TEST(Usage, ASecondRunEndsTheFirstCopy) {
  Usage used = usage(skip(), {{0, 1, 2, 0, 3}});
  EXPECT_EQ(used.peakBytes, 30); // Node 1; a is gone at node 2.
  EXPECT_EQ(used.peakRun, 1);
  EXPECT_EQ(used.cost, 9);
}

TEST(Usage, AFetchNeedsNothingAndItsStoreIsPaidOnce) {
  Problem problem = skip();
  problem.nodes[0].canRepeat = false;
  problem.fetches = {{0, 7, 5}};
  Schedule once{{0, 1, 2, 4, 3}}, twice{{0, 1, 4, 2, 4, 3}};
  EXPECT_EQ(check(problem, once), "");
  Usage used = usage(problem, once);
  EXPECT_EQ(used.peakBytes, 30); // Node 1; a is gone at node 2, and comes back beside c.
  EXPECT_EQ(used.cost, 6 + 7 + 5);
  EXPECT_EQ(usage(problem, twice).cost, 6 + 2 * 7 + 5);
  EXPECT_EQ(check(problem, {{4, 0, 1, 2, 3}}), "run 0 (node 4): tensor 0 is fetched and not written yet");
  EXPECT_EQ(check(problem, {{0, 1, 2, 3, 5}}), "run 4 (node 5): there is no such node");
}

TEST(Usage, WorkspaceCountsInItsRunAlone) {
  Problem problem = skip();
  problem.nodes[3].workspaceBytes = 100;
  Usage used = usage(problem, plainSchedule(problem));
  EXPECT_EQ(used.peakBytes, 10 + 5 + 1 + 100);
  EXPECT_EQ(used.peakRun, 3);
}

TEST(Usage, KeptTensorsLiveToTheEnd) {
  Problem problem = skip();
  problem.tensors[1].isKept = true;
  EXPECT_EQ(usage(problem, plainSchedule(problem)).peakBytes, 10 + 20 + 5 + 1);
}

TEST(Usage, AnOverwrittenOperandDoesNotCountInItsLastReader) {
  Problem problem = skip();
  problem.nodes[2].overwrites = {1};
  EXPECT_EQ(usage(problem, plainSchedule(problem)).peakBytes, 30); // Node 1; at node 2, c lies where b lay.
  // Not the last reader: both are live.
  problem.nodes[3].reads.push_back(1);
  EXPECT_EQ(usage(problem, plainSchedule(problem)).peakBytes, 10 + 20 + 5 + 1);
}

TEST(Usage, AllResultsOfANodeAreWrittenAgain) {
  Problem problem;
  problem.tensors = {{4, false}, {8, false}, {1, false}, {1, false}, {1, false}};
  problem.nodes = {node({}, {0, 1}), node({0}, {2}), node({2}, {3}), node({1, 3}, {4})};
  EXPECT_EQ(usage(problem, plainSchedule(problem)).peakBytes, 4 + 8 + 1);
  // Nothing reads the second writing of tensor 0: it takes memory in its own run alone.
  EXPECT_EQ(usage(problem, {{0, 1, 2, 0, 3}}).peakBytes, 4 + 8 + 1);
  EXPECT_EQ(usage(problem, {{0, 1, 2, 0, 3}}).peakRun, 3);
}

TEST(Usage, AResultThatNothingReadsTakesMemoryInItsRun) {
  Problem problem;
  problem.tensors = {{7, false}, {2, false}};
  problem.nodes = {node({}, {0}), node({}, {1})};
  EXPECT_EQ(usage(problem, plainSchedule(problem)).peakBytes, 7);
}

TEST(Check, SaysWhatIsWrong) {
  using ::testing::HasSubstr;
  Problem problem = skip();
  EXPECT_EQ(check(problem, plainSchedule(problem)), "");
  EXPECT_EQ(check(problem, {{0, 1, 0, 1, 2, 0, 3}}), "");
  EXPECT_THAT(check(problem, {{0, 1, 3, 2}}), HasSubstr("run 2 (node 3): node 2 must run before"));
  EXPECT_THAT(check(problem, {{0, 1, 2}}), HasSubstr("node 3 does not run"));
  EXPECT_THAT(check(problem, {{0, 4}}), HasSubstr("no such node"));
  EXPECT_THAT(check(problem, {{-1}}), HasSubstr("no such node"));
  problem.nodes[0].canRepeat = false;
  EXPECT_THAT(check(problem, {{0, 1, 2, 0, 3}}), HasSubstr("run 3 (node 0): the node cannot run again"));
  problem.nodes[1].reads = {2};
  EXPECT_THAT(check(problem, plainSchedule(problem)), HasSubstr("tensor 2 is not written yet"));
}

} // namespace
} // namespace recast::remat
