// Checks a schedule of the recomputation benchmark from the two files alone; shares no code with the solver.
#include <cmath>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace {

int fail(const std::string &message) {
  std::cerr << "recast-check-schedule: error: " << message << "\n";
  return 1;
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 3) {
    std::cerr
        << "usage: recast-check-schedule GRAPH SCHEDULE\nPrints peak and cost in thousandths of the file's units.\n"
           "Example: recast-check-schedule VGG16_train.txt vgg.90\n";
    return 2;
  }
  std::ifstream graph(argv[1]), schedule(argv[2]);
  size_t count = 0, edges = 0;
  if (!(graph >> count >> edges))
    return fail(std::string(argv[1]) + ": no graph");
  std::vector<long long> size(count), cost(count);
  std::vector<std::vector<size_t>> inputs(count);
  for (size_t i = 0; i < count; ++i) {
    double bytes, time;
    graph >> bytes >> time;
    size[i] = std::llround(bytes * 1000);
    cost[i] = std::llround(time * 1000);
  }
  for (size_t i = 0, from, to; i < edges && graph >> from >> to; ++i)
    inputs.at(to).push_back(from);
  if (!graph)
    return fail(std::string(argv[1]) + ": ends too soon");

  std::vector<size_t> runs;
  for (size_t node; schedule >> node;)
    runs.push_back(node);
  constexpr size_t kNever = SIZE_MAX;
  std::vector<size_t> copy(count, kNever), freed(runs.size()); // Latest run of each node; last use of what each wrote.
  size_t next = 0;
  long long total = 0, live = 0, peak = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    size_t node = runs[i];
    if (node > next || node >= count)
      return fail("run " + std::to_string(i) + ": node " + std::to_string(node) + " runs before its turn");
    next += node == next;
    for (size_t input : inputs[node])
      if (copy[input] == kNever)
        return fail("run " + std::to_string(i) + " reads node " + std::to_string(input) + ", which has not run");
      else
        freed[copy[input]] = i;
    copy[node] = freed[i] = i;
    total += cost[node];
  }
  if (next != count)
    return fail("node " + std::to_string(next) + " never runs");
  std::vector<std::vector<size_t>> ends(runs.size());
  for (size_t i = 0; i < runs.size(); ++i)
    ends[freed[i]].push_back(runs[i]);
  for (size_t i = 0; i < runs.size(); ++i) {
    live += size[runs[i]];
    peak = std::max(peak, live);
    for (size_t node : ends[i])
      live -= size[node];
  }
  std::cout << peak << ' ' << total << '\n';
  return 0;
}
