// Maximum flow by Dinic 1970. Vertex v is an arc from 2v to 2v + 1 whose capacity is its weight.
#include "passes/checkpoint/remat/MinCut.h"
#include <algorithm>
#include <limits>

namespace recast::remat {

namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 4;

class Flow {
public:
  explicit Flow(const CutGraph &graph) : numVertices(static_cast<int>(graph.weights.size())) {
    arcsOf.resize(2 * numVertices + 2);
    for (int v = 0; v < numVertices; ++v)
      addArc(2 * v, 2 * v + 1, graph.weights[v]);
    for (auto [from, to] : graph.edges)
      addArc(2 * from + 1, 2 * to, kUnlimited);
    for (int v : graph.sources)
      addArc(source(), 2 * v, kUnlimited);
    for (int v : graph.sinks)
      addArc(2 * v + 1, sink(), kUnlimited);
  }

  std::vector<char> cut();

private:
  struct Arc {
    int to;
    int64_t left;
  };

  int source() const { return 2 * numVertices; }
  int sink() const { return 2 * numVertices + 1; }
  void addArc(int from, int to, int64_t capacity) {
    arcsOf[from].push_back(static_cast<int>(arcs.size()));
    arcs.push_back({to, capacity});
    arcsOf[to].push_back(static_cast<int>(arcs.size()));
    arcs.push_back({from, 0});
  }
  bool findLevels();
  void pushAll();

  int numVertices;
  std::vector<Arc> arcs; ///< An arc and its reverse are neighbours: i and i ^ 1.
  std::vector<std::vector<int>> arcsOf;
  std::vector<int> level;
  std::vector<size_t> cursor;
};

bool Flow::findLevels() {
  level.assign(arcsOf.size(), -1);
  level[source()] = 0;
  std::vector<int> queue{source()};
  for (size_t i = 0; i < queue.size(); ++i)
    for (int arc : arcsOf[queue[i]])
      if (arcs[arc].left > 0 && level[arcs[arc].to] < 0) {
        level[arcs[arc].to] = level[queue[i]] + 1;
        queue.push_back(arcs[arc].to);
      }
  return level[sink()] >= 0;
}

/// Paths one after another along the levels; each goes on from where the one before was stopped.
void Flow::pushAll() {
  cursor.assign(arcsOf.size(), 0);
  std::vector<int> path;
  for (int at = source();;) {
    if (at == sink()) {
      int64_t amount = kUnlimited;
      for (int arc : path)
        amount = std::min(amount, arcs[arc].left);
      size_t full = path.size();
      for (size_t i = path.size(); i-- > 0;) {
        arcs[path[i]].left -= amount;
        arcs[path[i] ^ 1].left += amount;
        if (arcs[path[i]].left == 0)
          full = i;
      }
      at = full < path.size() ? arcs[path[full] ^ 1].to : source();
      path.resize(full < path.size() ? full : 0);
      continue;
    }
    size_t &next = cursor[at];
    while (next < arcsOf[at].size()) {
      const Arc &arc = arcs[arcsOf[at][next]];
      if (arc.left > 0 && level[arc.to] == level[at] + 1)
        break;
      ++next;
    }
    if (next < arcsOf[at].size()) {
      path.push_back(arcsOf[at][next]);
      at = arcs[path.back()].to;
    } else if (path.empty()) {
      return;
    } else {
      level[at] = -1; // Nothing gets on from here.
      at = arcs[path.back() ^ 1].to;
      path.pop_back();
    }
  }
}

std::vector<char> Flow::cut() {
  while (findLevels())
    pushAll();
  // What still reaches the sink lies behind the cut.
  std::vector<char> isBehind(arcsOf.size(), 0);
  std::vector<int> queue{sink()};
  isBehind[sink()] = 1;
  for (size_t i = 0; i < queue.size(); ++i)
    for (int arc : arcsOf[queue[i]])
      if (arcs[arc ^ 1].left > 0 && !isBehind[arcs[arc].to]) {
        isBehind[arcs[arc].to] = 1;
        queue.push_back(arcs[arc].to);
      }
  std::vector<char> isCut(numVertices, 0);
  for (int v = 0; v < numVertices; ++v)
    isCut[v] = !isBehind[2 * v] && isBehind[2 * v + 1];
  return isCut;
}

} // namespace

std::vector<char> minVertexCut(const CutGraph &graph) { return Flow(graph).cut(); }

} // namespace recast::remat
