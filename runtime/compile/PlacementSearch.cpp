// The state is a skyline: for each section of time, the height below which nothing is placed any more. The method is in
// the family of M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning"
// (ASPLOS 2023): every item lies on the skyline, and what is below an item that bridges a gap is lost. It differs in
// how it branches. A valley is a run of sections of one height between higher ones. In a placement that is pushed down
// as far as it goes, the next item at a section of a valley lies on the floor of the valley, and so entirely inside of
// it, or the floor is lost up to the next height at which an item could lie. A section that has no room to lose leaves
// only the first, so the section with the fewest choices is decided first, wherever it is.
#include "runtime/compile/PlacementSearch.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <tuple>

namespace recast::placement {

namespace {

using Height = int64_t; // In units: the greatest common divisor of all sizes.
constexpr Height kWall = std::numeric_limits<Height>::max();
constexpr int kDeepest = 5000; // Decisions on top of each other: a bound on the stack.

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

Model::Model(const Problem &problem) {
  size_t mask = problem.alignment - 1;
  std::vector<int> cuts;
  size_t divisor = 0;
  for (size_t i = 0; i < problem.items.size(); ++i) {
    const Item &item = problem.items[i];
    size_t size = (item.bytes + mask) & ~mask;
    if (!size)
      continue;
    divisor = std::gcd(divisor, size);
    blocks.push_back({static_cast<Height>(size), item.first, item.last, i});
    cuts.push_back(item.first);
  }
  if (blocks.empty())
    return;
  unit = divisor;
  // Only a step at which an item comes starts a section: at any other step, fewer of the same items are live.
  std::ranges::sort(cuts);
  cuts.erase(std::ranges::unique(cuts).begin(), cuts.end());
  sections = static_cast<int>(cuts.size());
  auto section = [&](int step) { return static_cast<int>(std::ranges::upper_bound(cuts, step) - cuts.begin()); };
  for (Block &block : blocks)
    block = {block.size / static_cast<Height>(unit), section(block.begin) - 1, section(block.end), block.item};
  std::ranges::sort(blocks, {}, [](const Block &b) { return std::tuple(b.begin, b.end, -b.size, b.item); });
}

/// States without a placement, by a hash of 64 bits. A false hit would only lose a placement.
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

uint64_t mix(uint64_t x) { // The finaliser of splitmix64.
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

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
  bool isFull(int section) {
    ++faults[at(section)];
    return false;
  }
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
  std::vector<char> isSolid;  ///< One a section: whether a placed block (or the bottom) ends at the skyline.
  std::vector<double> faults; ///< One a section: how often it had no room.
  std::vector<int> dirty, valleyEnd, count, solidBefore; ///< The last three: of the state being branched on.
  std::vector<Change> trail;
};

Search::Search(const Model &model, Height capacity, FailedStates &failed)
    : model(model), capacity(capacity), failed(failed), covering(at(model.sections)),
      firstBlock(at(model.sections) + 1), skyline(at(model.sections)), rest(at(model.sections)),
      low(model.blocks.size()), placed(model.blocks.size()), isDirty(at(model.sections)),
      isSolid(at(model.sections), true), faults(at(model.sections)), valleyEnd(at(model.sections)),
      count(at(model.sections) + 1), solidBefore(at(model.sections) + 1) {
  for (size_t i = 0; i < model.blocks.size(); ++i)
    for (int s = model.blocks[i].begin; s < model.blocks[i].end; ++s) {
      covering[at(s)].push_back(static_cast<int>(i));
      rest[at(s)] += model.blocks[i].size;
    }
  size_t next = 0;
  for (int s = 0; s <= model.sections; ++s) {
    while (next < model.blocks.size() && model.blocks[next].begin < s)
      ++next;
    firstBlock[at(s)] = static_cast<int>(next);
  }
}

Fit Search::run(const std::vector<double> &order, uint64_t nodeLimit) {
  rank = &order;
  limit = nodes + nodeLimit;
  if (std::ranges::any_of(rest, [&](Height sum) { return sum > capacity; }))
    return Fit::Impossible;
  Fit fit = solve(0, model.sections);
  if (fit != Fit::Found)
    undo(0);
  return fit;
}

/// Places all that lies in the sections; where it cannot, the state is as before.
Fit Search::solve(int begin, int end) {
  size_t start = trail.size();
  uint64_t state = key(begin, end);
  if (failed.has(state))
    return Fit::Impossible;
  Choice choice = choose(begin, end);
  if (choice.section < 0)
    return Fit::Found;
  auto fail = [&](Fit fit) {
    undo(start);
    return fit;
  };
  for (size_t i = 0; i <= choice.blocks.size(); ++i) {
    bool isRaise = i == choice.blocks.size();
    if (isRaise && choice.raised == kWall)
      break;
    if (++nodes > limit || depth > kDeepest)
      return fail(Fit::OutOfNodes);
    bool sound = isRaise ? lift(choice.section, choice.raised, false) : place(choice.blocks[i]);
    if (settle() && sound) {
      ++depth;
      Fit fit = solveParts(begin, end);
      --depth;
      if (fit != Fit::Impossible)
        return fit == Fit::Found ? fit : fail(fit);
    }
    undo(start);
  }
  failed.add(state);
  return Fit::Impossible;
}

/// Parts that no block connects are solved one after the other: a fault in one is no reason to change another.
Fit Search::solveParts(int begin, int end) {
  size_t start = trail.size();
  int reach = begin, partBegin = begin;
  auto finish = [&](int partEnd) {
    Fit fit = Fit::Found;
    if (rest[at(partBegin)] || partEnd - partBegin > 1)
      fit = solve(partBegin, partEnd);
    if (fit != Fit::Found)
      undo(start);
    return fit;
  };
  for (int s = begin; s < end; ++s) {
    if (s >= reach && s > partBegin) {
      if (Fit fit = finish(s); fit != Fit::Found)
        return fit;
      partBegin = s;
    }
    for (int b = firstBlock[at(s)]; b < firstBlock[at(s) + 1]; ++b)
      if (!placed[at(b)])
        reach = std::max(reach, model.blocks[at(b)].end);
  }
  return finish(end);
}

Search::Choice Search::choose(int begin, int end) {
  auto height = [&](int s) { return s < begin || s >= end || !rest[at(s)] ? kWall : skyline[at(s)]; };
  std::fill(count.begin() + begin, count.begin() + end + 1, 0);
  for (int s = begin; s < end;) {
    int to = s + 1;
    while (to < end && height(to) == height(s))
      ++to;
    bool isValley = height(s) != kWall && height(s - 1) > height(s) && height(to) > height(s);
    for (; s < to; ++s) {
      valleyEnd[at(s)] = isValley ? to : -1;
      solidBefore[at(s) + 1] = solidBefore[at(s)] + isSolid[at(s)];
    }
  }
  for (int b = firstBlock[at(begin)]; b < firstBlock[at(end)]; ++b)
    if (isOnFloor(b)) {
      ++count[at(model.blocks[at(b)].begin)];
      --count[at(model.blocks[at(b)].end)];
    }
  Choice choice;
  // Fewest choices first, and among the others those where faults were found: they are found sooner then.
  std::pair<double, Height> least{std::numeric_limits<double>::infinity(), 0};
  for (int s = begin, choices = 0; s < end; ++s) {
    choices += count[at(s)];
    if (valleyEnd[at(s)] < 0)
      continue;
    Height slack = capacity - skyline[at(s)] - rest[at(s)];
    int all = choices + (slack > 0);
    double cost = all < 2 ? 0 : all / std::log2(2 + faults[at(s)]);
    if (std::pair<double, Height> here{cost, slack}; here < least) {
      least = here;
      choice.section = s;
    }
  }
  if (choice.section < 0)
    return choice;
  // What is not on the floor lies on another block of the valley, or on what is not lower than a wall.
  int valley = choice.section, to = valleyEnd[at(valley)];
  while (valley > begin && valleyEnd[at(valley - 1)] == to)
    --valley;
  Height floor = skyline[at(choice.section)], wall = std::min(height(valley - 1), height(to));
  Height raised = kWall, support = wall == kWall ? kWall : wall + 1;
  for (int b = firstBlock[at(valley)]; b < firstBlock[at(to)]; ++b) {
    if (!isOnFloor(b))
      continue;
    const Block &block = model.blocks[at(b)];
    auto isSame = [&](int other) {
      const Block &o = model.blocks[at(other)];
      return o.begin == block.begin && o.end == block.end && o.size == block.size;
    };
    if (block.begin > choice.section || block.end <= choice.section)
      support = std::min(support, floor + block.size);
    else if (std::ranges::none_of(choice.blocks, isSame))
      choice.blocks.push_back(b);
  }
  for (int b : covering[at(choice.section)])
    if (!placed[at(b)])
      raised = std::min(raised, low[at(b)] > floor ? low[at(b)] : support);
  if (raised <= capacity - rest[at(choice.section)])
    choice.raised = raised;
  std::ranges::sort(choice.blocks, {}, [&](int b) { return std::pair((*rank)[at(b)], b); });
  return choice;
}

/// Whether the block can lie on the floor of a valley. Where the whole floor below it is lost space, it cannot: nothing
/// would carry it.
bool Search::isOnFloor(int index) const {
  const Block &block = model.blocks[at(index)];
  return !placed[at(index)] && valleyEnd[at(block.begin)] >= block.end &&
         solidBefore[at(block.end)] > solidBefore[at(block.begin)];
}

bool Search::place(int index) {
  const Block &block = model.blocks[at(index)];
  placed[at(index)] = true;
  trail.push_back({Change::Placed, index, 0});
  bool sound = true;
  for (int s = block.begin; s < block.end; ++s) {
    rest[at(s)] -= block.size;
    touch(s);
  }
  for (int s = block.begin; s < block.end; ++s)
    sound = sound && lift(s, low[at(index)] + block.size, true);
  return sound;
}

bool Search::lift(int section, Height height, bool solid) {
  Height &now = skyline[at(section)];
  if (height <= now)
    return true;
  trail.push_back({Change::Skyline, section, now, static_cast<bool>(isSolid[at(section)])});
  now = height;
  isSolid[at(section)] = solid;
  if (height + rest[at(section)] > capacity)
    return isFull(section);
  for (int b : covering[at(section)]) {
    if (placed[at(b)] || low[at(b)] >= height)
      continue;
    const Block &block = model.blocks[at(b)];
    if (height + block.size > capacity)
      return isFull(section);
    trail.push_back({Change::Low, b, low[at(b)]});
    // Where this block was one that could lie on the skyline, another may be the lowest now.
    for (int s = block.begin; s < block.end; ++s)
      if (low[at(b)] <= skyline[at(s)])
        touch(s);
    low[at(b)] = height;
  }
  return true;
}

/// Lifts the skyline to where the lowest block of a section can lie, until nothing changes.
bool Search::settle() {
  bool sound = true;
  while (!dirty.empty()) {
    int section = dirty.back();
    dirty.pop_back();
    isDirty[at(section)] = false;
    if (!sound || !rest[at(section)])
      continue;
    Height floor = kWall;
    for (int b : covering[at(section)])
      if (!placed[at(b)])
        floor = std::min(floor, low[at(b)]);
    sound = lift(section, floor, false);
  }
  return sound;
}

void Search::undo(size_t mark) {
  for (; trail.size() > mark; trail.pop_back()) {
    const Change &change = trail.back();
    switch (change.kind) {
    case Change::Skyline:
      skyline[at(change.index)] = change.old;
      isSolid[at(change.index)] = change.wasSolid;
      break;
    case Change::Low:
      low[at(change.index)] = change.old;
      break;
    case Change::Placed:
      placed[at(change.index)] = false;
      for (int s = model.blocks[at(change.index)].begin; s < model.blocks[at(change.index)].end; ++s)
        rest[at(s)] += model.blocks[at(change.index)].size;
      break;
    }
  }
}

uint64_t Search::key(int begin, int end) const {
  uint64_t hash = mix(static_cast<uint64_t>(begin) << 32 | static_cast<uint64_t>(end));
  for (int s = begin; s < end; ++s)
    if (rest[at(s)])
      hash += mix(static_cast<uint64_t>(skyline[at(s)]) * 0x9e3779b97f4a7c15u +
                  static_cast<uint64_t>(2 * s + isSolid[at(s)]) + 1);
  for (int b = firstBlock[at(begin)]; b < firstBlock[at(end)]; ++b)
    if (!placed[at(b)])
      hash += mix((static_cast<uint64_t>(b) + 1) * 0xd1342543de82ef95u);
  return hash ? hash : 1;
}

/// Orders in which blocks are tried: four that are known to be good for some problem each, then random ones near them.
std::vector<double> rankOf(const Model &model, size_t attempt) {
  std::mt19937_64 random(attempt);
  std::vector<double> rank;
  for (const Block &block : model.blocks) {
    double size = static_cast<double>(block.size), length = block.end - block.begin;
    double keys[] = {size * length, size, length, size * size * length};
    double noise = attempt < 4 ? 1 : std::exp2(static_cast<double>(random() >> 11) * 0x1p-52 - 1);
    rank.push_back(-keys[attempt % 4] * noise);
  }
  return rank;
}

Fit fit(const Problem &problem, const Model &model, size_t capacity, uint64_t &nodes, Solution &solution) {
  FailedStates failed(nodes);
  Search search(model, static_cast<Height>(capacity / model.unit), failed);
  // Effort is heavy-tailed: many short attempts, which share what is known to fail, do better than a few long ones.
  uint64_t share = 1000 + 4 * model.blocks.size();
  for (size_t attempt = 0; nodes; ++attempt, share += share / 16) {
    uint64_t before = search.used();
    Fit result = search.run(rankOf(model, attempt), std::min(nodes, share));
    nodes -= std::min(nodes, search.used() - before);
    if (result == Fit::OutOfNodes)
      continue;
    if (result == Fit::Found) {
      solution = {std::vector<size_t>(problem.items.size(), 0), 0};
      for (size_t b = 0; b < model.blocks.size(); ++b) {
        size_t offset = static_cast<size_t>(search.offset(b)) * model.unit;
        solution.offsets[model.blocks[b].item] = offset;
        solution.bytes = std::max(solution.bytes, offset + static_cast<size_t>(model.blocks[b].size) * model.unit);
      }
    }
    return result;
  }
  return Fit::OutOfNodes;
}

} // namespace

Fit fit(const Problem &problem, size_t capacity, uint64_t &nodes, Solution &solution) {
  return fit(problem, Model(problem), capacity, nodes, solution);
}

Solution minimise(const Problem &problem, Solution start, uint64_t nodes) {
  Model model(problem);
  size_t bound = lowerBound(problem);
  // The bound itself is what most problems reach. Then bisection; a capacity that took too long counts as too small.
  for (size_t capacity = bound; bound < start.bytes && nodes; capacity = bound + (start.bytes - bound) / 2) {
    capacity -= capacity % model.unit;
    uint64_t share = (nodes + 1) / 2, left = share;
    if (fit(problem, model, capacity, left, start) != Fit::Found)
      bound = capacity + model.unit;
    nodes -= share - left;
  }
  return start;
}

} // namespace recast::placement
