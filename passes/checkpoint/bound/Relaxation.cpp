#include "passes/checkpoint/bound/Relaxation.h"
#include <algorithm>

namespace recast::remat {

namespace {

bool contains(const std::vector<int> &list, int item) { return std::ranges::find(list, item) != list.end(); }

/// Sums terms of one column; constants go to the right-hand side.
class RowBuilder {
public:
  RowBuilder(RowKind kind, int index, int other, int gap, int64_t rhs) : row{kind, index, other, gap, rhs, {}} {}
  void add(int column, int64_t factor) {
    if (column == Relaxation::kOne)
      row.rhs -= factor;
    else if (column != Relaxation::kNone && factor != 0)
      row.terms.push_back({column, factor});
  }
  /// The row, unless all values of its columns keep it.
  void addTo(std::vector<Row> &rows) {
    int64_t least = 0;
    for (auto &term : row.terms)
      least += std::min<int64_t>(term.factor, 0);
    if (least < row.rhs)
      rows.push_back(std::move(row));
  }
  Row row;
};

} // namespace

int64_t usedBytes(const Problem &problem, int node) {
  auto &n = problem.nodes[node];
  int64_t bytes = n.workspaceBytes;
  for (int t : n.writes)
    bytes += problem.tensors[t].bytes;
  for (size_t i = 0; i < n.reads.size(); ++i) {
    int t = n.reads[i];
    if (std::find(n.reads.begin(), n.reads.begin() + i, t) == n.reads.begin() + i && !contains(n.overwrites, t))
      bytes += problem.tensors[t].bytes;
  }
  return bytes;
}

Relaxation::Relaxation(const Problem &problem, int64_t budgetBytes, std::vector<int> events, bool hasInner)
    : problem(problem), budget(budgetBytes), eventList(std::move(events)), writers(problem.tensors.size(), -1),
      hasInner(hasInner) {
  for (size_t v = 0; v < problem.nodes.size(); ++v)
    for (int t : problem.nodes[v].writes)
      writers[t] = static_cast<int>(v);
  addColumns();
  addRows();
}

int Relaxation::addColumn(char kind, int index, int gap, int64_t cost) {
  columnList.push_back({kind, index, gap, cost});
  return static_cast<int>(columnList.size()) - 1;
}

void Relaxation::addColumns() {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  // A tensor is needed in gap g where it is written by event g-1 and a first run after that reads it, or another run
  // of such a tensor's writer: a run or a holding of anything else is of no use, and the rows do not mention it.
  std::vector<int> lastRead(tensors, -1);
  for (int v = 0; v < nodes; ++v)
    for (int t : problem.nodes[v].reads)
      lastRead[t] = v;
  for (int t = 0; t < tensors; ++t)
    if (problem.tensors[t].isKept)
      lastRead[t] = nodes;
  needed.assign(gaps() + 1, std::vector<char>(tensors));
  for (int g = 1; g <= gaps(); ++g)
    for (int v = std::min(eventList[g - 1], nodes - 1); v >= 0; --v) {
      auto &node = problem.nodes[v];
      bool isUsed = false;
      for (int t : node.writes)
        isUsed |= needed[g][t] |= lastRead[t] > eventList[g - 1];
      if (isUsed && node.canRepeat)
        for (int t : node.reads)
          needed[g][t] = true;
    }
  heldColumns.assign(gaps(), std::vector<int>(tensors, kNone));
  carryColumns = heldColumns;
  repeatColumns.assign(gaps(), std::vector<int>(nodes, kNone));
  for (int g = 0; g < gaps(); ++g) {
    if (g > 0)
      for (int v = 0; v < nodes && v <= eventList[g - 1]; ++v)
        if (problem.nodes[v].canRepeat &&
            std::ranges::any_of(problem.nodes[v].writes, [&](int t) { return needed[g][t]; }))
          repeatColumns[g][v] = addColumn('r', v, g, problem.nodes[v].cost);
    for (int t = 0; t < tensors; ++t) {
      if (hasInner && g > 0 && needed[g][t])
        carryColumns[g][t] = addColumn('w', t, g, 0);
      if (needed[g + 1][t])
        heldColumns[g][t] = addColumn('h', t, g, 0);
    }
    if (int v = eventList[g]; v < nodes) {
      // The event itself sees these, so that they are there after it; their bytes are in usedBytes.
      auto setOne = [&](int t) {
        if (heldColumns[g][t] != kNone && !contains(problem.nodes[v].overwrites, t))
          heldColumns[g][t] = kOne;
      };
      std::ranges::for_each(problem.nodes[v].reads, setOne);
      std::ranges::for_each(problem.nodes[v].writes, setOne);
    }
  }
}

int Relaxation::carried(int tensor, int gap) const {
  return hasInner ? carryColumns[gap][tensor] : heldColumns[gap - 1][tensor];
}

void Relaxation::addRows() {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  for (int g = 0; g < gaps(); ++g) {
    int event = eventList[g], before = g > 0 ? eventList[g - 1] : -1;
    auto repeat = [&](int t) { return repeatColumns[g][writers[t]]; };
    std::vector<char> isRead(tensors);
    for (int v = before + 1; v <= event && v < nodes; ++v)
      for (int t : problem.nodes[v].reads)
        isRead[t] = true;
    for (int t = 0; g > 0 && t < tensors; ++t) {
      if (writers[t] < 0 || writers[t] > before)
        continue;
      if (heldColumns[g][t] >= 0) {
        RowBuilder hold(RowKind::Hold, t, 0, g, 0);
        hold.add(carried(t, g), 1);
        hold.add(repeat(t), 1);
        hold.add(heldColumns[g][t], -1);
        hold.addTo(rowList);
      }
      if (carryColumns[g][t] >= 0) {
        RowBuilder carry(RowKind::Carry, t, 0, g, 0);
        carry.add(heldColumns[g - 1][t], 1);
        carry.add(carryColumns[g][t], -1);
        carry.addTo(rowList);
      }
      if (isRead[t] || (event == nodes && problem.tensors[t].isKept)) {
        RowBuilder need(RowKind::Need, t, 0, g, 1);
        need.add(heldColumns[g - 1][t], 1);
        need.add(repeat(t), 1);
        need.addTo(rowList);
      }
    }
    for (int v = 0; g > 0 && v < nodes && v <= before; ++v) {
      if (repeatColumns[g][v] < 0)
        continue;
      auto &reads = problem.nodes[v].reads;
      for (size_t i = 0; i < reads.size(); ++i) {
        if (std::find(reads.begin(), reads.begin() + i, reads[i]) != reads.begin() + i)
          continue;
        RowBuilder input(RowKind::Input, v, reads[i], g, 0);
        input.add(heldColumns[g - 1][reads[i]], 1);
        input.add(repeat(reads[i]), 1);
        input.add(repeatColumns[g][v], -1);
        input.addTo(rowList);
      }
    }
    int64_t used = 0;
    if (event < nodes)
      used = usedBytes(problem, event);
    else
      for (auto &tensor : problem.tensors)
        used += tensor.isKept ? tensor.bytes : 0;
    RowBuilder memory(RowKind::Memory, 0, 0, g, used - budget);
    for (int t = 0; t < tensors; ++t)
      if (heldColumns[g][t] >= 0 && !(event == nodes && problem.tensors[t].isKept))
        memory.add(heldColumns[g][t], -problem.tensors[t].bytes);
    memory.addTo(rowList);
  }
}

std::vector<double> Relaxation::estimatedBytes(const std::vector<double> &point) const {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  auto at = [&](int column) { return column == kOne ? 1 : column == kNone ? 0 : point[column]; };
  std::vector<double> bytes(nodes);
  std::vector<int> usedBy(tensors, -1);
  for (int g = 0; g < gaps(); ++g) {
    int before = g > 0 ? eventList[g - 1] : -1;
    // What later first runs of the gap read, from its end.
    std::vector<char> isRead(tensors);
    for (int v = std::min(eventList[g], nodes - 1); v > before; --v) {
      auto &node = problem.nodes[v];
      for (int t : node.reads)
        usedBy[t] = v;
      for (int t : node.writes)
        usedBy[t] = v;
      double sum = static_cast<double>(usedBytes(problem, v));
      for (int t = 0; t < tensors; ++t) {
        if (writers[t] < 0 || writers[t] > v || usedBy[t] == v)
          continue;
        bool isOld = writers[t] <= before;
        double held = at(heldColumns[g][t]);
        if (isOld) {
          int repeat = repeatColumns[g][writers[t]];
          held = std::max(0.0, held - at(repeat));
          if (isRead[t])
            held = std::max(held, at(heldColumns[g - 1][t]));
        } else if (isRead[t]) {
          held = 1;
        }
        sum += held * static_cast<double>(problem.tensors[t].bytes);
      }
      bytes[v] = sum;
      for (int t : node.reads)
        isRead[t] = true;
    }
  }
  return bytes;
}

Row Relaxation::againRow(int node, int gap) const {
  auto &n = problem.nodes[node];
  RowBuilder again(RowKind::Again, node, 0, gap, -budget);
  again.add(repeatColumns[gap][node], -usedBytes(problem, node));
  for (int t = 0; t < static_cast<int>(problem.tensors.size()); ++t)
    if (!contains(n.reads, t) && !contains(n.writes, t))
      again.add(carryColumns[gap][t], -problem.tensors[t].bytes);
  return again.row;
}

} // namespace recast::remat
