#include "passes/checkpoint/remat/Hoist.h"
#include "passes/checkpoint/remat/Timeline.h"
#include <algorithm>

namespace recast::remat {

Schedule hoistFetches(const Problem &problem, const Schedule &schedule) {
  Timeline line(problem, schedule);
  int64_t peak = line.peak();
  // When each run of the timeline begins, where copies take no time. Run i of the schedule has the id i + 1.
  std::vector<int64_t> begins(schedule.runs.size() + 1, 0);
  int64_t now = 0;
  for (size_t i = 0; i < schedule.runs.size(); ++i) {
    begins[i + 1] = now;
    now += problem.isFetch(schedule.runs[i]) ? 0 : problem.nodes[schedule.runs[i]].cost;
  }
  std::vector<int> repeats = line.repeats();
  int64_t nextCopy = INT64_MAX; // When the copy that follows has to begin.
  for (size_t i = repeats.size(); i-- > 0;) {
    int run = repeats[i], number = line.node(run);
    if (!problem.isFetch(number))
      continue;
    const Fetch &fetch = problem.fetch(number);
    const std::vector<int> &readers = line.readersOf(fetch.tensor);
    Timeline::Place here = line.before(run);
    auto reader = std::partition_point(readers.begin(), readers.end(), [&](int r) { return line.before(r) < here; });
    if (reader == readers.end())
      continue;
    int64_t latest = std::min(begins[*reader], nextCopy) - fetch.cost;
    int64_t room = peak - problem.tensors[fetch.tensor].bytes;
    Timeline::Place last = line.endOfUses(fetch.tensor, here); // Before that the copy of before is read.
    int next = run;
    while (begins[next] > latest) {
      int previous = line.previous(next);
      if (line.before(previous) < last || line.memory(previous) > room || line.liveBefore(previous) > room)
        break;
      next = previous;
    }
    nextCopy = std::min(latest, begins[next]);
    if (next == run)
      continue;
    int64_t begin = begins[next];
    line.erase(run);
    begins[line.insert(number, next)] = begin;
  }
  return line.schedule();
}

int64_t timeOf(const Problem &problem, const Schedule &schedule) {
  if (!problem.copiesOverlap || problem.fetches.empty())
    return usage(problem, schedule).cost;
  size_t count = schedule.runs.size(), tensors = problem.tensors.size();
  std::vector<char> isFetched(tensors, 0);
  for (int run : schedule.runs)
    if (problem.isFetch(run))
      isFetched[problem.fetch(run).tensor] = 1;
  // For each run, the tensors whose copies to the host have to end before it: those of first runs that are read for the
  // last time by the run before, or by none.
  std::vector<std::vector<int>> endsBefore(count + 1);
  std::vector<size_t> lastUse(tensors, count);
  auto end = [&](int tensor) {
    if (isFetched[tensor] && lastUse[tensor] < count)
      endsBefore[lastUse[tensor] + 1].push_back(tensor);
    isFetched[tensor] = 0;
  };
  for (size_t i = 0; i < count; ++i) {
    int run = schedule.runs[i];
    if (problem.isFetch(run)) {
      end(problem.fetch(run).tensor);
      continue;
    }
    for (int t : problem.nodes[run].writes)
      if (lastUse[t] < count)
        end(t);
    for (const std::vector<int> *uses : {&problem.nodes[run].reads, &problem.nodes[run].writes})
      for (int t : *uses)
        lastUse[t] = i;
  }
  int64_t now = 0, copies = 0; // When what was begun has ended.
  std::vector<int> fetchOf = fetchesByTensor(problem);
  std::vector<int64_t> stored(tensors, -1), ready(tensors, 0);
  for (int run : schedule.runs)
    if (problem.isFetch(run))
      stored[problem.fetch(run).tensor] = 0;
  for (size_t i = 0; i < count; ++i) {
    for (int t : endsBefore[i])
      now = std::max(now, stored[t]);
    int run = schedule.runs[i];
    if (problem.isFetch(run)) {
      const Fetch &fetch = problem.fetch(run);
      copies = ready[fetch.tensor] = std::max(copies, now) + fetch.cost;
      continue;
    }
    const Node &node = problem.nodes[run];
    for (int t : node.reads)
      now = std::max(now, ready[t]);
    now += node.cost;
    for (int t : node.writes) {
      ready[t] = now;
      if (stored[t] == 0)
        copies = stored[t] = std::max(copies, now) + problem.fetch(fetchOf[t]).storeCost;
    }
  }
  return std::max(now, copies);
}

} // namespace recast::remat
