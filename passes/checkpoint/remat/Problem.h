// What to recompute, as plain structs: no MLIR, so that solvers, bounds and checkers are tested without a compiler.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace recast::remat {

/// A piece of memory that one node writes and others read. Views of it are the same tensor.
struct Tensor {
  int64_t bytes = 0;
  bool isKept = false; ///< Read after the last step: a result of the graph.
};

/// An operator. Tensors are indices into Problem::tensors.
struct Node {
  int64_t cost = 0;           ///< Of one run: nanoseconds, or any unit that is used throughout.
  int64_t workspaceBytes = 0; ///< Needed while it runs.
  bool canRepeat = true;      ///< False: effects, or a result that another run would not give again.
  std::vector<int> reads, writes;
  /// Those of `reads` whose memory a result of the same size takes over where this node is their last reader.
  std::vector<int> overwrites;
};

/// Another way to have a tensor again: it is copied to the host when its writer has run for the first time, and back
/// whenever it is wanted. A copy back reads no tensor and writes this one.
struct Fetch {
  int tensor = -1;
  int64_t cost = 0;      ///< Of each copy back.
  int64_t storeCost = 0; ///< Of the copy to the host: once, where there is any copy back.
};

/// Nodes in the order in which they run for the first time. A node reads only what nodes before it write; what lies
/// outside of the plan (parameters, state, the batch) is no tensor here.
struct Problem {
  std::vector<Node> nodes;
  std::vector<Tensor> tensors;
  std::vector<Fetch> fetches; ///< At most one a tensor.
  bool copiesOverlap = false; ///< They go on beside the nodes: see timeOf(). Else the costs of all runs add up.

  /// Whether a number in Schedule::runs stands for a fetch and not for a node.
  bool isFetch(int run) const { return run >= static_cast<int>(nodes.size()); }
  const Fetch &fetch(int run) const { return fetches[static_cast<size_t>(run) - nodes.size()]; }
};

/// Runs in time: nodes by their index, fetch i as the number of nodes + i. Each node's first run comes after the first
/// runs of all nodes before it; between them, nodes that can repeat run again, and fetches of what has been written
/// run, as often as it pays. A run reads what the latest run that wrote it has left.
struct Schedule {
  std::vector<int> runs;
};

/// What each number in a schedule stands for: the nodes, and each fetch as a node that reads nothing.
std::vector<Node> runnables(const Problem &problem);
/// For each tensor the number in a schedule that fetches it; -1 where nothing does.
std::vector<int> fetchesByTensor(const Problem &problem);

/// What a schedule needs. A tensor takes memory from the run that writes it to the last run that reads that writing
/// (the end of time where it is kept; its own run where nothing reads it), both included, except that a run that is
/// the last reader of one of its `overwrites` does not count that one.
struct Usage {
  int64_t peakBytes = 0; ///< The most that is live in one run, its workspace included.
  int peakRun = -1;      ///< Index into Schedule::runs of the first run with that peak.
  int64_t cost = 0;      ///< Of all runs.
};

/// Every node once.
Schedule plainSchedule(const Problem &problem);

/// Precondition: check() has nothing to say. Takes time in proportion to the runs' reads.
Usage usage(const Problem &problem, const Schedule &schedule);

/// "" where the schedule is one of the problem: all nodes run, first runs in order, what is read or fetched is written
/// before, and only nodes that can repeat do so. Else what is wrong, with the index of the run.
std::string check(const Problem &problem, const Schedule &schedule);

} // namespace recast::remat
