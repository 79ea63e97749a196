#include "passes/precision/NeutralCut.h"
#include <gtest/gtest.h>
#include <random>

namespace recast::precision {
namespace {

bool preferLow(int, const std::vector<bool> &) { return true; }
bool preferWide(int, const std::vector<bool> &) { return false; }

// Every assignment, one after another.
CutSolution exhaustive(const CutProblem &problem) {
  CutSolution best;
  best.bytes = -1;
  for (unsigned bits = 0; bits < 1u << problem.numVariables; ++bits) {
    std::vector<bool> isLow(problem.numVariables);
    for (int i = 0; i < problem.numVariables; ++i)
      isLow[i] = bits >> i & 1;
    if (!obeysRules(problem, isLow))
      continue;
    CutSolution candidate = evaluateCut(problem, isLow);
    if (best.bytes < 0 || std::pair(candidate.bytes, candidate.casts) < std::pair(best.bytes, best.casts))
      best = candidate;
  }
  return best;
}

CutProblem randomProblem(std::mt19937 &random) {
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  CutProblem problem;
  int variables = 1 + below(9);
  for (int i = 0; i < variables; ++i)
    problem.addVariable();
  auto any = [&] { return below(variables + 2) - 2; };
  for (int i = 0, n = 1 + below(12); i < n; ++i) {
    CutProblem::Value value{any(), below(4) * 8, {}};
    for (int r = 0, readers = below(4); r < readers; ++r)
      value.readers.push_back(any());
    problem.values.push_back(value);
  }
  for (int i = 0, n = below(4); i < n; ++i)
    problem.rules.push_back({below(variables), any()});
  return problem;
}

TEST(NeutralCut, EqualsTheBestOfAllAssignments) {
  std::mt19937 random(1);
  for (int round = 0; round < 4000; ++round) {
    CutProblem problem = randomProblem(random);
    CutSolution best = exhaustive(problem);
    for (CutPreference preference : {CutPreference(preferLow), CutPreference(preferWide)}) {
      CutSolution found = solveCut(problem, preference);
      ASSERT_TRUE(obeysRules(problem, found.isLow)) << "round " << round;
      ASSERT_EQ(found.bytes, best.bytes) << "round " << round;
      ASSERT_EQ(found.casts, best.casts) << "round " << round;
    }
  }
}

TEST(NeutralCut, ThePreferenceDecidesTiesAndNothingElse) {
  // low product -> a -> b -> fp32 reader, all of one size: the cast may stand anywhere.
  CutProblem tie;
  int a = tie.addVariable(), b = tie.addVariable();
  tie.values = {{kLow, 8, {a}}, {a, 8, {b}}, {b, 8, {kWide}}};
  EXPECT_EQ(solveCut(tie, preferLow).isLow, std::vector<bool>({true, true}));
  EXPECT_EQ(solveCut(tie, preferWide).isLow, std::vector<bool>({false, false}));
  // b's result is smaller (a pool): the cast stands behind it.
  tie.values[2].bytes = 2;
  EXPECT_EQ(solveCut(tie, preferWide).isLow, std::vector<bool>({true, true}));
  EXPECT_EQ(solveCut(tie, preferWide).bytes, 2);
}

TEST(NeutralCut, OneCastServesAllReaders) {
  // An fp32 value that two variables read, each with a low reader of its own: one cast in front beats two behind.
  CutProblem problem;
  int a = problem.addVariable(), b = problem.addVariable();
  problem.values = {{kWide, 10, {a, b}}, {a, 8, {kLow}}, {b, 8, {kLow}}};
  CutSolution found = solveCut(problem, preferWide);
  EXPECT_EQ(found.isLow, std::vector<bool>({true, true}));
  EXPECT_EQ(found.bytes, 10);
  EXPECT_EQ(found.casts, 1);
}

TEST(NeutralCut, ARuleKeepsTheWidestType) {
  CutProblem problem;
  int sum = problem.addVariable();
  problem.values = {{kWide, 1, {sum}}, {kLow, 100, {sum}}, {sum, 100, {kLow}}};
  problem.rules = {{sum, kWide}};
  EXPECT_FALSE(solveCut(problem, preferLow).isLow[0]);
  problem.rules.clear();
  EXPECT_TRUE(solveCut(problem, preferWide).isLow[0]);
}

// A quadratic solver would need minutes for this.
TEST(NeutralCut, ChainsOfAMillionNodes) {
  CutProblem chain;
  int last = kLow;
  for (int i = 0; i < 1'000'000; ++i) {
    int node = chain.addVariable();
    chain.values.push_back({last, 8, {node}});
    // Every fiftieth value is read in one type as well, low and wide in turn.
    if (i % 50 == 49)
      chain.values.back().readers.push_back(i % 100 == 99 ? kWide : kLow);
    last = node;
  }
  chain.values.push_back({last, 4, {kWide}});
  CutSolution found = solveCut(chain, preferLow);
  EXPECT_EQ(found.casts, 10'000);
  EXPECT_FALSE(found.isLow.back());
}

} // namespace
} // namespace recast::precision
