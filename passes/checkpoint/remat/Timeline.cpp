#include "passes/checkpoint/remat/Timeline.h"
#include <algorithm>
#include <cmath>

namespace recast::remat {

namespace {

/// With more blocks than this, what is over the limit in whole blocks is estimated.
constexpr size_t kExactBlocks = 48;

} // namespace

Timeline::Timeline(const Problem &problem, const Schedule &schedule) {
  std::vector<Node> all = runnables(problem);
  int count = static_cast<int>(all.size());
  Nodes.resize(count + 1);
  Counts.assign(count + 1, 0);
  for (int n = 0; n < count; ++n) {
    const Node &node = all[n];
    NodeUses &uses = Nodes[n];
    uses = {node.reads, node.writes, node.overwrites, node.cost, node.workspaceBytes, 0};
    if (problem.isFetch(n))
      uses.storeCost = problem.fetch(n).storeCost;
    std::sort(uses.reads.begin(), uses.reads.end());
    uses.reads.erase(std::unique(uses.reads.begin(), uses.reads.end()), uses.reads.end());
  }
  for (const Tensor &tensor : problem.tensors) {
    if (tensor.isKept)
      Nodes[count].reads.push_back(static_cast<int>(Bytes.size()));
    Bytes.push_back(tensor.bytes);
  }
  Writers.resize(Bytes.size());
  Readers.resize(Bytes.size());
  Firsts.assign(count + 1, -1);

  // The sequence first, and then memory from what each writing covers.
  std::vector<int> nodes = schedule.runs;
  nodes.push_back(count);
  Capacity = std::clamp<size_t>(2 * static_cast<size_t>(std::sqrt(double(nodes.size()))), 32, 1024);
  Runs.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    int run = i + 1 == nodes.size() ? 0 : static_cast<int>(i) + 1;
    if (i % (Capacity / 2) == 0) {
      Order.push_back(static_cast<int>(Blocks.size()));
      Blocks.emplace_back();
      Blocks.back().rank = Order.back();
    }
    Block &block = Blocks.back();
    Runs[run] = {nodes[i], Order.back(), static_cast<int>(block.runs.size()), ++NextStamp};
    block.runs.push_back(run);
    block.memory.push_back(Nodes[nodes[i]].workspaceBytes);
    if (Firsts[nodes[i]] < 0 && (nodes[i] == count || !problem.isFetch(nodes[i])))
      Firsts[nodes[i]] = run;
    for (int t : Nodes[nodes[i]].reads)
      Readers[t].push_back(run);
    for (int t : Nodes[nodes[i]].writes)
      Writers[t].push_back(run);
    Cost += costOfNext(nodes[i]);
    ++Counts[nodes[i]];
    ++Count;
  }
  for (Block &block : Blocks)
    block.most = *std::max_element(block.memory.begin(), block.memory.end());
  for (size_t t = 0; t < Bytes.size(); ++t)
    for (size_t w = 0; w < Writers[t].size(); ++w)
      add(before(Writers[t][w]), endOf(static_cast<int>(t), static_cast<int>(w)), Bytes[t]);
}

int Timeline::lowerBound(const std::vector<int> &list, Place place) const {
  auto it = std::partition_point(list.begin(), list.end(), [&](int run) { return before(run) < place; });
  return static_cast<int>(it - list.begin());
}

Timeline::Place Timeline::endOf(int tensor, int writing) const {
  const std::vector<int> &writers = Writers[tensor], &readers = Readers[tensor];
  bool isLast = writing + 1 == static_cast<int>(writers.size());
  int bound = isLast ? static_cast<int>(readers.size()) : lowerBound(readers, before(writers[writing + 1]));
  return endAmong(tensor, writers[writing], bound);
}

Timeline::Place Timeline::endOfUses(int tensor, Place place) const {
  int writing = lowerBound(Writers[tensor], place) - 1;
  return endAmong(tensor, Writers[tensor][writing], lowerBound(Readers[tensor], place));
}

Timeline::Place Timeline::endAmong(int tensor, int write, int bound) const {
  const std::vector<int> &readers = Readers[tensor];
  if (bound == 0 || before(readers[bound - 1]) < before(write))
    return after(write);
  int last = readers[bound - 1];
  const std::vector<int> &over = Nodes[Runs[last].node].overwrites;
  return std::find(over.begin(), over.end(), tensor) == over.end() ? after(last) : before(last);
}

Timeline::Place Timeline::endOfLatest(int tensor, Place place) const {
  return endOf(tensor, lowerBound(Writers[tensor], place) - 1);
}

template <typename F> void Timeline::visit(Place from, Place to, F &&f) const {
  if (from >= to)
    return;
  // Runs with from <= 2 * key < to.
  int64_t low = (from + 1) / 2, high = (to + 1) / 2;
  int rank = static_cast<int>(low >> 20), lastRank = static_cast<int>(high >> 20);
  int begin = static_cast<int>(low & 0xfffff);
  for (; rank <= lastRank && rank < static_cast<int>(Order.size()); ++rank, begin = 0) {
    int size = static_cast<int>(Blocks[Order[rank]].runs.size());
    int stop = rank == lastRank ? std::min(size, static_cast<int>(high & 0xfffff)) : size;
    if (begin < stop)
      f(Order[rank], begin, stop, begin == 0 && stop == size);
  }
}

void Timeline::add(Place from, Place to, int64_t bytes) {
  visit(from, to, [&](int b, int begin, int stop, bool isWhole) {
    Block &block = Blocks[b];
    if (isWhole) {
      block.pending += bytes;
      return;
    }
    int64_t *memory = block.memory.data();
    for (int i = begin; i < stop; ++i)
      memory[i] += bytes;
    if (bytes > 0) {
      for (int i = begin; i < stop; ++i)
        block.most = std::max(block.most, memory[i]);
    } else {
      block.most = *std::max_element(block.memory.begin(), block.memory.end());
    }
  });
}

int64_t Timeline::maxIn(Place from, Place to) const {
  int64_t most = 0;
  visit(from, to, [&](int b, int begin, int stop, bool isWhole) {
    const Block &block = Blocks[b];
    if (block.most + block.pending <= most)
      return;
    if (isWhole) {
      most = block.most + block.pending;
      return;
    }
    int64_t inner = INT64_MIN;
    for (int i = begin; i < stop; ++i)
      inner = std::max(inner, block.memory[i]);
    most = std::max(most, inner + block.pending);
  });
  return most;
}

bool Timeline::isExact() const { return Order.size() <= kExactBlocks; }

double Timeline::reliefIn(Place from, Place to, int64_t bytes, int64_t limit) const {
  int64_t sum = 0;
  bool counts = isExact();
  visit(from, to, [&](int b, int begin, int stop, bool isWhole) {
    const Block &block = Blocks[b];
    int64_t rest = limit - block.pending;
    if (block.most <= rest)
      return;
    if (isWhole && !counts) {
      sum += std::min(bytes, block.most - rest) * (stop - begin);
      return;
    }
    const int64_t *memory = block.memory.data();
    for (int i = begin; i < stop; ++i)
      sum += std::max<int64_t>(0, std::min(bytes, memory[i] - rest));
  });
  return static_cast<double>(sum);
}

double Timeline::burdenIn(Place from, Place to, int64_t bytes, int64_t limit) const {
  return reliefIn(from, to, bytes, limit - bytes); // What would be taken off again, once it were there.
}

int Timeline::next(int run) const {
  const Block &block = Blocks[Runs[run].block];
  if (size_t index = Runs[run].index + 1; index < block.runs.size())
    return block.runs[index];
  int rank = block.rank + 1;
  while (Blocks[Order[rank]].runs.empty())
    ++rank;
  return Blocks[Order[rank]].runs.front();
}

int Timeline::atOrAfter(Place place) const {
  int64_t low = (place + 1) / 2;
  size_t rank = static_cast<size_t>(low >> 20), index = static_cast<size_t>(low & 0xfffff);
  for (; index >= Blocks[Order[rank]].runs.size(); index = 0)
    ++rank;
  return Blocks[Order[rank]].runs[index];
}

int Timeline::previous(int run) const {
  const Block &block = Blocks[Runs[run].block];
  if (Runs[run].index > 0)
    return block.runs[Runs[run].index - 1];
  int rank = block.rank - 1;
  while (Blocks[Order[rank]].runs.empty())
    --rank;
  return Blocks[Order[rank]].runs.back();
}

int64_t Timeline::liveBefore(int next) const {
  // What run `last` needs, less what ends with it.
  int last = previous(next);
  const NodeUses &uses = Nodes[Runs[last].node];
  int64_t live = memory(last) - uses.workspaceBytes;
  Place at = after(last);
  for (int t : uses.reads)
    if (endOfLatest(t, before(last)) == at)
      live -= Bytes[t];
  for (int t : uses.writes)
    if (endOfLatest(t, at) == at)
      live -= Bytes[t];
  return live;
}

int64_t Timeline::peak() const {
  int64_t most = 0;
  for (int b : Order)
    most = std::max(most, Blocks[b].most + Blocks[b].pending);
  return most;
}

int Timeline::firstOver(int64_t limit) const {
  for (int b : Order)
    if (const Block &block = Blocks[b]; block.most + block.pending > limit)
      for (size_t i = 0; i < block.runs.size(); ++i)
        if (block.memory[i] + block.pending > limit)
          return block.runs[i];
  return -1;
}

int Timeline::lastOver(int64_t limit) const {
  for (size_t k = Order.size(); k-- > 0;)
    if (const Block &block = Blocks[Order[k]]; block.most + block.pending > limit)
      for (size_t i = block.runs.size(); i-- > 0;)
        if (block.memory[i] + block.pending > limit)
          return block.runs[i];
  return -1;
}

void Timeline::renumber() {
  for (size_t k = 0; k < Order.size(); ++k)
    Blocks[Order[k]].rank = static_cast<int>(k);
}

void Timeline::split(int b) {
  int other = static_cast<int>(Blocks.size());
  Blocks.emplace_back();
  Block &block = Blocks[b], &rest = Blocks[other];
  size_t half = block.runs.size() / 2;
  rest.runs.assign(block.runs.begin() + half, block.runs.end());
  rest.memory.assign(block.memory.begin() + half, block.memory.end());
  block.runs.resize(half);
  block.memory.resize(half);
  rest.pending = block.pending;
  block.most = *std::max_element(block.memory.begin(), block.memory.end());
  rest.most = *std::max_element(rest.memory.begin(), rest.memory.end());
  for (size_t i = 0; i < rest.runs.size(); ++i) {
    Runs[rest.runs[i]].block = other;
    Runs[rest.runs[i]].index = static_cast<int>(i);
  }
  Order.insert(Order.begin() + block.rank + 1, other);
  renumber();
}

void Timeline::place(int run, int next, int64_t memory) {
  if (Blocks[Runs[next].block].runs.size() >= Capacity)
    split(Runs[next].block);
  Block &block = Blocks[Runs[next].block];
  int index = Runs[next].index;
  block.runs.insert(block.runs.begin() + index, run);
  block.memory.insert(block.memory.begin() + index, memory - block.pending);
  block.most = std::max(block.most, memory - block.pending);
  Runs[run].block = Runs[next].block;
  for (size_t i = index; i < block.runs.size(); ++i)
    Runs[block.runs[i]].index = static_cast<int>(i);
}

int Timeline::insert(int node, int next) {
  int64_t live = liveBefore(next);
  int run;
  if (Free.empty()) {
    run = static_cast<int>(Runs.size());
    Runs.emplace_back();
  } else {
    run = Free.back();
    Free.pop_back();
  }
  Runs[run].node = node;
  Runs[run].stamp = ++NextStamp;
  const NodeUses &uses = Nodes[node];
  place(run, next, live + uses.workspaceBytes);
  Place here = before(run);
  for (int t : uses.reads) {
    int writing = lowerBound(Writers[t], here) - 1;
    Place old = endOf(t, writing);
    Readers[t].insert(Readers[t].begin() + lowerBound(Readers[t], here), run);
    Place now = endOf(t, writing);
    if (now > old)
      add(old, now, Bytes[t]);
    else
      add(now, old, -Bytes[t]);
  }
  for (int t : uses.writes) {
    int writing = lowerBound(Writers[t], here) - 1;
    Place old = endOf(t, writing);
    Writers[t].insert(Writers[t].begin() + writing + 1, run);
    add(endOf(t, writing), old, -Bytes[t]);
    add(here, endOf(t, writing + 1), Bytes[t]);
  }
  Cost += costOfNext(node);
  ++Counts[node];
  ++Count;
  return run;
}

void Timeline::erase(int run) {
  const NodeUses &uses = Nodes[Runs[run].node];
  Place here = before(run);
  for (int t : uses.writes) {
    int writing = lowerBound(Writers[t], here);
    add(here, endOf(t, writing), -Bytes[t]);
    Place old = endOf(t, writing - 1);
    Writers[t].erase(Writers[t].begin() + writing);
    add(old, endOf(t, writing - 1), Bytes[t]);
  }
  for (int t : uses.reads) {
    int writing = lowerBound(Writers[t], here) - 1;
    Place old = endOf(t, writing);
    Readers[t].erase(Readers[t].begin() + lowerBound(Readers[t], here));
    Place now = endOf(t, writing);
    if (now > old)
      add(old, now, Bytes[t]);
    else
      add(now, old, -Bytes[t]);
  }
  Block &block = Blocks[Runs[run].block];
  int index = Runs[run].index;
  block.runs.erase(block.runs.begin() + index);
  block.memory.erase(block.memory.begin() + index);
  for (size_t i = index; i < block.runs.size(); ++i)
    Runs[block.runs[i]].index = static_cast<int>(i);
  // An empty block stays in the order: it costs nothing, and goes with the timeline.
  block.most = block.runs.empty() ? INT64_MIN / 2 : *std::max_element(block.memory.begin(), block.memory.end());
  Runs[run].stamp = 0;
  Free.push_back(run);
  Cost -= costOfLast(Runs[run].node);
  --Counts[Runs[run].node];
  --Count;
}

std::vector<int> Timeline::repeats() const {
  std::vector<int> result;
  for (int b : Order)
    for (int run : Blocks[b].runs)
      if (!isFirst(run))
        result.push_back(run);
  return result;
}

Schedule Timeline::schedule() const {
  Schedule result;
  for (int b : Order)
    for (int run : Blocks[b].runs)
      if (run != end())
        result.runs.push_back(Runs[run].node);
  return result;
}

} // namespace recast::remat
