// A schedule that changes: what is live at each run, kept up to date as runs come and go.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recast::remat {

/// The runs in blocks of about the square root of their number, so that a run is put in or taken out, and memory added
/// over a stretch of runs, in about that time.
///
/// Runs are named by ids that stay while others come and go. A last, virtual run (end()) reads what is kept. Where it
/// says node, a fetch may stand by its number in a schedule; none of its runs is a first one.
class Timeline {
public:
  explicit Timeline(const Problem &problem, const Schedule &schedule);

  /// A place between runs, or on one: ordered. before(r) <= a run's own place < after(r).
  using Place = int64_t;
  Place before(int run) const { return 2 * key(run); }
  Place after(int run) const { return 2 * key(run) + 1; }

  /// Runs `node` just before run `next`. All nodes that it reads from, and itself or what it fetches, must run before
  /// that. Gives its id,
  /// the one that was freed last where there is one.
  int insert(int node, int next);
  /// Takes out a run that is not its node's first.
  void erase(int run);

  int end() const { return 0; }
  int node(int run) const { return Runs[run].node; }
  int next(int run) const;
  int previous(int run) const;
  /// The first run with before(run) >= place.
  int atOrAfter(Place place) const;
  /// Changes whenever the id comes to name another run; 0: names none.
  uint32_t stamp(int run) const { return Runs[run].stamp; }
  int firstOf(int node) const { return Firsts[node]; }
  bool isFirst(int run) const { return firstOf(Runs[run].node) == run; }

  int64_t cost() const { return Cost; }
  /// What one more run of the node, or fetch, adds to that.
  int64_t costOfNext(int node) const { return Nodes[node].cost + (Counts[node] == 0 ? Nodes[node].storeCost : 0); }
  /// What one run less takes off it.
  int64_t costOfLast(int node) const { return Nodes[node].cost + (Counts[node] == 1 ? Nodes[node].storeCost : 0); }
  int64_t memory(int run) const {
    const Block &block = Blocks[Runs[run].block];
    return block.memory[Runs[run].index] + block.pending;
  }
  /// What is live between run `next` and the one before it.
  int64_t liveBefore(int next) const;
  int64_t peak() const;
  /// First and last run that need more than `limit`; -1 where none does.
  int firstOver(int64_t limit) const;
  int lastOver(int64_t limit) const;
  /// The most that a run with from <= before(run) < to needs; 0 where there is none.
  int64_t maxIn(Place from, Place to) const;
  /// Sum over the runs from <= before(run) < to of min(bytes, what is over `limit`). Estimated where stretches are
  /// long.
  double reliefIn(Place from, Place to, int64_t bytes, int64_t limit) const;
  /// By how much the sum of what is over `limit` grows when `bytes` more are live in that stretch. As above.
  double burdenIn(Place from, Place to, int64_t bytes, int64_t limit) const;
  /// Whether the two above count each run.
  bool isExact() const;
  double excess(int64_t limit) const { return reliefIn(0, after(end()), INT64_MAX / 4, limit); }

  /// Runs that write or read a tensor, in order. The virtual run is among the readers.
  const std::vector<int> &writersOf(int tensor) const { return Writers[tensor]; }
  const std::vector<int> &readersOf(int tensor) const { return Readers[tensor]; }
  /// Where the memory of the writing ends that is the latest before `place`.
  Place endOfLatest(int tensor, Place place) const;

  /// The same if no reader at or after `place` were there.
  Place endOfUses(int tensor, Place place) const;

  Schedule schedule() const;
  /// Runs that are not their node's first, in order.
  std::vector<int> repeats() const;
  int runs() const { return Count; }
  const std::vector<int> &readsOf(int node) const { return Nodes[node].reads; }
  const std::vector<int> &writesOf(int node) const { return Nodes[node].writes; }

private:
  struct Run {
    int node = -1, block = 0, index = 0;
    uint32_t stamp = 0;
  };
  struct Block {
    std::vector<int> runs;
    std::vector<int64_t> memory; ///< Less `pending`.
    int64_t pending = 0, most = 0;
    int rank = 0;
  };
  int64_t key(int run) const { return (int64_t(Blocks[Runs[run].block].rank) << 20) | Runs[run].index; }
  /// Index into the list of the first run at or after the place.
  int lowerBound(const std::vector<int> &list, Place place) const;
  Place endOf(int tensor, int writing) const;
  Place endAmong(int tensor, int write, int readers) const;
  void add(Place from, Place to, int64_t bytes);
  template <typename F> void visit(Place from, Place to, F &&f) const;
  void place(int run, int next, int64_t memory);
  void split(int block);
  void renumber();

  struct NodeUses {
    std::vector<int> reads, writes, overwrites;
    int64_t cost = 0, workspaceBytes = 0;
    int64_t storeCost = 0; ///< Of fetches; of nodes 0.
  };
  std::vector<NodeUses> Nodes; ///< By number in a schedule; the last one is that of end().
  std::vector<int> Counts;     ///< Runs of each.
  std::vector<int64_t> Bytes;  ///< Of tensors.
  std::vector<Run> Runs;
  std::vector<Block> Blocks;
  std::vector<int> Order, Free, Firsts;
  std::vector<std::vector<int>> Writers, Readers;
  size_t Capacity;
  int64_t Cost = 0;
  int Count = 0;
  uint32_t NextStamp = 0;
};

} // namespace recast::remat
