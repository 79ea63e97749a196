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

} // namespace recast::remat
