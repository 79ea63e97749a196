// Minimum vertex cut of a directed graph: which tensors to keep so that the rest can be computed from them.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace recast::remat {

struct CutGraph {
  std::vector<int64_t> weights;           ///< One a vertex, at least 0.
  std::vector<std::pair<int, int>> edges; ///< From, to.
  std::vector<int> sources, sinks;
};

/// The vertices of least weight that every path from a source to a sink passes, ends included; of several such sets the
/// one nearest the sinks. One flag a vertex.
std::vector<char> minVertexCut(const CutGraph &graph);

} // namespace recast::remat
