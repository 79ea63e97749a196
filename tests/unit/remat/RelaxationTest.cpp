// No schedule breaks a row of the relaxation, whatever the events are; nor is a bound above the optimum.
#include "passes/checkpoint/remat/bound/Relaxation.h"
#include "passes/checkpoint/remat/bound/Prover.h"
#include "passes/checkpoint/remat/bound/VirtualEvents.h"
#include "tests/unit/remat/TinyProblems.h"
#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>

using namespace recast::remat;

namespace {

class Random {
public:
  explicit Random(unsigned seed) : engine(seed) {}
  int below(int limit) { return static_cast<int>(engine() % limit); }
  std::mt19937 engine;
};

/// First runs of some nodes with up to three virtual events, of any nodes, after some of them; the end of time last.
std::vector<Event> randomEvents(const Problem &problem, Random &random) {
  int nodes = static_cast<int>(problem.nodes.size());
  std::vector<char> isEvent(nodes), isFollowed(nodes);
  isEvent[random.below(nodes)] = true;
  for (int v = 0; v < nodes; ++v) {
    isEvent[v] |= !random.below(3);
    isFollowed[v] = !random.below(3);
    if (isFollowed[v])
      isEvent[v] = isEvent[std::min(v + 1, nodes - 1)] = true;
  }
  std::vector<Event> events;
  for (int v = 0; v < nodes; ++v) {
    if (!isEvent[v])
      continue;
    events.push_back({v, {}});
    for (int i = isFollowed[v] ? 1 + random.below(3) : 0; i > 0; --i) {
      Event event{v, {}};
      for (int w = 0; w <= v; ++w)
        if (problem.nodes[w].canRepeat && random.below(2))
          event.last.push_back(w);
      if (event.isVirtual())
        events.push_back(event);
    }
  }
  events.push_back({nodes, {}});
  return events;
}

std::vector<Span> allSpans(size_t events) {
  std::vector<Span> spans;
  for (int from = 0; from < static_cast<int>(events); ++from)
    for (int to = from + 2; to < static_cast<int>(events); ++to)
      spans.push_back({from, to});
  return spans;
}

/// The plain order with repeats at random, but for those whose results nothing reads: rows do not mention these.
Schedule randomSchedule(const Problem &problem, Random &random) {
  std::vector<int> runs;
  std::vector<char> isRepeat;
  for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v)
    for (int i = random.below(2) * random.below(8); i >= 0; --i)
      if (int again = i > 0 && v > 0 ? random.below(v) : v; problem.nodes[again].canRepeat || i == 0) {
        runs.push_back(again);
        isRepeat.push_back(i > 0 && v > 0);
        if (v == 0)
          break;
      }
  Schedule schedule;
  std::vector<char> isWanted;
  for (auto &tensor : problem.tensors)
    isWanted.push_back(tensor.isKept);
  for (int i = static_cast<int>(runs.size()) - 1; i >= 0; --i) {
    auto &node = problem.nodes[runs[i]];
    if (isRepeat[i] && std::ranges::none_of(node.writes, [&](int t) { return isWanted[t]; }))
      continue;
    for (int t : node.writes)
      isWanted[t] = false;
    for (int t : node.reads)
      isWanted[t] = true;
    schedule.runs.push_back(runs[i]);
  }
  std::ranges::reverse(schedule.runs);
  return schedule;
}

/// The columns' values as their definitions say, for one schedule.
class Meaning {
public:
  Meaning(const Problem &problem, const Relaxation &relaxation, const Schedule &schedule)
      : problem(problem), relaxation(relaxation), runs(schedule.runs) {
    int nodes = static_cast<int>(problem.nodes.size()), next = 0;
    for (int v : runs)
      isRepeat.push_back(v != next || !(next += v == next));
    auto &events = relaxation.events();
    at.resize(events.size());
    for (int g = relaxation.gaps() - 1; g >= 0; --g) {
      auto first = events[g].node == nodes ? runs.end() : std::ranges::find(runs, events[g].node);
      at[g] = static_cast<int>(first - runs.begin());
      if (!events[g].isVirtual())
        continue;
      // The next event is a virtual one, whose own run counts, or a first run, which is no repeat.
      for (int i = std::min(at[g + 1], static_cast<int>(runs.size()) - 1); i > at[g]; --i)
        if (isRepeat[i] && std::ranges::find(events[g].last, runs[i]) != events[g].last.end()) {
          at[g] = i;
          break;
        }
    }
  }

  int64_t of(const Column &column) const {
    auto &events = relaxation.events();
    if (column.kind == 'r') {
      auto [from, to] = relaxation.spans()[column.span];
      for (int i = at[from] + 1; i <= at[to] && i < static_cast<int>(runs.size()); ++i)
        if (isRepeat[i] && runs[i] == column.index)
          return 1;
      return 0;
    }
    int g = column.span, run = at[g];
    bool isVirtualRun = events[g].isVirtual() && isRepeat[run];
    if (column.kind == 'y')
      return isVirtualRun;
    if (column.kind == 'z')
      return isVirtualRun && runs[run] == column.index;
    bool isHeld = held(column.index, run);
    if (column.kind == 'h' || isHeld || !isVirtualRun)
      return isHeld;
    auto &node = problem.nodes[runs[run]];
    auto has = [&](const std::vector<int> &list) { return std::ranges::find(list, column.index) != list.end(); };
    return has(node.writes) || (has(node.reads) && !has(node.overwrites));
  }

private:
  /// What `run` sees of the tensor is read after it.
  bool held(int tensor, int run) const {
    auto writes = [&](int v) {
      auto &list = problem.nodes[v].writes;
      return std::ranges::find(list, tensor) != list.end();
    };
    bool isWritten = false;
    for (int i = 0; i <= run && i < static_cast<int>(runs.size()); ++i)
      isWritten |= writes(runs[i]);
    if (!isWritten)
      return false;
    for (int i = run + 1; i < static_cast<int>(runs.size()); ++i) {
      auto &reads = problem.nodes[runs[i]].reads;
      if (std::ranges::find(reads, tensor) != reads.end())
        return true;
      if (writes(runs[i]))
        return false;
    }
    return problem.tensors[tensor].isKept;
  }

  const Problem &problem;
  const Relaxation &relaxation;
  const std::vector<int> &runs;
  std::vector<char> isRepeat;
  std::vector<int> at; ///< By event, its run.
};

std::string describe(const Relaxation &relaxation, const Row &row) {
  std::string text = std::string(1, static_cast<char>(row.kind)) + " " + std::to_string(row.index) + " " +
                     std::to_string(row.other) + " " + std::to_string(row.span) + ":";
  for (auto &term : row.terms) {
    auto &column = relaxation.columns()[term.column];
    text += " " + std::to_string(term.factor) + "*" + column.kind + std::to_string(column.index) + "," +
            std::to_string(column.span);
  }
  return text + " >= " + std::to_string(row.rhs);
}

TEST(Relaxation, NoScheduleBreaksARow) {
  Random random(5);
  std::map<char, int> tight;
  int64_t repeats = 0;
  for (int i = 0; i < 4000; ++i) {
    Problem problem = randomProblem(random.engine);
    Schedule schedule = randomSchedule(problem, random);
    ASSERT_EQ(check(problem, schedule), "");
    auto events = randomEvents(problem, random);
    // The least budget that the schedule keeps: memory rows leave nothing over.
    Usage use = usage(problem, schedule);
    Relaxation relaxation(problem, use.peakBytes, events, allSpans(events.size()));
    Meaning meaning(problem, relaxation, schedule);
    std::vector<int64_t> point;
    int64_t cost = 0, plain = 0;
    for (auto &column : relaxation.columns()) {
      point.push_back(meaning.of(column));
      cost += point.back() * column.cost;
      repeats += column.kind == 'y' && point.back() == 1;
    }
    for (auto &node : problem.nodes)
      plain += node.cost;
    EXPECT_LE(cost, use.cost - plain);
    for (auto &row : relaxation.rows()) {
      int64_t sum = 0;
      for (auto &term : row.terms)
        sum += term.factor * point[term.column];
      ASSERT_GE(sum, row.rhs) << "case " << i << ", row " << describe(relaxation, row);
      tight[static_cast<char>(row.kind)] += sum == row.rhs && sum != 0;
    }
  }
  // Else the test would say nothing about them.
  EXPECT_GT(repeats, 1000);
  for (char kind : {'N', 'M'})
    EXPECT_GT(tight[kind], 100) << kind;
}

TEST(Relaxation, NoBoundIsAboveTheOptimum) {
  Random random(9);
  int64_t bounds = 0, positive = 0;
  for (int i = 0; i < 500; ++i) {
    Problem problem = randomProblem(random.engine);
    int64_t peak = usage(problem, plainSchedule(problem)).peakBytes;
    int64_t budget = peak - 1 - random.below(static_cast<int>(peak / 3 + 1));
    int64_t least = optimum(problem, budget);
    if (least < 0)
      continue;
    auto events = randomEvents(problem, random);
    for (auto &spans : {spansOf(events), allSpans(events.size()), std::vector<Span>()}) {
      Relaxation relaxation(problem, budget, events, spans);
      Prover prover(problem, relaxation, least + 1, true);
      Work work(100'000'000, 0);
      prover.solveRoot(work);
      prover.addCuts(work, 5);
      prover.branch(work);
      EXPECT_LE(prover.bound(), least) << "problem " << i;
      ++bounds;
      positive += prover.bound() > 0;
    }
  }
  EXPECT_GT(positive * 4, bounds);
}

} // namespace
