#include "runtime/compile/PlacementSearch.h"
#include "runtime/compile/PlacementSkyline.h"
#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

namespace recast::placement {

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

namespace {

/// Orders in which blocks are tried: four that are known to be good for some problem each, then random ones near them.
std::vector<double> rankOf(const Model &model, size_t attempt) {
  std::mt19937_64 random(attempt);
  std::vector<double> rank;
  for (const Block &block : model.blocks) {
    double size = static_cast<double>(block.size), length = block.end - block.begin;
    double keys[] = {length, size * size * length, size * length, size};
    double noise = attempt < 4 ? 1 : 0.5 + static_cast<double>(random() >> 11) * 0x1p-53;
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
