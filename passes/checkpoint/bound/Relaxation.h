// The recomputation problem as linear rows over binary columns, each of which every schedule keeps. Private to Bound.
#pragma once
#include "passes/checkpoint/Problem.h"
#include <array>

namespace recast::remat {

/// Time is cut at *events*: the first runs of some nodes (the end of time is event `nodes.size()`). Gap g is the time
/// between event g-1 and event g. Each column is 0 or 1.
///   r(v,g)  node v runs again in gap g
///   h(t,g)  tensor t is held after event g: a reader, or a later event, finds the value that event g saw
///   w(t,g)  tensor t is held all through gap g. Only in gaps that are `isInner`; elsewhere h(t,g-1) stands for it.
struct Column {
  char kind; ///< 'r', 'h' or 'w'
  int index, gap;
  int64_t cost;
};

/// Every row reads: sum of factor * column >= rhs. `index` and `other` name it together with kind and gap:
///   hold    h(t,g) <= w(t,g) + r(writer,g)                     t = index
///   carry   w(t,g) <= h(t,g-1)                                 t = index
///   need    1 <= h(t,g-1) + r(writer,g)                        t = index: read in gap g by a first run
///   input   r(v,g) <= h(t,g-1) + r(writer,g)                   v = index, t = other: v reads t
///   memory  what event g reads, writes and works in, and all other h(t,g), fit the budget
///   again   where v = index runs in gap g: what it uses, and all other w(t,g), fit the budget
enum class RowKind : char { Hold = 'H', Carry = 'C', Need = 'N', Input = 'I', Memory = 'M', Again = 'A' };

struct Term {
  int column;
  int64_t factor;
};

struct Row {
  RowKind kind;
  int index, other, gap;
  int64_t rhs;
  std::vector<Term> terms;
};

class Relaxation {
public:
  Relaxation(const Problem &problem, int64_t budgetBytes, std::vector<int> events, bool hasInner);

  const std::vector<Column> &columns() const { return columnList; }
  const std::vector<Row> &rows() const { return rowList; }
  const std::vector<int> &events() const { return eventList; }
  bool hasInnerRows() const { return hasInner; }
  int gaps() const { return static_cast<int>(eventList.size()); }
  /// Terms of the row `again`, which is dense and so is not among rows(). Needs `hasInner`.
  Row againRow(int node, int gap) const;
  /// An estimate, and no bound: by node, the bytes at its first run when the columns are `point`.
  std::vector<double> estimatedBytes(const std::vector<double> &point) const;
  /// The column's number, kNone where there is none (then it is 0), kOne where it is known to be 1.
  int held(int tensor, int gap) const { return heldColumns[gap][tensor]; }
  int carried(int tensor, int gap) const;
  int repeated(int node, int gap) const { return repeatColumns[gap][node]; }
  static constexpr int kNone = -1, kOne = -2;

private:
  void addColumns();
  void addRows();
  int addColumn(char kind, int index, int gap, int64_t cost);

  const Problem &problem;
  int64_t budget;
  std::vector<int> eventList, writers;
  bool hasInner;
  std::vector<Column> columnList;
  std::vector<Row> rowList;
  std::vector<std::vector<int>> heldColumns, carryColumns, repeatColumns; ///< By gap, then tensor or node.
  std::vector<std::vector<char>> needed; ///< By gap, then tensor: may be worth holding into or making in the gap.
};

/// For each event, the bytes that its node uses for certain: reads and writes without what it overwrites.
int64_t usedBytes(const Problem &problem, int node);

} // namespace recast::remat
