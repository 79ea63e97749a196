// The state is a skyline: for each section of time, the height below which nothing is placed any more. The method is in
// the family of M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning"
// (ASPLOS 2023): every item lies on the skyline, and what is below an item that bridges a gap is lost. It differs in
// how it branches. A valley is a run of sections of one height between higher ones. In a placement that is pushed down
// as far as it goes, the next item at a section of a valley lies on the floor of the valley, and so entirely inside of
// it, or the floor is lost up to the next height at which an item could lie. A section that has no room to lose leaves
// only the first, so the section with the fewest choices is decided first, wherever it is.
#pragma once
#include "runtime/compile/PlacementSearch.h"
#include <limits>

namespace recast::placement {

using Height = int64_t; // In units: the greatest common divisor of all sizes.
inline constexpr Height kWall = std::numeric_limits<Height>::max();
inline constexpr int kDeepest = 5000; // Decisions on top of each other: a bound on the stack.

struct Block {
  Height size;
  int begin, end; // Sections, half-open.
  size_t item;
};

/// Items as blocks over sections: the steps between which the set of live items changes.
struct Model {
  explicit Model(const Problem &problem);
  std::vector<Block> blocks; // By begin.
  int sections = 0;
  size_t unit = 1; ///< Bytes.
};

/// States without a placement, by a hash of 64 bits. A false hit would lose a placement, never give a wrong one.
class FailedStates {
public:
  explicit FailedStates(uint64_t nodes) {
    size_t size = 1024;
    while (size < nodes && size < size_t(1) << 20)
      size *= 2;
    table.assign(size, 0);
  }
  bool has(uint64_t key) const { return table[key & (table.size() - 1)] == key; }
  void add(uint64_t key) { table[key & (table.size() - 1)] = key; }

private:
  std::vector<uint64_t> table;
};

/// One search of one problem for one capacity; attempts share what they learn.
class Search {
public:
  Search(const Model &model, Height capacity, FailedStates &failed);
  /// `rank`: the lower, the earlier a block is tried.
  Fit run(const std::vector<double> &rank, uint64_t limit);
  uint64_t used() const { return nodes; }
  Height offset(size_t block) const { return low[block]; }

private:
  struct Change {
    enum Kind { Skyline, Low, Placed } kind;
    int index;
    Height old;
    bool wasSolid = false;
  };
  struct Choice {
    int section = -1; ///< -1: nothing is left to place.
    Height raised = kWall;
    std::vector<int> blocks;
  };

  Fit solve(int begin, int end);
  Fit solveParts(int begin, int end);
  Choice choose(int begin, int end);
  bool isOnFloor(int block) const;
  bool place(int block);
  bool lift(int section, Height height, bool solid);
  bool settle();
  bool isFull(int section);
  void touch(int section) {
    if (!isDirty[at(section)]) {
      isDirty[at(section)] = true;
      dirty.push_back(section);
    }
  }
  void undo(size_t mark);
  uint64_t key(int begin, int end) const;
  static size_t at(int index) { return static_cast<size_t>(index); }

  const Model &model;
  const Height capacity;
  FailedStates &failed;
  const std::vector<double> *rank = nullptr;
  uint64_t nodes = 0, limit = 0;
  int depth = 0;
  std::vector<std::vector<int>> covering; ///< One a section: the blocks that are live in it.
  std::vector<int> firstBlock;            ///< One a section, and one more: the first block that begins there or later.
  std::vector<Height> skyline, rest;      ///< One a section; `rest`: the sum of what is not placed.
  std::vector<Height> low;                ///< One a block: its lowest possible offset; its offset when placed.
  std::vector<char> placed, isDirty;
  std::vector<char> isSolid;           ///< One a section: whether a placed block (or the bottom) ends at the skyline.
  std::vector<double> faults, weights; ///< One a section: how often it had no room, and how much that counts.
  std::vector<int> dirty, valleyEnd, count, solidBefore; ///< The last three: of the state that is branched on.
  std::vector<Change> trail;
};

} // namespace recast::placement
