#include "passes/checkpoint/remat/Problem.h"
#include <algorithm>
#include <numeric>
#include <utility>

namespace recast::remat {

Schedule plainSchedule(const Problem &problem) {
  Schedule schedule;
  schedule.runs.resize(problem.nodes.size());
  std::iota(schedule.runs.begin(), schedule.runs.end(), 0);
  return schedule;
}

std::vector<Node> runnables(const Problem &problem) {
  std::vector<Node> all = problem.nodes;
  for (const Fetch &fetch : problem.fetches) {
    all.emplace_back().cost = fetch.cost;
    all.back().writes = {fetch.tensor};
  }
  return all;
}

std::vector<int> fetchesByTensor(const Problem &problem) {
  std::vector<int> fetchOf(problem.tensors.size(), -1);
  for (size_t i = 0; i < problem.fetches.size(); ++i)
    fetchOf[problem.fetches[i].tensor] = static_cast<int>(problem.nodes.size() + i);
  return fetchOf;
}

Usage usage(const Problem &problem, const Schedule &schedule) {
  int count = static_cast<int>(schedule.runs.size());
  Node fetched;
  auto nodeOf = [&](int run) -> const Node & {
    if (!problem.isFetch(run))
      return problem.nodes[run];
    fetched.cost = problem.fetch(run).cost;
    fetched.writes = {problem.fetch(run).tensor};
    return fetched;
  };
  // Backwards: the last reader of each writing is the first that is met. change[i] is what run i has more than i - 1.
  std::vector<int> last(problem.tensors.size(), -1);
  std::vector<char> endsBefore(problem.tensors.size(), 0);
  std::vector<int64_t> change(count + 1, 0);
  for (size_t t = 0; t < problem.tensors.size(); ++t)
    if (problem.tensors[t].isKept)
      last[t] = count;
  for (int i = count; i-- > 0;) {
    const Node &node = nodeOf(schedule.runs[i]);
    for (int t : node.writes) {
      int end = last[t] < 0 ? i : last[t];
      change[i] += problem.tensors[t].bytes;
      if (int free = end + (endsBefore[t] ? 0 : 1); free <= count)
        change[free] -= problem.tensors[t].bytes;
      last[t] = -1;
      endsBefore[t] = 0;
    }
    for (int t : node.reads)
      if (last[t] < 0) {
        last[t] = i;
        endsBefore[t] = std::find(node.overwrites.begin(), node.overwrites.end(), t) != node.overwrites.end();
      }
  }
  Usage result;
  int64_t live = 0;
  std::vector<char> isStored(problem.tensors.size(), 0);
  for (int i = 0; i < count; ++i) {
    const Node &node = nodeOf(schedule.runs[i]);
    live += change[i];
    result.cost += node.cost;
    if (problem.isFetch(schedule.runs[i]))
      if (const Fetch &fetch = problem.fetch(schedule.runs[i]); !std::exchange(isStored[fetch.tensor], 1))
        result.cost += fetch.storeCost;
    if (int64_t bytes = live + node.workspaceBytes; bytes > result.peakBytes || result.peakRun < 0) {
      result.peakBytes = bytes;
      result.peakRun = i;
    }
  }
  return result;
}

std::string check(const Problem &problem, const Schedule &schedule) {
  int next = 0, nodes = static_cast<int>(problem.nodes.size());
  std::vector<char> isWritten(problem.tensors.size(), 0);
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    int run = schedule.runs[i];
    std::string where = "run " + std::to_string(i) + " (node " + std::to_string(run) + ")";
    if (run < 0 || run >= nodes + static_cast<int>(problem.fetches.size()))
      return where + ": there is no such node";
    if (problem.isFetch(run)) {
      if (int t = problem.fetch(run).tensor; !isWritten[t])
        return where + ": tensor " + std::to_string(t) + " is fetched and not written yet";
      continue;
    }
    if (run > next)
      return where + ": node " + std::to_string(next) + " must run before";
    if (run < next && !problem.nodes[run].canRepeat)
      return where + ": the node cannot run again";
    for (int t : problem.nodes[run].reads)
      if (!isWritten[t])
        return where + ": tensor " + std::to_string(t) + " is not written yet";
    for (int t : problem.nodes[run].writes)
      isWritten[t] = 1;
    next += run == next;
  }
  return next == nodes ? "" : "node " + std::to_string(next) + " does not run";
}

} // namespace recast::remat
