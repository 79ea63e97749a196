#include "runtime/compile/Placement.h"
#include "runtime/compile/PlacementSearch.h"
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace recast::placement {

namespace {

/// Items that need memory, with rounded sizes, and when each comes and goes.
struct Events {
  explicit Events(const Problem &problem) {
    size_t mask = problem.alignment - 1;
    for (size_t i = 0; i < problem.items.size(); ++i) {
      sizes.push_back((problem.items[i].bytes + mask) & ~mask);
      if (sizes[i])
        live.push_back(i);
    }
    byFirst = byLast = live;
    std::ranges::sort(byFirst, {}, [&](size_t i) { return std::pair(problem.items[i].first, i); });
    std::ranges::sort(byLast, {}, [&](size_t i) { return std::pair(problem.items[i].last, i); });
  }

  /// Calls leave(i) and enter(i) in the order of time: what ends before a step leaves before that step's items enter.
  template <typename Enter, typename Leave> void sweep(const Problem &problem, Enter &&enter, Leave &&leave) const {
    size_t next = 0;
    for (size_t i : byFirst) {
      for (; next < byLast.size() && problem.items[byLast[next]].last < problem.items[i].first; ++next)
        leave(byLast[next]);
      enter(i);
    }
  }

  std::vector<size_t> sizes, live, byFirst, byLast;
};

/// Places items in `order`, each into the smallest gap that fits among those placed which are needed at the same time.
Solution placeInOrder(const Problem &problem, const Events &events, const std::vector<size_t> &order) {
  struct Placed {
    size_t begin, end;
    int first, last;
  };
  std::vector<Placed> placed; // By `begin`.
  placed.reserve(order.size());
  Solution solution{std::vector<size_t>(problem.items.size(), 0), 0};
  for (size_t i : order) {
    const Item &item = problem.items[i];
    size_t size = events.sizes[i], end = 0, best = SIZE_MAX, bestGap = SIZE_MAX;
    for (const Placed &other : placed) {
      if (other.first > item.last || other.last < item.first)
        continue;
      if (other.begin >= end + size && other.begin - end < bestGap) {
        bestGap = other.begin - end;
        best = end;
      }
      end = std::max(end, other.end);
    }
    size_t offset = best == SIZE_MAX ? end : best;
    auto at = std::ranges::upper_bound(placed, offset, {}, &Placed::begin);
    placed.insert(at, {offset, offset + size, item.first, item.last});
    solution.offsets[i] = offset;
    solution.bytes = std::max(solution.bytes, offset + size);
  }
  return solution;
}

/// The gaps of an arena that grows at its end: by place, and by size.
class FreeList {
public:
  size_t take(size_t size) {
    auto fit = bySize.lower_bound({size, 0});
    if (fit == bySize.end()) {
      size_t offset = end;
      if (auto last = byPlace.empty() ? byPlace.end() : std::prev(byPlace.end());
          last != byPlace.end() && last->first + last->second == end) {
        offset = last->first;
        remove(last);
      }
      end = offset + size;
      return offset;
    }
    auto [gap, offset] = *fit;
    remove(byPlace.find(offset));
    if (gap > size)
      add(offset + size, gap - size);
    return offset;
  }
  void give(size_t offset, size_t size) {
    auto after = byPlace.lower_bound(offset);
    if (after != byPlace.end() && after->first == offset + size) {
      size += after->second;
      after = remove(after);
    }
    if (after != byPlace.begin())
      if (auto before = std::prev(after); before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        remove(before);
      }
    add(offset, size);
  }
  size_t highWater() const { return end; }

private:
  using Places = std::map<size_t, size_t>;
  void add(size_t offset, size_t size) {
    byPlace[offset] = size;
    bySize.insert({size, offset});
  }
  Places::iterator remove(Places::iterator gap) {
    bySize.erase({gap->second, gap->first});
    return byPlace.erase(gap);
  }
  Places byPlace; // offset -> size
  std::set<std::pair<size_t, size_t>> bySize;
  size_t end = 0;
};

/// As an allocator would at run time: each item when it is first needed, into the smallest gap that fits.
Solution placeInTime(const Problem &problem, const Events &events) {
  Solution solution{std::vector<size_t>(problem.items.size(), 0), 0};
  FreeList gaps;
  events.sweep(
      problem, [&](size_t i) { solution.offsets[i] = gaps.take(events.sizes[i]); },
      [&](size_t i) { gaps.give(solution.offsets[i], events.sizes[i]); });
  solution.bytes = gaps.highWater();
  return solution;
}

size_t lowerBound(const Problem &problem, const Events &events) {
  size_t now = 0, most = 0;
  events.sweep(
      problem, [&](size_t i) { most = std::max(most, now += events.sizes[i]); },
      [&](size_t i) { now -= events.sizes[i]; });
  return most;
}

/// Nothing takes over.
Solution solveApart(const Problem &problem) {
  Solution best = heuristics(problem);
  size_t live = static_cast<size_t>(std::ranges::count_if(problem.items, [](const Item &item) { return item.bytes; }));
  if (live > kSearchedItems || best.bytes == lowerBound(problem, Events(problem)))
    return best;
  return minimise(problem, std::move(best), kSearchEffort / live);
}

/// Items that lie at one place, one after the other, as one item of a problem in which nothing takes over.
class Chains {
public:
  explicit Chains(const Problem &problem) : problem(problem) {
    for (const Item &item : problem.items)
      joins.push_back(item.takesOver >= 0);
  }

  Problem joined() {
    Problem result{{}, problem.alignment};
    itemOf.assign(problem.items.size(), -1);
    for (size_t i = 0; i < problem.items.size(); ++i)
      place(i, result);
    return result;
  }
  Solution expand(const Solution &solution) const {
    Solution result{{}, solution.bytes};
    for (int item : itemOf)
      result.offsets.push_back(solution.offsets[static_cast<size_t>(item)]);
    return result;
  }
  /// Cuts where both items fit into `bound` at the step that they share; true if it did.
  bool cut(size_t bound) {
    int steps = 0;
    for (const Item &item : problem.items)
      steps = std::max(steps, item.last + 1);
    std::vector<size_t> change(static_cast<size_t>(steps) + 1), live(static_cast<size_t>(steps));
    size_t now = 0, mask = problem.alignment - 1;
    auto size = [&](const Item &item) { return (item.bytes + mask) & ~mask; };
    for (const Item &item : joined().items) { // Unsigned differences wrap, and their sums come out right.
      change[static_cast<size_t>(item.first)] += size(item);
      change[static_cast<size_t>(item.last) + 1] -= size(item);
    }
    for (size_t step = 0; step < live.size(); ++step)
      live[step] = now += change[step];
    bool any = false;
    for (size_t i = 0; i < problem.items.size(); ++i) {
      size_t &there = live[static_cast<size_t>(problem.items[i].first)];
      if (!joins[i] || there + size(problem.items[i]) > bound)
        continue;
      there += size(problem.items[i]);
      joins[i] = false;
      any = true;
    }
    return any;
  }

private:
  /// Items come after those that they take over.
  void place(size_t i, Problem &result) {
    const Item &item = problem.items[i];
    if (!joins[i]) {
      itemOf[i] = static_cast<int>(result.items.size());
      result.items.push_back({item.bytes, item.first, item.last});
      return;
    }
    itemOf[i] = itemOf[static_cast<size_t>(item.takesOver)];
    Item &whole = result.items[static_cast<size_t>(itemOf[i])];
    whole.last = std::max(whole.last, item.last);
  }

  const Problem &problem;
  std::vector<bool> joins;
  std::vector<int> itemOf;
};

} // namespace

size_t lowerBound(const Problem &problem) {
  Problem joined = Chains(problem).joined();
  return lowerBound(joined, Events(joined));
}

Solution solve(const Problem &problem) {
  Chains chains(problem);
  Problem joined = chains.joined();
  size_t bound = lowerBound(joined, Events(joined));
  Solution best = chains.expand(solveApart(joined));
  if (best.bytes > bound && chains.cut(bound))
    if (Solution other = chains.expand(solveApart(chains.joined())); other.bytes < best.bytes)
      return other;
  return best;
}

Solution heuristics(const Problem &problem) {
  Events events(problem);
  Solution best = placeInTime(problem, events);
  size_t bound = lowerBound(problem, events);
  if (problem.items.size() > kThoroughItems)
    return best;
  auto length = [&](size_t i) { return static_cast<size_t>(problem.items[i].last - problem.items[i].first) + 1; };
  auto bySize = [&](size_t i) { return events.sizes[i]; };
  auto byArea = [&](size_t i) { return static_cast<double>(events.sizes[i]) * static_cast<double>(length(i)); };
  auto improve = [&](auto &&key) {
    if (best.bytes - bound <= bound / 1024)
      return; // Not worth the time.
    std::vector<size_t> order = events.live;
    std::ranges::sort(order, std::greater(), [&](size_t i) { return std::pair(key(i), i); });
    if (Solution other = placeInOrder(problem, events, order); other.bytes < best.bytes)
      best = std::move(other);
  };
  improve(bySize);
  improve(byArea);
  improve(length);
  return best;
}

std::string check(const Problem &problem, const Solution &solution) {
  auto describe = [&](size_t i) {
    const Item &item = problem.items[i];
    size_t offset = solution.offsets[i];
    return "item " + std::to_string(i) + " (bytes " + std::to_string(offset) + " to " +
           std::to_string(offset + item.bytes) + ", steps " + std::to_string(item.first) + " to " +
           std::to_string(item.last) + ")";
  };
  if (solution.offsets.size() != problem.items.size())
    return "the solution has " + std::to_string(solution.offsets.size()) + " offsets for " +
           std::to_string(problem.items.size()) + " items";
  std::string problemText;
  std::set<std::pair<size_t, size_t>> live; // offset, item
  auto report = [&](std::string text) {
    if (problemText.empty())
      problemText = std::move(text);
  };
  auto end = [&](size_t i) { return solution.offsets[i] + problem.items[i].bytes; };
  // What is taken over at its place is gone before.
  Problem apart = problem;
  for (size_t i = 0; i < problem.items.size(); ++i)
    if (int before = problem.items[i].takesOver;
        before >= 0 && solution.offsets[static_cast<size_t>(before)] == solution.offsets[i])
      --apart.items[static_cast<size_t>(before)].last;
  Events(apart).sweep(
      apart,
      [&](size_t i) {
        if (solution.offsets[i] % problem.alignment)
          report(describe(i) + " is not aligned to " + std::to_string(problem.alignment) + " bytes");
        if (end(i) > solution.bytes)
          report(describe(i) + " ends beyond the arena of " + std::to_string(solution.bytes) + " bytes");
        // Live items do not overlap each other, so only the neighbours can overlap this one.
        auto at = live.insert({solution.offsets[i], i}).first;
        if (at != live.begin() && end(std::prev(at)->second) > solution.offsets[i])
          report(describe(std::prev(at)->second) + " overlaps " + describe(i));
        if (auto next = std::next(at); next != live.end() && next->first < end(i))
          report(describe(i) + " overlaps " + describe(next->second));
      },
      [&](size_t i) { live.erase({solution.offsets[i], i}); });
  return problemText;
}

} // namespace recast::placement
