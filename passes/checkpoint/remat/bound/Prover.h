// Branch and bound over a Relaxation, with every step kept as a proof in exact integers. Private to Bound.
#pragma once
#include "passes/checkpoint/remat/bound/LowerBound.h"
#include <memory>

class ClpSimplex;

namespace recast::remat {

/// What is left of a bound's effort.
class Work {
public:
  Work(int64_t units, double seconds);
  void spend(int64_t units) { used += units; }
  bool isDone() const;
  int64_t left() const { return units - used; }
  /// May use this part of what is left. Its use counts here once it is given to spend().
  Work part(double share) const;
  int64_t usedUnits() const { return used; }

private:
  double secondsLeft() const; ///< 0: no limit.

  int64_t units, used = 0;
  double endSeconds; ///< Of the steady clock; 0: none.
};

class Prover {
public:
  /// `target`: an extra cost at which there is nothing more to prove. With `hasCosts` unset, nodes are free and it
  /// proves that nothing fits.
  Prover(const Problem &problem, const Relaxation &relaxation, int64_t target, bool hasCosts);
  ~Prover();

  void solveRoot(Work &work);
  /// Instead of solveRoot: the root with these multipliers of the relaxation's rows, in costs.
  void takeRoot(const std::vector<double> &multipliers);
  /// Adds rows that the root's point breaks, as long as they help.
  void addCuts(Work &work, int rounds);
  /// Until the work is done, everything is closed, or the least case's point is whole.
  void branch(Work &work);

  /// Proven so far, not rounded: every schedule costs that much more.
  double value() const;
  /// The same rounded up, and at most the target.
  int64_t bound() const;
  bool isClosed() const; ///< Proven up to the target, or that nothing fits.
  /// By gap: the cost that one byte more at that event would save.
  std::vector<double> eventPrices() const;
  /// The least case's point of the LP: integral where branch() ended with work left and without closing.
  const std::vector<double> &point() const;
  Certificate certificate(int64_t budgetBytes) const;

private:
  enum class Fix : signed char { Zero, One, Free };
  using Box = std::vector<Fix>;
  struct Proof;
  struct Case;

  bool propagate(Box &box, std::vector<int> rowsToVisit) const;
  void addRow(Row row, int cut);
  void loadRows();
  void solve(Case &it, Work &work);
  bool fixByCost(Case &it, Proof &proof);
  bool solveOnce(Case &it, Work &work);
  void setBasis(std::vector<unsigned char> basis);
  void setBox(const Box &box);
  void addCutsTo(Case &it, Work &work, int rounds);
  bool separate(const std::vector<double> &point);
  void separateKnapsack(const Row &row, const std::vector<double> &point, bool byWeight);
  int chooseBranch(Case &it, Work &work);
  Proof prove(const std::vector<double> &duals, const Box &box) const;
  bool proves(__int128 value) const;

  const Relaxation &relaxation;
  int64_t target;
  bool hasCosts;
  int scaleBits;
  double costScale;              ///< Objective of the LP for a unit of cost.
  std::vector<Row> rows;         ///< The relaxation's, then those of addCuts.
  std::vector<int> rowCuts;      ///< Index into `cuts` or -1.
  std::vector<double> rowScales; ///< The LP's row times this is the row.
  std::vector<std::vector<int>> rowsOfColumn;
  std::vector<KnapsackCut> cuts;
  std::unique_ptr<ClpSimplex> lp;
  size_t loadedRows = 0;
  Box firstBox; ///< After propagation and nothing else: cuts hold for it.
  std::vector<std::unique_ptr<Case>> cases;
};

} // namespace recast::remat
