#include "passes/checkpoint/remat/Policies.h"
#include "passes/checkpoint/remat/MinCut.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace recast::remat {

namespace {

/// Who writes a tensor, and which stretch of the forward that is.
struct Flow {
  Flow(const Problem &problem, const Roles &roles) : problem(problem), roles(roles) {
    writer.assign(problem.tensors.size(), -1);
    for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v) {
      for (int t : problem.nodes[v].writes)
        writer[t] = v;
      if (roles.isForward[v])
        forward.push_back(v);
    }
  }

  /// What goes from a stretch to a later one, and all of the last. `starts`: indices into `forward` at which stretches
  /// but the first begin.
  std::vector<char> keptBetween(const std::vector<int> &starts) const {
    std::vector<int> stretchOf(problem.nodes.size(), -1);
    int stretch = 0;
    for (int i = 0; i < static_cast<int>(forward.size()); ++i) {
      while (stretch < static_cast<int>(starts.size()) && i >= starts[stretch])
        ++stretch;
      stretchOf[forward[i]] = stretch;
    }
    std::vector<char> isKept(problem.tensors.size(), 0);
    for (int v : forward) {
      for (int t : problem.nodes[v].reads)
        isKept[t] |= stretchOf[writer[t]] != stretchOf[v];
      if (stretchOf[v] == stretch)
        for (int t : problem.nodes[v].writes)
          isKept[t] = 1;
    }
    return isKept;
  }

  /// Where up to sqrt(n) stretches begin: at the places of least crossing within `reach` stretches, in bytes, of where
  /// equal ones would meet.
  std::vector<int> sqrtStarts(double reach) const;

  const Problem &problem;
  const Roles &roles;
  std::vector<int> writer;  ///< One a tensor.
  std::vector<int> forward; ///< Nodes, in order.
};

std::vector<int> Flow::sqrtStarts(double reach) const {
  int count = static_cast<int>(forward.size());
  std::vector<int64_t> before(count + 1, 0), crossing(count + 1, 0); // At each place between nodes.
  std::vector<int> indexOf(problem.nodes.size(), -1), lastReader(problem.tensors.size(), -1);
  for (int i = 0; i < count; ++i)
    indexOf[forward[i]] = i;
  for (int i = 0; i < count; ++i)
    for (int t : problem.nodes[forward[i]].reads)
      lastReader[t] = i;
  for (int i = 0; i < count; ++i) {
    before[i + 1] = before[i];
    for (int t : problem.nodes[forward[i]].writes) {
      before[i + 1] += problem.tensors[t].bytes;
      if (lastReader[t] > i) {
        crossing[i + 1] += problem.tensors[t].bytes;
        crossing[lastReader[t] + 1] -= problem.tensors[t].bytes;
      }
    }
  }
  for (int i = 0; i < count; ++i)
    crossing[i + 1] += crossing[i];

  int64_t stretches = std::max<int64_t>(1, std::llround(std::sqrt(count)));
  std::vector<int> starts;
  for (int64_t s = 1; s < stretches; ++s) {
    int best = -1;
    auto at = [&](double part) {
      auto bytes = static_cast<int64_t>(static_cast<double>(before[count]) * part / static_cast<double>(stretches));
      return static_cast<int>(std::lower_bound(before.begin(), before.end(), bytes) - before.begin());
    };
    double middle = static_cast<double>(s);
    int low = std::max(at(std::max(middle - reach, 0.0)), starts.empty() ? 1 : starts.back() + 1);
    int high = std::min(at(std::min(middle + reach, static_cast<double>(stretches))), count - 1), wanted = at(middle);
    for (int i = low; i <= high; ++i)
      if (best < 0 || crossing[i] < crossing[best] ||
          (crossing[i] == crossing[best] && std::abs(i - wanted) < std::abs(best - wanted)))
        best = i;
    if (best >= 0)
      starts.push_back(best);
  }
  return starts;
}

} // namespace

Schedule recomputeJustInTime(const Problem &problem, const Roles &roles, std::vector<char> isKept) {
  Flow flow(problem, roles);
  // A tensor is at hand where it need not be computed again.
  std::vector<char> &isAtHand = isKept;
  for (int t = 0; t < static_cast<int>(problem.tensors.size()); ++t)
    isAtHand[t] |=
        problem.tensors[t].isKept || !roles.isForward[flow.writer[t]] || !problem.nodes[flow.writer[t]].canRepeat;
  Schedule schedule;
  std::vector<std::pair<int, size_t>> stack; // A node, and how many of its reads are at hand.
  for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v) {
    if (!roles.isForward[v])
      stack.emplace_back(v, 0);
    while (!stack.empty()) {
      auto &[node, next] = stack.back();
      const Node &at = problem.nodes[node];
      while (next < at.reads.size() && isAtHand[at.reads[next]])
        ++next;
      if (next < at.reads.size()) {
        stack.emplace_back(flow.writer[at.reads[next]], 0);
        continue;
      }
      if (node != v) {
        schedule.runs.push_back(node);
        for (int t : at.writes)
          isAtHand[t] = 1;
      }
      stack.pop_back();
    }
    schedule.runs.push_back(v);
  }
  return schedule;
}

Schedule everyN(const Problem &problem, const Roles &roles, int count) {
  Flow flow(problem, roles);
  std::vector<int> starts;
  for (int i = count; i < static_cast<int>(flow.forward.size()); i += count)
    starts.push_back(i);
  return recomputeJustInTime(problem, roles, flow.keptBetween(starts));
}

Schedule sqrtSegments(const Problem &problem, const Roles &roles) {
  Flow flow(problem, roles);
  return recomputeJustInTime(problem, roles, flow.keptBetween(flow.sqrtStarts(0.5)));
}

Schedule selective(const Problem &problem, const Roles &roles) {
  Flow flow(problem, roles);
  // Only at narrow places: what is wide there is what should be computed again.
  std::vector<char> isKept = flow.keptBetween(flow.sqrtStarts(2));
  CutGraph graph;
  std::vector<char> isSink(problem.tensors.size(), 0);
  for (int t = 0; t < static_cast<int>(problem.tensors.size()); ++t) {
    // What is kept anyway costs nothing.
    graph.weights.push_back(isKept[t] || problem.tensors[t].isKept ? 0 : problem.tensors[t].bytes);
    int v = flow.writer[t];
    if (!roles.isForward[v])
      continue;
    if (isKept[t] || !roles.isCheap[v] || !problem.nodes[v].canRepeat)
      graph.sources.push_back(t);
    else
      for (int read : problem.nodes[v].reads)
        graph.edges.emplace_back(read, t);
  }
  for (size_t v = 0; v < problem.nodes.size(); ++v)
    for (int t : problem.nodes[v].reads)
      if (!roles.isForward[v] && roles.isForward[flow.writer[t]] && !std::exchange(isSink[t], 1))
        graph.sinks.push_back(t);
  std::vector<char> isCut = minVertexCut(graph);
  // Nothing computes the others again: they are kept in name only.
  for (size_t t = 0; t < isCut.size(); ++t)
    isCut[t] |= isKept[t] || !roles.isCheap[flow.writer[t]];
  return recomputeJustInTime(problem, roles, isCut);
}

Schedule keepOnly(const Problem &problem, const Roles &roles, const std::vector<char> &isMarked) {
  std::vector<char> isKept(problem.tensors.size(), 0);
  bool isTail = true;
  for (int v = static_cast<int>(problem.nodes.size()); v-- > 0;) {
    if (!roles.isForward[v])
      continue;
    isTail &= !isMarked[v];
    if (isTail || isMarked[v])
      for (int t : problem.nodes[v].writes)
        isKept[t] = 1;
  }
  return recomputeJustInTime(problem, roles, isKept);
}

} // namespace recast::remat
