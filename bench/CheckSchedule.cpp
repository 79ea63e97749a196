// Checks a schedule of the recomputation benchmark from the two files alone; shares no code with the solver.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <vector>

template <typename... Part> [[noreturn]] static void fail(const Part &...parts) {
  ((std::cerr << "recast-check-schedule: error: ") << ... << parts) << "\n";
  std::exit(1);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    std::cerr << "usage: recast-check-schedule GRAPH SCHEDULE\nPrints peak and cost, in units / 1000.\n";
    return 2;
  }
  std::ifstream graph(argv[1]), schedule(argv[2]);
  size_t count = 0, edges = 0;
  graph >> count >> edges;
  std::vector<long long> size, cost;
  for (double bytes, time; size.size() < count && graph >> bytes >> time;) {
    size.push_back(std::llround(bytes * 1000));
    cost.push_back(std::llround(time * 1000));
  }
  std::vector<std::vector<size_t>> inputs(count);
  for (size_t from, to; edges > 0 && graph >> from >> to; --edges)
    from < count &&to < count ? inputs[to].push_back(from) : fail(argv[1], ": no node ", std::max(from, to));
  if (!graph || count == 0)
    fail(argv[1], ": no graph, or one that ends too soon");
  // What run i writes is in memory from then until run ends[i], its last reader.
  std::vector<size_t> runs, ends, latest(count, SIZE_MAX);
  size_t next = 0; // The first node that has not run.
  long long total = 0, live = 0, peak = 0;
  for (size_t i = 0, node; schedule >> node; ++i) {
    if (node > next || node >= count)
      fail("run ", i, ": node ", node, " runs before its turn");
    next += node == next;
    for (size_t input : inputs[node])
      if (latest[input] == SIZE_MAX)
        fail("run ", i, " reads node ", input, ", which has not run");
      else
        ends[latest[input]] = i;
    runs.push_back(node);
    ends.push_back(latest[node] = i);
    total += cost[node];
  }
  if (next != count)
    fail("node ", next, " never runs");
  std::vector<long long> change(runs.size() + 1); // Of memory, before each run.
  for (size_t i = 0; i < runs.size(); ++i) {
    change[i] += size[runs[i]];
    change[ends[i] + 1] -= size[runs[i]];
  }
  for (long long bytes : change)
    peak = std::max(peak, live += bytes);
  std::cout << peak << ' ' << total << '\n';
}
