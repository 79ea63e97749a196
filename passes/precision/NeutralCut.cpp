// Minimum cut by maximum flow (Dinic 1970). The source is low, the sink wide; an arc u -> v is paid where u is low and
// v wide. Capacities are pairs (bytes, casts) in lexicographic order: an ordered group, all that the algorithm needs.
#include "passes/precision/NeutralCut.h"
#include <algorithm>
#include <compare>
#include <limits>
#include <numeric>

namespace recast::precision {

namespace {

struct Cost {
  int64_t bytes = 0, casts = 0;
  auto operator<=>(const Cost &) const = default;
  Cost operator+(Cost other) const { return {bytes + other.bytes, casts + other.casts}; }
  Cost operator-(Cost other) const { return {bytes - other.bytes, casts - other.casts}; }
};
constexpr Cost kNone{}, kUnlimited{std::numeric_limits<int64_t>::max() / 4, 0};

class Flow {
public:
  explicit Flow(const CutProblem &problem) : numVariables(problem.numVariables), nodes(problem.numVariables) {
    for (const CutProblem::Value &value : problem.values)
      addValue(value);
    for (const CutProblem::Rule &rule : problem.rules)
      addArc(rule.variable, rule.producer, kUnlimited);
  }

  std::vector<bool> solve(CutPreference prefersLow);

private:
  struct Arc {
    int to, next;
    Cost left;
  };
  struct Node {
    int first = -1;             ///< Of its arcs.
    Cost fromLow = kNone;       ///< Left of the arc from the source,
    Cost toWide = kNone;        ///< and of the arc to the sink.
    int level = -1, cursor = 0; ///< Of the current phase.
  };
  enum class Side : char { Open, Low, Wide };

  int addNode() {
    nodes.emplace_back();
    return static_cast<int>(nodes.size()) - 1;
  }
  void addArc(int from, int to, Cost capacity);
  void addValue(const CutProblem::Value &value);
  std::vector<std::vector<int>> components() const;
  bool findLevels(const std::vector<int> &component);
  void pushFrom(int source);
  /// Gives `side` to every open node that `start` brings along: low passes on along arcs with something left, wide
  /// against them.
  void spread(std::vector<int> start, Side side);

  int numVariables;
  std::vector<Node> nodes; ///< Variables, then values that several variables read.
  std::vector<Arc> arcs;   ///< An arc and its reverse are neighbours: i and i ^ 1.
  std::vector<Side> sides;
};

void Flow::addArc(int from, int to, Cost capacity) {
  if (from == kWide || to == kLow || from == to)
    return;
  if (from == kLow && to == kWide)
    return; // paid in any case
  if (from == kLow) {
    nodes[to].fromLow = nodes[to].fromLow + capacity;
  } else if (to == kWide) {
    nodes[from].toWide = nodes[from].toWide + capacity;
  } else {
    arcs.push_back({to, nodes[from].first, capacity});
    nodes[from].first = static_cast<int>(arcs.size()) - 1;
    arcs.push_back({from, nodes[to].first, kNone});
    nodes[to].first = static_cast<int>(arcs.size()) - 1;
  }
}

void Flow::addValue(const CutProblem::Value &value) {
  std::vector<int> variables;
  bool isReadLow = false, isReadWide = false;
  for (int reader : value.readers) {
    isReadLow |= reader == kLow;
    isReadWide |= reader == kWide;
    if (reader >= 0)
      variables.push_back(reader);
  }
  std::sort(variables.begin(), variables.end());
  variables.erase(std::unique(variables.begin(), variables.end()), variables.end());
  const Cost cost{value.bytes, 1};
  // From low to wide. A reader that needs it anyway pays for all.
  if (isReadWide) {
    addArc(value.producer, kWide, cost);
  } else if (variables.size() == 1) {
    addArc(value.producer, variables[0], cost);
  } else if (!variables.empty() && value.producer != kWide) {
    int cast = addNode();
    addArc(value.producer, cast, cost);
    for (int variable : variables)
      addArc(cast, variable, kUnlimited);
  }
  if (isReadLow) {
    addArc(kLow, value.producer, cost);
  } else if (variables.size() == 1) {
    addArc(variables[0], value.producer, cost);
  } else if (!variables.empty() && value.producer != kLow) {
    int cast = addNode();
    addArc(cast, value.producer, cost);
    for (int variable : variables)
      addArc(variable, cast, kUnlimited);
  }
}

std::vector<std::vector<int>> Flow::components() const {
  std::vector<int> root(nodes.size());
  std::iota(root.begin(), root.end(), 0);
  auto find = [&](int node) {
    while (root[node] != node)
      node = root[node] = root[root[node]];
    return node;
  };
  for (size_t i = 0; i < arcs.size(); i += 2)
    root[find(arcs[i].to)] = find(arcs[i + 1].to);
  std::vector<int> index(nodes.size(), -1);
  std::vector<std::vector<int>> lists;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    int &at = index[find(node)];
    if (at < 0) {
      at = static_cast<int>(lists.size());
      lists.emplace_back();
    }
    lists[at].push_back(node);
  }
  return lists;
}

// Distances from the source; true where the sink can be reached.
bool Flow::findLevels(const std::vector<int> &component) {
  std::vector<int> queue;
  for (int node : component) {
    nodes[node].level = nodes[node].fromLow > kNone ? 0 : -1;
    nodes[node].cursor = nodes[node].first;
    if (nodes[node].level == 0)
      queue.push_back(node);
  }
  bool isReached = false;
  for (size_t head = 0; head < queue.size(); ++head) {
    int node = queue[head];
    isReached |= nodes[node].toWide > kNone;
    for (int i = nodes[node].first; i >= 0; i = arcs[i].next)
      if (Node &to = nodes[arcs[i].to]; to.level < 0 && arcs[i].left > kNone) {
        to.level = nodes[node].level + 1;
        queue.push_back(arcs[i].to);
      }
  }
  return isReached;
}

// Pushes what it can from one node along arcs that lead one level on.
void Flow::pushFrom(int source) {
  std::vector<int> path; // arcs
  int node = source;
  while (nodes[source].fromLow > kNone) {
    if (nodes[node].toWide > kNone) {
      Cost amount = std::min(nodes[source].fromLow, nodes[node].toWide);
      for (int arc : path)
        amount = std::min(amount, arcs[arc].left);
      nodes[source].fromLow = nodes[source].fromLow - amount;
      nodes[node].toWide = nodes[node].toWide - amount;
      size_t keep = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        arcs[path[i]].left = arcs[path[i]].left - amount;
        arcs[path[i] ^ 1].left = arcs[path[i] ^ 1].left + amount;
        if (arcs[path[i]].left == kNone)
          keep = i;
      }
      path.resize(keep);
      node = path.empty() ? source : arcs[path.back()].to;
      continue;
    }
    int &cursor = nodes[node].cursor;
    while (cursor >= 0 && !(arcs[cursor].left > kNone && nodes[arcs[cursor].to].level == nodes[node].level + 1))
      cursor = arcs[cursor].next;
    if (cursor >= 0) {
      path.push_back(cursor);
      node = arcs[cursor].to;
    } else if (path.empty()) {
      return;
    } else {
      nodes[node].level = -1;
      int back = path.back();
      path.pop_back();
      node = arcs[back ^ 1].to;
    }
  }
}

void Flow::spread(std::vector<int> start, Side side) {
  for (int node : start)
    sides[node] = side;
  while (!start.empty()) {
    int node = start.back();
    start.pop_back();
    for (int i = nodes[node].first; i >= 0; i = arcs[i].next)
      if (int arc = side == Side::Low ? i : i ^ 1; sides[arcs[i].to] == Side::Open && arcs[arc].left > kNone) {
        sides[arcs[i].to] = side;
        start.push_back(arcs[i].to);
      }
  }
}

std::vector<bool> Flow::solve(CutPreference prefersLow) {
  for (Node &node : nodes) {
    Cost both = std::min(node.fromLow, node.toWide);
    node.fromLow = node.fromLow - both;
    node.toWide = node.toWide - both;
  }
  for (const std::vector<int> &component : components())
    while (findLevels(component))
      for (int node : component)
        if (nodes[node].fromLow > kNone)
          pushFrom(node);

  // Every minimum cut has these on the same side; the others go one after another, each with what follows from it.
  sides.assign(nodes.size(), Side::Open);
  std::vector<int> low, wide;
  for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
    if (nodes[node].fromLow > kNone)
      low.push_back(node);
    if (nodes[node].toWide > kNone)
      wide.push_back(node);
  }
  spread(low, Side::Low);
  spread(wide, Side::Wide);
  std::vector<bool> isLow(numVariables);
  for (int variable = 0; variable < numVariables; ++variable) {
    if (sides[variable] == Side::Open)
      spread({variable}, prefersLow(variable, isLow) ? Side::Low : Side::Wide);
    isLow[variable] = sides[variable] == Side::Low;
  }
  return isLow;
}

} // namespace

CutSolution solveCut(const CutProblem &problem, CutPreference prefersLow) {
  return evaluateCut(problem, Flow(problem).solve(prefersLow));
}

CutSolution evaluateCut(const CutProblem &problem, std::vector<bool> isLow) {
  CutSolution solution;
  solution.isLow = std::move(isLow);
  auto low = [&](int at) { return at == kLow || (at >= 0 && solution.isLow[at]); };
  for (const CutProblem::Value &value : problem.values)
    if (std::any_of(value.readers.begin(), value.readers.end(),
                    [&](int reader) { return low(reader) != low(value.producer); })) {
      solution.bytes += value.bytes;
      ++solution.casts;
    }
  return solution;
}

bool obeysRules(const CutProblem &problem, const std::vector<bool> &isLow) {
  return std::all_of(problem.rules.begin(), problem.rules.end(), [&](const CutProblem::Rule &rule) {
    return !isLow[rule.variable] || rule.producer == kLow || (rule.producer >= 0 && isLow[rule.producer]);
  });
}

} // namespace recast::precision
