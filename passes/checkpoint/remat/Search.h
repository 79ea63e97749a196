// Local search for runs to repeat, on a timeline.
#pragma once
#include "passes/checkpoint/remat/Random.h"
#include "passes/checkpoint/remat/Timeline.h"
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace recast::remat {

/// When a search stops. A move is about one look at a run: the same number on every machine.
struct Effort {
  uint64_t moves = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline; ///< Then moves do not count.
};

/// Keeps a schedule and changes it so that it fits into a budget at little cost.
class Search {
public:
  Search(const Problem &problem, const Schedule &start, int64_t budgetBytes, uint64_t seed);

  /// What has to be low: bytes over the budget, summed over the runs, and then the cost.
  struct Value {
    double excess = 0;
    int64_t cost = 0;
    bool operator<(const Value &other) const {
      return excess != other.excess ? excess < other.excess : cost < other.cost;
    }
  };

  /// Repeats runs, those first that free the most over the budget for their cost, until it fits or nothing helps.
  /// `noise` is by how much the order is disturbed: factors up to exp(noise).
  void repair(double noise);
  /// Takes out repeated runs that are not needed to fit.
  void prune();
  /// Takes out a few runs, repairs and prunes, and takes the result where it is better or, early on, not much worse:
  /// again and again. Ends sooner where it fits and `stopWhenFits`.
  void improve(const Effort &effort, bool stopWhenFits = false);

  Value bestValue() const { return BestValue; }
  const Schedule &best() const { return Best; }
  uint64_t moves() const { return Moves; }

private:
  struct Candidate {
    double score, factor;
    int tensor, reader;
    uint32_t stamp; ///< Of the reader.
  };
  /// Runs before `next` so that a reader after it needs no older copy.
  struct Plan {
    double score = -1; ///< Cost for each byte and run over the budget that it frees; negative: no help.
    int64_t cost = 0;
    double burden = 0;            ///< What keeping inputs alive adds over the budget.
    int64_t keptBytes = 0;        ///< Of inputs that are kept alive.
    int next = 0;                 ///< Run before which they run.
    std::vector<int> nodes, kept; ///< Nodes to run; tensors that live longer.
  };
  struct Change {
    bool isInsert;
    int node, run, next;
  };

  Value value() const;
  void remember();
  void repairAround(double noise, double &rate);
  void enumerate(double noise);
  void push(int tensor, int reader, double noise);
  void apply(const Plan &plan, double noise);
  bool evaluate(int tensor, int reader, Plan &plan);
  void evaluateRuns(int tensor, Timeline::Place from, int reader, Plan &plan);
  /// `source`: the run that the tensor comes from, its writer's or a fetch.
  bool evaluateAt(int tensor, int source, Timeline::Place from, int next, Plan &plan);
  bool collect(int node, int next, Plan &plan, double limit);
  /// Whether a run of the plan that is looked at writes the tensor.
  bool isMade(int tensor) const {
    return Wanted[Writer[tensor]] == Epoch || (FetchOf[tensor] >= 0 && Wanted[FetchOf[tensor]] == Epoch);
  }
  /// Where in the graph a node is, or what a fetch stands for.
  int placeOf(int node) const { return P.isFetch(node) ? Writer[P.fetch(node).tensor] : node; }
  bool tryErase(int run);
  void ruin();
  int insert(int node, int next);
  void erase(int run);
  void undoTo(size_t mark);

  const Problem &P;
  Timeline Line;
  int64_t Budget;
  Random Rng;
  double Rate = 0;       ///< Cost for each byte and run over the budget, as last paid.
  double Reach = 1;      ///< How many times that rate a plan may cost.
  std::vector<Node> All; ///< By number in a schedule.
  std::vector<int> Writer, FetchOf;
  std::vector<uint32_t> Wanted, Kept; ///< Epoch in which a node or a fetch is to run, a tensor to stay.
  std::vector<int> LastRead;          ///< In the plan that is looked at.
  uint32_t Epoch = 0;
  int Visits = 0;
  std::vector<Candidate> Heap;
  std::vector<Change> Log;
  Timeline::Place Low = 0, High = 0; ///< Where it is over the budget.
  uint64_t Moves = 0;
  Schedule Best;
  Value BestValue;
};

} // namespace recast::remat
