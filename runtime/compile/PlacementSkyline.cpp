#include "runtime/compile/PlacementSkyline.h"
#include <algorithm>
#include <cmath>

namespace recast::placement {

namespace {

uint64_t mix(uint64_t x) { // The finaliser of splitmix64.
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

} // namespace

Search::Search(const Model &model, Height capacity, FailedStates &failed)
    : model(model), capacity(capacity), failed(failed), covering(at(model.sections)),
      firstBlock(at(model.sections) + 1), skyline(at(model.sections)), rest(at(model.sections)),
      low(model.blocks.size()), placed(model.blocks.size()), isDirty(at(model.sections)),
      isSolid(at(model.sections), true), faults(at(model.sections)), weights(at(model.sections), 1),
      valleyEnd(at(model.sections)), count(at(model.sections) + 1), solidBefore(at(model.sections) + 1) {
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
    double cost = all < 2 ? 0 : all / weights[at(s)];
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

bool Search::isFull(int section) {
  // The logarithm of 2 + faults, linear between the powers of two: the same bits on every machine, unlike std::log2.
  int exponent;
  double mantissa = std::frexp(2 + ++faults[at(section)], &exponent);
  weights[at(section)] = exponent - 2 + 2 * mantissa;
  return false;
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

} // namespace recast::placement
