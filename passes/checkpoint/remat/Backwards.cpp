#include "passes/checkpoint/remat/Backwards.h"
#include <algorithm>

namespace recast::remat {

namespace {

bool contains(const std::vector<int> &list, int tensor) {
  return std::find(list.begin(), list.end(), tensor) != list.end();
}

} // namespace

size_t LiveSetHash::operator()(const LiveSet &set) const {
  uint64_t hash = 0xCBF29CE484222325ull; // FNV-1a, a tensor at a time.
  for (int tensor : set)
    hash = (hash ^ static_cast<uint64_t>(tensor)) * 0x100000001B3ull;
  return hash ^ (hash >> 32);
}

void insert(LiveSet &set, int tensor) {
  auto it = std::lower_bound(set.begin(), set.end(), tensor);
  if (it == set.end() || *it != tensor)
    set.insert(it, tensor);
}

Backwards::Backwards(const Problem &problem)
    : P(problem), All(runnables(problem)), Source(problem.tensors.size(), -1), Held(problem.tensors.size(), 0) {
  for (size_t run = 0; run < All.size(); ++run) // Fetches last.
    for (int t : All[run].writes)
      Source[t] = static_cast<int>(run);
}

int64_t Backwards::bytes(const LiveSet &set) const {
  int64_t sum = 0;
  for (int t : set)
    sum += P.tensors[t].bytes;
  return sum;
}

int64_t Backwards::need(const Node &node, const LiveSet &after) const {
  int64_t sum = node.workspaceBytes + bytes(after);
  auto count = [&](int t) {
    if (!Held[t] && !std::binary_search(after.begin(), after.end(), t))
      sum += P.tensors[t].bytes;
  };
  for (int t : node.writes)
    count(t);
  for (int t : node.reads)
    if (!contains(node.overwrites, t))
      count(t);
  return sum;
}

LiveSet Backwards::before(int run, const LiveSet &after) const {
  LiveSet set;
  for (int t : after)
    if (!contains(All[run].writes, t))
      set.push_back(t);
  for (int t : All[run].reads)
    if (!Held[t])
      insert(set, t);
  return set;
}

bool Backwards::readsOnly(int run, const LiveSet &set) const {
  return std::all_of(All[run].reads.begin(), All[run].reads.end(),
                     [&](int t) { return Held[t] || std::binary_search(set.begin(), set.end(), t); });
}

} // namespace recast::remat
