#include "passes/checkpoint/remat/bound/Relaxation.h"
#include <algorithm>
#include <iterator>
#include <numeric>

namespace recast::remat {

namespace {

bool contains(const std::vector<int> &list, int item) { return std::ranges::find(list, item) != list.end(); }

/// Sums terms of one column; constants go to the right-hand side.
class RowBuilder {
public:
  RowBuilder(RowKind kind, int index, int other, int span, int64_t rhs) : row{kind, index, other, span, rhs, {}} {}
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

std::vector<Event> firstRuns(const std::vector<int> &nodes) {
  std::vector<Event> events;
  for (int node : nodes)
    events.push_back({node, {}});
  return events;
}

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

Relaxation::Relaxation(const Problem &problem, int64_t budgetBytes, std::vector<Event> events,
                       const std::vector<Span> &spans)
    : problem(problem), budget(budgetBytes), eventList(std::move(events)), writers(problem.tensors.size(), -1) {
  for (size_t v = 0; v < problem.nodes.size(); ++v)
    for (int t : problem.nodes[v].writes)
      writers[t] = static_cast<int>(v);
  for (int g = 0; g < gaps(); ++g)
    spanList.push_back({g - 1, g});
  spanList.insert(spanList.end(), spans.begin(), spans.end());
  addColumns();
  addRows();
}

int Relaxation::addColumn(char kind, int index, int span, int64_t cost) {
  columnList.push_back({kind, index, span, cost});
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
  std::vector<char> isLast(nodes);
  for (auto &event : eventList)
    for (int v : event.last)
      isLast[v] = true;
  needed.assign(gaps() + 1, std::vector<char>(tensors));
  for (int g = 1; g <= gaps(); ++g)
    for (int v = std::min(eventList[g - 1].node, nodes - 1); v >= 0; --v) {
      auto &node = problem.nodes[v];
      bool isUsed = isLast[v];
      for (int t : node.writes)
        isUsed |= needed[g][t] |= isLast[v] || lastRead[t] > eventList[g - 1].node;
      if (isUsed && node.canRepeat)
        for (int t : node.reads)
          needed[g][t] = true;
    }
  heldColumns.assign(gaps(), std::vector<int>(tensors, kNone));
  repeatColumns.assign(spanList.size(), std::vector<int>(nodes, kNone));
  for (size_t s = 0; s < spanList.size(); ++s) {
    bool isGap = static_cast<int>(s) < gaps();
    int from = spanList[s].from;
    for (int v = 0; from >= 0 && v < nodes && v <= eventList[from].node; ++v)
      if (auto &node = problem.nodes[v]; node.canRepeat &&
                                         std::ranges::any_of(node.writes, [&](int t) { return needed[from + 1][t]; }) &&
                                         !(isGap && contains(eventList[from].last, v)))
        repeatColumns[s][v] = addColumn('r', v, static_cast<int>(s), isGap ? node.cost : 0);
  }
  for (int g = 0; g < gaps(); ++g) {
    for (int t = 0; t < tensors; ++t)
      if (needed[g + 1][t])
        heldColumns[g][t] = addColumn('h', t, g, 0);
    if (int v = eventList[g].node; v < nodes && !eventList[g].isVirtual()) {
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

void Relaxation::addRows() {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  for (size_t s = 0; s < spanList.size(); ++s)
    if (spanList[s].from >= 0)
      addSpanRows(static_cast<int>(s));
  isRepeat.assign(gaps(), kNone);
  for (int g = 0; g < gaps(); ++g) {
    if (eventList[g].isVirtual()) {
      addVirtualRows(g);
      continue;
    }
    int64_t used = 0;
    if (eventList[g].node < nodes)
      used = usedBytes(problem, eventList[g].node);
    else
      for (auto &tensor : problem.tensors)
        used += tensor.isKept ? tensor.bytes : 0;
    RowBuilder memory(RowKind::Memory, 0, 0, g, used - budget);
    for (int t = 0; t < tensors; ++t)
      if (heldColumns[g][t] >= 0 && !(eventList[g].node == nodes && problem.tensors[t].isKept))
        memory.add(heldColumns[g][t], -problem.tensors[t].bytes);
    memory.addTo(rowList);
  }
}

void Relaxation::addSpanRows(int s) {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  auto [from, to] = spanList[s];
  int before = eventList[from].node, event = eventList[to].node;
  auto &repeat = repeatColumns[s];
  // What was held after the event before the span, or written again in it.
  auto addSupply = [&](RowBuilder &row, int t) {
    row.add(heldColumns[from][t], 1);
    row.add(repeat[writers[t]], 1);
  };
  std::vector<char> isRead(tensors);
  for (int v = before + 1; v <= event && v < nodes; ++v)
    for (int t : problem.nodes[v].reads)
      isRead[t] = true;
  for (int t = 0; t < tensors; ++t) {
    if (writers[t] < 0 || writers[t] > before)
      continue;
    if (heldColumns[to][t] >= 0) {
      RowBuilder hold(RowKind::Hold, t, 0, s, 0);
      addSupply(hold, t);
      hold.add(heldColumns[to][t], -1);
      hold.addTo(rowList);
    }
    if (isRead[t] || (event == nodes && problem.tensors[t].isKept)) {
      RowBuilder need(RowKind::Need, t, 0, s, 1);
      addSupply(need, t);
      need.addTo(rowList);
    }
  }
  for (int v = 0; v < nodes && v <= before; ++v) {
    if (repeat[v] < 0)
      continue;
    auto &reads = problem.nodes[v].reads;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (std::find(reads.begin(), reads.begin() + i, reads[i]) != reads.begin() + i)
        continue;
      RowBuilder input(RowKind::Input, v, reads[i], s, 0);
      addSupply(input, reads[i]);
      input.add(repeat[v], -1);
      input.addTo(rowList);
    }
    if (s < gaps())
      continue;
    RowBuilder sum(RowKind::Sum, v, 0, s, 0);
    for (int g = from + 1; g <= to; ++g)
      sum.add(repeatColumns[g][v], 1);
    sum.add(repeat[v], -1);
    sum.addTo(rowList);
  }
}

/// Adds the event's columns y, z and l, too.
void Relaxation::addVirtualRows(int g) {
  auto &last = eventList[g].last;
  int before = g; // The first run that it follows.
  while (eventList[before].isVirtual())
    --before;
  int is = isRepeat[g] = addColumn('y', 0, g, 0);
  RowBuilder memory(RowKind::Memory, 0, 0, g, -budget), one(RowKind::One, 0, 0, g, 0), some(RowKind::Some, 0, 0, g, 0);
  one.add(is, 1);
  some.add(is, -1);
  std::vector<std::vector<int>> users(problem.tensors.size()); // By tensor, columns.
  for (int v : last) {
    auto &node = problem.nodes[v];
    int isNode = addColumn('z', v, g, 0);
    one.add(isNode, -1);
    some.add(isNode, 1);
    memory.add(isNode, -node.workspaceBytes);
    std::vector<int> used = node.writes;
    std::ranges::copy_if(node.reads, std::back_inserter(used), [&](int t) { return !contains(node.overwrites, t); });
    std::ranges::sort(used);
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (int t : used)
      users[t].push_back(isNode);
    // Events before this one that v may be as well coincide with it where this one is v.
    int gap = g;
    while (contains(eventList[gap - 1].last, v))
      --gap;
    RowBuilder where(RowKind::Where, v, 0, g, 0);
    where.add(repeatColumns[gap][v], 1);
    where.add(isNode, -1);
    where.addTo(rowList);
  }
  one.addTo(rowList);
  some.addTo(rowList);
  for (size_t s = 0; s < spanList.size(); ++s)
    for (int v = 0; spanList[s].from >= before && spanList[s].to == g && v <= eventList[g].node; ++v)
      if (int again = repeatColumns[s][v]; again >= 0) {
        RowBuilder begin(RowKind::Begin, v, 0, static_cast<int>(s), 0);
        begin.add(is, 1);
        begin.add(again, -1);
        begin.addTo(rowList);
      }
  if (eventList[g - 1].isVirtual()) {
    RowBuilder order(RowKind::Order, 0, 0, g, 0);
    order.add(is, 1);
    order.add(isRepeat[g - 1], -1);
    order.addTo(rowList);
  }
  for (int t = 0; t < static_cast<int>(problem.tensors.size()); ++t) {
    int live = heldColumns[g][t];
    if (!users[t].empty()) {
      live = addColumn('l', t, g, 0);
      RowBuilder after(RowKind::After, t, 0, g, 0), use(RowKind::Use, t, 0, g, 0);
      after.add(live, 1);
      after.add(heldColumns[g][t], -1);
      after.addTo(rowList);
      use.add(live, 1);
      for (int user : users[t])
        use.add(user, -1);
      use.addTo(rowList);
    }
    memory.add(live, -problem.tensors[t].bytes);
  }
  memory.addTo(rowList);
}

std::vector<double> Relaxation::estimatedBytes(const std::vector<double> &point) const {
  int nodes = static_cast<int>(problem.nodes.size()), tensors = static_cast<int>(problem.tensors.size());
  auto at = [&](int column) { return column == kOne ? 1 : column == kNone ? 0 : point[column]; };
  std::vector<double> result(nodes);
  constexpr double kRuns = 0.1; // Of a column: less is no run.
  std::vector<double> change(nodes + 2);
  auto hold = [&](int from, int to, double bytes) {
    if (from <= to) {
      change[from] += bytes;
      change[to + 1] -= bytes;
    }
  };
  for (int g = 0; g < gaps(); ++g) {
    int before = g > 0 ? eventList[g - 1].node : -1, end = std::min(eventList[g].node, nodes - 1);
    // By tensor, the first runs of the gap before or at which it is wanted first and last.
    std::vector<int> firstWanted(tensors, nodes), lastWanted(tensors, -1);
    auto want = [&](int t, int v) {
      firstWanted[t] = std::min(firstWanted[t], v);
      lastWanted[t] = std::max(lastWanted[t], v);
    };
    for (int v = end; v > before; --v)
      for (int t : problem.nodes[v].reads)
        want(t, v);
    for (int v = std::min(before, nodes - 1); v >= 0; --v) {
      auto &node = problem.nodes[v];
      double runs = at(repeatColumns[g][v]);
      int first = nodes;
      for (int t : node.writes) {
        if (runs > kRuns && at(heldColumns[g][t]) > kRuns && lastWanted[t] < 0)
          want(t, end);
        first = std::min(first, firstWanted[t]);
      }
      if (runs <= kRuns || first == nodes)
        continue;
      for (int t : node.reads)
        want(t, first);
    }
    std::fill(change.begin(), change.end(), 0);
    for (int t = 0; t < tensors; ++t) {
      auto bytes = static_cast<double>(problem.tensors[t].bytes);
      double after = at(heldColumns[g][t]);
      if (writers[t] < 0 || writers[t] > end)
        continue;
      if (writers[t] > before) {
        int last = std::max(writers[t], lastWanted[t]);
        hold(writers[t], last, bytes);
        hold(last + 1, end, after * bytes);
        continue;
      }
      double runs = at(repeatColumns[g][writers[t]]), through = std::max(0.0, after - runs);
      double start = std::max(through, g > 0 ? at(heldColumns[g - 1][t]) : 0.0);
      hold(before + 1, end, through * bytes);
      hold(before + 1, lastWanted[t], (start - through) * bytes);
      if (runs > kRuns && firstWanted[t] < nodes) {
        double made = std::min(runs, 1 - start);
        hold(firstWanted[t], lastWanted[t], made * bytes);
        hold(std::max(firstWanted[t], lastWanted[t] + 1), end, std::min(made, after) * bytes);
      }
    }
    std::partial_sum(change.begin(), change.end(), change.begin());
    for (int v = before + 1; v <= end; ++v) {
      auto &node = problem.nodes[v];
      result[v] = change[v] + static_cast<double>(node.workspaceBytes);
      for (int t : node.overwrites)
        if (lastWanted[t] == v)
          result[v] -= (1 - at(heldColumns[g][t])) * static_cast<double>(problem.tensors[t].bytes);
    }
  }
  return result;
}

} // namespace recast::remat
