#include "passes/checkpoint/remat/bound/DualAscent.h"
#include <algorithm>
#include <limits>

namespace recast::remat {

namespace {

/// How deep a charge looks for inputs that can bear it.
constexpr int kDepth = 8;

const Row *memoryRow(const Relaxation &relaxation) {
  for (auto &row : relaxation.rows())
    if (row.kind == RowKind::Memory && row.span == 0)
      return &row;
  return nullptr;
}

class Ascent {
public:
  Ascent(const Problem &problem, const Relaxation &relaxation, double price)
      : relaxation(relaxation), multipliers(relaxation.rows().size()), left(relaxation.columns().size()),
        inputRows(problem.nodes.size()) {
    auto &columns = relaxation.columns();
    for (size_t j = 0; j < columns.size(); ++j)
      left[j] = static_cast<double>(columns[j].cost);
    auto &rows = relaxation.rows();
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].kind == RowKind::Memory && rows[r].span == 0) {
        multipliers[r] = price;
        for (auto &term : rows[r].terms)
          left[term.column] -= price * static_cast<double>(term.factor);
      } else if (rows[r].kind == RowKind::Input) {
        inputRows[rows[r].index].push_back(static_cast<int>(r));
      }
    }
  }

  /// First what the writers themselves cost, then what their inputs can bear: those are mostly asked for, too.
  std::vector<double> run() {
    for (int depth : {0, kDepth})
      for (size_t r = 0; r < relaxation.rows().size(); ++r)
        if (relaxation.rows()[r].kind == RowKind::Need)
          charge(static_cast<int>(r), std::numeric_limits<double>::infinity(), depth);
    return std::move(multipliers);
  }

private:
  /// Raises the multiplier of a row `need` or `input` by at most `amount`; returns by how much.
  double charge(int row, double amount, int depth) {
    auto &terms = relaxation.rows()[row].terms;
    int repeat = -1;
    for (auto &term : terms) {
      if (term.factor < 0)
        continue; // The node that runs again, on whose behalf this is.
      if (relaxation.columns()[term.column].kind == 'r')
        repeat = term.column;
      else
        amount = std::min(amount, left[term.column]);
    }
    if (amount <= 0)
      return 0;
    if (repeat >= 0) {
      double borne = std::min(amount, left[repeat]);
      if (depth > 0)
        for (int input : inputRows[relaxation.columns()[repeat].index])
          if (borne < amount)
            borne += charge(input, amount - borne, depth - 1);
      left[repeat] = std::max(0.0, left[repeat] - borne);
      amount = borne;
    }
    for (auto &term : terms)
      if (term.factor > 0 && term.column != repeat)
        left[term.column] -= amount;
    multipliers[row] += amount;
    return amount;
  }

  const Relaxation &relaxation;
  std::vector<double> multipliers, left;   ///< `left`: by column, what it can still be charged.
  std::vector<std::vector<int>> inputRows; ///< By node.
};

} // namespace

std::vector<double> dualAscent(const Problem &problem, const Relaxation &relaxation, double price) {
  return Ascent(problem, relaxation, price).run();
}

double criticalPrice(const Problem &problem, const Relaxation &relaxation) {
  const Row *memory = memoryRow(relaxation);
  if (!memory)
    return 0;
  // Cost for a byte, then bytes.
  std::vector<std::pair<double, double>> items;
  double excess = static_cast<double>(memory->rhs);
  std::vector<double> nodeBytes(problem.nodes.size());
  std::vector<int> writers(problem.tensors.size(), -1);
  for (size_t v = 0; v < problem.nodes.size(); ++v)
    for (int t : problem.nodes[v].writes)
      writers[t] = static_cast<int>(v);
  for (auto &row : relaxation.rows())
    if (row.kind == RowKind::Need && row.span == 1 && relaxation.held(row.index, 0) >= 0) {
      auto bytes = static_cast<double>(problem.tensors[row.index].bytes);
      excess += bytes;
      if (relaxation.repeated(writers[row.index], 1) >= 0)
        nodeBytes[writers[row.index]] += bytes;
    }
  for (size_t v = 0; v < nodeBytes.size(); ++v)
    if (nodeBytes[v] > 0)
      items.push_back({static_cast<double>(problem.nodes[v].cost) / nodeBytes[v], nodeBytes[v]});
  std::ranges::sort(items);
  double price = 0;
  for (size_t i = 0; i < items.size() && excess > 0; ++i) {
    price = items[i].first;
    excess -= items[i].second;
  }
  return price;
}

} // namespace recast::remat
