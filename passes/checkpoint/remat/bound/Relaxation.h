// The recomputation problem as linear rows over binary columns, each of which every schedule keeps. Private to Bound.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <compare>
#include <cstdint>
#include <vector>

namespace recast::remat {

/// A moment at which time is cut. `last` empty: the first run of `node`, the number of nodes being the end of time.
/// Else it is *virtual*: the last repeat of a node of `last` after the first run of `node` and at or before the next
/// event, or that first run itself where none of them repeats there. Events before and after it, but for other virtual
/// ones, are the first runs of `node` and of the next node, so that nothing else than repeats lies between them.
struct Event {
  int node;
  std::vector<int> last; ///< Nodes up to `node` that can repeat, ascending.
  bool isVirtual() const { return !last.empty(); }
  auto operator<=>(const Event &) const = default;
};

/// Gap g is the time between event g-1 and event g; a span is a gap or several that follow each other. Each column is
/// 0 or 1. For a virtual event g:
///   r(v,s)  node v runs again in span s, at least once
///   h(t,g)  tensor t is held after event g: a reader, or a later event, finds the value that event g saw
///   y(g)    event g is a repeat
///   z(v,g)  it is one of node v
///   l(t,g)  its node reads t or writes it, or h(t,g)
struct Column {
  char kind;       ///< Those letters.
  int index, span; ///< Node or tensor; event but for 'r'.
  int64_t cost;
};

/// Every row reads: sum of factor * column >= rhs. `index` and `other` name it together with kind and span. For a span
/// from event f (not included) to event g:
///   hold    h(t,g) <= h(t,f) + r(writer,s)       t = index
///   need    1 <= h(t,f) + r(writer,s)            t = index: read in the span by a first run
///   input   r(v,s) <= h(t,f) + r(writer,s)       v = index, t = other: v reads t
///   sum     r(v,s) <= sum of r(v,gap)            v = index: over the span's gaps
///   memory  what event g reads, writes and works in, and all other h(t,g), fit the budget; `span` is gap g
/// For a virtual event g = span, but for `begin`:
///   one     sum of z(v,g) <= y(g)
///   some    y(g) <= sum of z(v,g)
///   begin   r(v,s) <= y(g)                       v = index: the span ends at g and begins with the first run before g
///                                                or after
///   order   y(g - 1) <= y(g)                     both virtual
///   where   z(v,g) <= r(v,gap)                   v = index: the gap before the last event up to g that v may be
///   after   h(t,g) <= l(t,g)                     t = index
///   use     sum of z(v,g) <= l(t,g)              t = index: over nodes that read or write it
enum class RowKind : char {
  Hold = 'H',
  Need = 'N',
  Input = 'I',
  Sum = 'S',
  Memory = 'M',
  One = 'O',
  Some = 'Y',
  Begin = 'B',
  Order = 'D',
  Where = 'W',
  After = 'A',
  Use = 'U'
};

struct Term {
  int column;
  int64_t factor;
};

struct Row {
  RowKind kind;
  int index, other, span;
  int64_t rhs;
  std::vector<Term> terms;
};

/// Of events: from one, which may be -1 for the beginning, to a later one.
struct Span {
  int from, to;
};

class Relaxation {
public:
  /// `events` ascend and end with the end of time. `spans` are those of several gaps.
  Relaxation(const Problem &problem, int64_t budgetBytes, std::vector<Event> events, const std::vector<Span> &spans);

  const std::vector<Column> &columns() const { return columnList; }
  const std::vector<Row> &rows() const { return rowList; }
  const std::vector<Event> &events() const { return eventList; }
  /// The gaps, then the others.
  const std::vector<Span> &spans() const { return spanList; }
  int gaps() const { return static_cast<int>(eventList.size()); }
  /// An estimate, and no bound: what first runs need when the columns are `point`, other runs come just before what
  /// reads them first, and what they write is held from there to its last reader in the gap. By node, bytes at its
  /// first run.
  std::vector<double> estimatedBytes(const std::vector<double> &point) const;
  /// The column's number, kNone where there is none (then it is 0), kOne where it is known to be 1.
  int held(int tensor, int gap) const { return heldColumns[gap][tensor]; }
  int repeated(int node, int span) const { return repeatColumns[span][node]; }
  static constexpr int kNone = -1, kOne = -2;

private:
  void addColumns();
  void addRows();
  void addSpanRows(int span);
  void addVirtualRows(int event);
  int addColumn(char kind, int index, int span, int64_t cost);

  const Problem &problem;
  int64_t budget;
  std::vector<Event> eventList;
  std::vector<int> writers;
  std::vector<Span> spanList;
  std::vector<Column> columnList;
  std::vector<Row> rowList;
  std::vector<std::vector<int>> heldColumns;   ///< By event, then tensor.
  std::vector<std::vector<int>> repeatColumns; ///< By span, then node.
  std::vector<int> isRepeat;                   ///< By event: y, kNone but for virtual ones.
  std::vector<std::vector<char>> needed;       ///< By gap, then tensor: may be worth holding into or making in the gap.
};

/// No virtual ones.
std::vector<Event> firstRuns(const std::vector<int> &nodes);

/// For each event, the bytes that its node uses for certain: reads and writes without what it overwrites.
int64_t usedBytes(const Problem &problem, int node);

} // namespace recast::remat
