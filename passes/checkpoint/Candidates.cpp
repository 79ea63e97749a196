#include "passes/checkpoint/Candidates.h"
#include <algorithm>

namespace recast::remat {

std::vector<Schedule> candidates(const Problem &problem, const Roles &roles) {
  std::vector<std::pair<Usage, Schedule>> found;
  auto add = [&](Schedule schedule) { found.emplace_back(usage(problem, schedule), std::move(schedule)); };
  add(sqrtSegments(problem, roles));
  add(selective(problem, roles));
  auto nodes = static_cast<int>(problem.nodes.size());
  for (int count = 1; count < nodes; count += std::max(1, count / 4))
    add(everyN(problem, roles, count));
  std::sort(found.begin(), found.end(), [](const auto &a, const auto &b) {
    return std::pair(a.first.cost, a.first.peakBytes) < std::pair(b.first.cost, b.first.peakBytes);
  });
  std::vector<Schedule> result;
  int64_t peak = usage(problem, plainSchedule(problem)).peakBytes;
  for (auto &[use, schedule] : found)
    if (use.peakBytes < peak) {
      peak = use.peakBytes;
      result.push_back(std::move(schedule));
    }
  return result;
}

std::pair<int, int64_t> largestNode(const Problem &problem) {
  std::pair<int, int64_t> largest{0, -1};
  for (int v = 0; v < static_cast<int>(problem.nodes.size()); ++v) {
    const Node &node = problem.nodes[v];
    int64_t bytes = node.workspaceBytes;
    for (const std::vector<int> *tensors : {&node.reads, &node.writes})
      for (int t : *tensors)
        if (std::find(node.overwrites.begin(), node.overwrites.end(), t) == node.overwrites.end())
          bytes += problem.tensors[t].bytes;
    if (bytes > largest.second)
      largest = {v, bytes};
  }
  return largest;
}

} // namespace recast::remat
