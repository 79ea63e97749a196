// Local search for runs to repeat, on a timeline.
#pragma once
#include "passes/checkpoint/Timeline.h"
#include <cstdint>
#include <vector>

namespace recast::remat {

/// Own generator (xorshift*): the same numbers on every machine.
class Random {
public:
  explicit Random(uint64_t seed) : State(seed * 2 + 0x9E3779B97F4A7C15ull) {}
  uint64_t next() {
    State ^= State >> 12;
    State ^= State << 25;
    State ^= State >> 27;
    return State * 0x2545F4914F6CDD1Dull;
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }

private:
  uint64_t State;
};

/// Keeps a schedule and changes it so that it fits into a budget at little cost.
class Search {
public:
  Search(const Problem &problem, const Schedule &start, int64_t budget, uint64_t seed);

  /// What has to be low: bytes over the budget, summed over the runs, and then the cost.
  struct Value {
    double excess = 0;
    int64_t cost = 0;
    bool operator<(const Value &other) const {
      return excess != other.excess ? excess < other.excess : cost < other.cost;
    }
  };
  Value value() const;
  Value bestValue() const { return BestValue; }
  Schedule best() const { return Best; }

  /// Repeats runs, those first that free the most over the budget for their cost, until it fits or nothing helps.
  void repair(double noise);
  /// Takes out repeated runs that are not needed to fit.
  void prune();
  /// Takes out a few runs, repairs and prunes, again and again, until `moves` are spent.
  void improve(uint64_t moves);

  uint64_t moves() const { return Moves; }
  uint64_t Rounds = 0;

private:
  struct Candidate {
    double score, factor;
    int tensor, reader;
    uint32_t stamp;
  };
  struct Plan {
    double score = -1; ///< Cost for each byte and run over the budget that it frees; negative: no help.
    int64_t cost = 0;
    double burden = 0; ///< What keeping inputs alive adds over the budget.
    int64_t bytes = 0; ///< Of inputs that are kept alive.
    int next = 0;
    std::vector<int> nodes, kept; ///< Nodes to run; inputs that live longer.
  };
  struct Change {
    bool isInsert;
    int node, run, next;
  };

  void enumerate(double noise);
  void push(int tensor, int reader, double noise);
  bool evaluate(int tensor, int reader, Plan &plan);
  bool collect(int node, int next, Plan &plan, double limit);
  int insert(int node, int next);
  void erase(int run);
  void undo(size_t mark);
  bool tryErase(int run);
  void ruin();
  void remember();

  const Problem &P;
  Timeline Line;
  int64_t Budget;
  Random Rng;
  double Rate = 0; ///< Cost for each byte and run over the budget, as last paid.
  std::vector<int> Writer;
  std::vector<uint32_t> Wanted, Kept; ///< Epoch in which a node is to run, a tensor to stay.
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
