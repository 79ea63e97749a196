#include "passes/checkpoint/remat/bound/Prover.h"
#include <algorithm>
#include <tuple>

namespace recast::remat {

bool Prover::separate(const std::vector<double> &point) {
  size_t before = rows.size();
  for (size_t r = 0; r < before; ++r)
    if (rowCuts[r] < 0 && rows[r].kind == RowKind::Memory) {
      Row row = rows[r];
      for (bool byWeight : {true, false})
        separateKnapsack(row, point, byWeight);
    }
  return rows.size() > before;
}

/// A minimal cover of the row's knapsack, with exact sequential lifting of the columns outside of it (Balas 1975).
void Prover::separateKnapsack(const Row &row, const std::vector<double> &point, bool byWeight) {
  struct Item {
    int column;
    int64_t weight;
    double value;
  };
  int64_t capacity = -row.rhs, sum = 0;
  std::vector<Item> items;
  for (auto &term : row.terms) {
    if (firstBox[term.column] == Fix::One)
      capacity += term.factor;
    if (firstBox[term.column] != Fix::Free)
      continue;
    items.push_back({term.column, -term.factor, point[term.column]});
    sum -= term.factor;
  }
  if (sum <= capacity || capacity < 0)
    return;
  std::ranges::sort(items, [&](const Item &a, const Item &b) {
    double keyA = (1 - a.value) / (byWeight ? static_cast<double>(a.weight) : 1);
    double keyB = (1 - b.value) / (byWeight ? static_cast<double>(b.weight) : 1);
    return keyA != keyB ? keyA < keyB : a.column < b.column;
  });
  size_t count = 0;
  int64_t covered = 0;
  while (covered <= capacity)
    covered += items[count++].weight;
  // What the cover can do without, the least held first.
  std::vector<Item> cover(items.begin(), items.begin() + count), rest(items.begin() + count, items.end());
  std::ranges::sort(
      cover, [](const Item &a, const Item &b) { return a.value != b.value ? a.value < b.value : a.column < b.column; });
  std::erase_if(cover, [&](const Item &item) {
    if (covered - item.weight <= capacity)
      return false;
    covered -= item.weight;
    rest.push_back(item);
    return true;
  });
  std::ranges::sort(cover, {}, &Item::weight);
  std::ranges::sort(rest, [](const Item &a, const Item &b) {
    return std::tie(b.value, b.weight, a.column) < std::tie(a.value, a.weight, b.column);
  });
  int64_t limit = static_cast<int64_t>(cover.size()) - 1;
  // lightest[v]: the least weight with which the lifted columns reach v.
  std::vector<int64_t> lightest(limit + 1, 0);
  double reached = 0;
  KnapsackCut cut{row.span, limit, {}};
  Row added{RowKind::Memory, 0, 0, row.span, -limit, {}};
  auto add = [&](const Item &item, int64_t factor) {
    reached += static_cast<double>(factor) * item.value;
    cut.terms.push_back({relaxation.columns()[item.column], factor});
    added.terms.push_back({item.column, -factor});
  };
  for (size_t i = 0; i < cover.size(); ++i) {
    add(cover[i], 1);
    if (static_cast<int64_t>(i) < limit)
      lightest[i + 1] = lightest[i] + cover[i].weight;
  }
  for (auto &item : rest) {
    auto fits = std::upper_bound(lightest.begin(), lightest.end(), capacity - item.weight) - lightest.begin();
    int64_t factor = limit + 1 - fits;
    factor = std::min(factor, limit);
    if (factor <= 0)
      continue;
    add(item, factor);
    for (int64_t v = limit; v > 0; --v)
      lightest[v] = std::min(lightest[v], lightest[std::max<int64_t>(0, v - factor)] + item.weight);
  }
  if (limit == 0 || reached < static_cast<double>(limit) + 1e-3)
    return;
  cuts.push_back(std::move(cut));
  addRow(std::move(added), static_cast<int>(cuts.size()) - 1);
}

} // namespace recast::remat
