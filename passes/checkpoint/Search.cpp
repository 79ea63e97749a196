#include "passes/checkpoint/Search.h"
#include <algorithm>
#include <cmath>

namespace recast::remat {

namespace {

/// Runs that one plan looks at, at most.
constexpr int kVisits = 400;

bool isWorse(double a, double b) { return a > b; }

} // namespace

Search::Search(const Problem &problem, const Schedule &start, int64_t budget, uint64_t seed)
    : P(problem), Line(problem, start), Budget(budget), Rng(seed), Writer(problem.tensors.size(), -1),
      Wanted(problem.nodes.size(), 0), Kept(problem.tensors.size(), 0) {
  int64_t cost = 0;
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    cost += problem.nodes[n].cost;
    for (int t : problem.nodes[n].writes)
      Writer[t] = static_cast<int>(n);
  }
  BestValue = value();
  Best = start;
  if (BestValue.excess > 0)
    Rate = static_cast<double>(cost) / BestValue.excess / 4;
}

Search::Value Search::value() const { return {Line.peak() > Budget ? Line.excess(Budget) : 0, Line.cost()}; }

void Search::remember() {
  if (Value now = value(); now < BestValue) {
    BestValue = now;
    Best = Line.schedule();
  }
}

int Search::insert(int node, int next) {
  int run = Line.insert(node, next);
  Log.push_back({true, node, run, next});
  Moves += 2;
  return run;
}

void Search::erase(int run) {
  Log.push_back({false, Line.node(run), run, Line.next(run)});
  Line.erase(run);
  Moves += 2;
}

void Search::undo(size_t mark) {
  // Ids are freed and taken again in the order of a stack, so they come back.
  for (; Log.size() > mark; Log.pop_back()) {
    const Change &change = Log.back();
    if (change.isInsert)
      Line.erase(change.run);
    else
      Line.insert(change.node, change.next);
    Moves += 2;
  }
}

bool Search::collect(int node, int next, Plan &plan, double limit) {
  if (!P.nodes[node].canRepeat || ++Visits > kVisits)
    return false;
  plan.cost += P.nodes[node].cost;
  plan.nodes.push_back(node);
  Wanted[node] = Epoch;
  Timeline::Place here = Line.before(next);
  for (int t : Line.readsOf(node)) {
    if (Wanted[Writer[t]] == Epoch || Kept[t] == Epoch)
      continue;
    Timeline::Place end = Line.endOfLatest(t, here);
    if (end >= here)
      continue;
    double burden = Line.burdenIn(end, here, P.tensors[t].bytes, Budget);
    if (burden > 0) {
      size_t size = plan.nodes.size();
      Plan old = {plan.score, plan.cost, plan.burden, plan.bytes, plan.next, {}, {}};
      size_t kept = plan.kept.size();
      double worth = std::min(limit - double(plan.cost) - Rate * plan.burden, Rate * burden);
      if (worth > 0 && collect(Writer[t], next, plan, double(old.cost) + Rate * old.burden + worth) &&
          double(plan.cost - old.cost) + Rate * (plan.burden - old.burden) < Rate * burden)
        continue;
      for (size_t i = size; i < plan.nodes.size(); ++i)
        Wanted[plan.nodes[i]] = 0;
      for (size_t i = kept; i < plan.kept.size(); ++i)
        Kept[plan.kept[i]] = 0;
      plan.nodes.resize(size);
      plan.kept.resize(kept);
      plan.cost = old.cost, plan.burden = old.burden, plan.bytes = old.bytes;
    }
    Kept[t] = Epoch;
    plan.kept.push_back(t);
    plan.burden += burden;
    plan.bytes += P.tensors[t].bytes;
    if (double(plan.cost) + Rate * plan.burden > limit)
      return false;
  }
  return double(plan.cost) + Rate * plan.burden <= limit;
}

bool Search::evaluate(int tensor, int reader, Plan &plan) {
  ++Moves;
  plan.score = -1;
  int producer = Writer[tensor];
  if (!P.nodes[producer].canRepeat)
    return false;
  Timeline::Place here = Line.before(reader), from = Line.endOfUses(tensor, here);
  if (from > High || here <= Low)
    return false;
  double relief = Line.reliefIn(from, here, P.tensors[tensor].bytes, Budget);
  if (relief <= 0)
    return false;
  for (int t : P.nodes[producer].writes)
    if (t != tensor) {
      Timeline::Place start = Line.endOfUses(t, here);
      if (Line.endOfLatest(t, here) > here)
        relief += Line.reliefIn(start, here, P.tensors[t].bytes, Budget);
    }
  ++Epoch;
  Visits = 0;
  plan.cost = 0, plan.burden = 0, plan.bytes = 0, plan.next = reader;
  plan.nodes.clear();
  plan.kept.clear();
  if (!collect(producer, reader, plan, 1e300))
    return false;
  Moves += plan.nodes.size() - 1;
  // The runs themselves: what they write and what is kept for them, on top of what is live there.
  int64_t live = Line.liveBefore(reader) - P.tensors[tensor].bytes + plan.bytes;
  std::sort(plan.nodes.begin(), plan.nodes.end());
  for (int n : plan.nodes) {
    for (int t : P.nodes[n].writes)
      live += P.tensors[t].bytes;
    relief -= static_cast<double>(std::max<int64_t>(0, live + P.nodes[n].workspaceBytes - Budget));
  }
  relief -= plan.burden;
  if (relief <= 0)
    return false;
  plan.score = (static_cast<double>(plan.cost) + 1e-3) / relief;
  return true;
}

void Search::push(int tensor, int reader, double noise) {
  Plan plan;
  if (!evaluate(tensor, reader, plan))
    return;
  double factor = noise > 0 ? std::exp(noise * (2 * Rng.unit() - 1)) : 1;
  Heap.push_back({plan.score * factor, factor, tensor, reader, Line.stamp(reader)});
  std::push_heap(Heap.begin(), Heap.end(),
                 [](const Candidate &a, const Candidate &b) { return isWorse(a.score, b.score); });
}

void Search::enumerate(double noise) {
  for (size_t t = 0; t < P.tensors.size(); ++t)
    for (int reader : Line.readersOf(static_cast<int>(t)))
      push(static_cast<int>(t), reader, noise);
}

void Search::repair(double noise) {
  auto order = [](const Candidate &a, const Candidate &b) { return isWorse(a.score, b.score); };
  Plan plan;
  for (bool isAgain = true; isAgain;) {
    isAgain = false;
    int first = Line.firstOver(Budget);
    if (first < 0)
      return;
    Low = Line.before(first), High = Line.before(Line.lastOver(Budget));
    Heap.clear();
    enumerate(noise);
    while (!Heap.empty()) {
      if (Line.peak() <= Budget)
        return;
      std::pop_heap(Heap.begin(), Heap.end(), order);
      Candidate top = Heap.back();
      Heap.pop_back();
      if (Line.stamp(top.reader) != top.stamp)
        continue;
      if (!evaluate(top.tensor, top.reader, plan))
        continue;
      double score = plan.score * top.factor;
      if (!Heap.empty() && score > top.score * 1.0001 && score > Heap.front().score) {
        top.score = score;
        Heap.push_back(top);
        std::push_heap(Heap.begin(), Heap.end(), order);
        continue;
      }
      Rate = 0.9 * Rate + 0.1 * plan.score;
      isAgain = true;
      std::vector<int> nodes = plan.nodes;
      for (int n : nodes) {
        int run = insert(n, top.reader);
        for (int t : Line.readsOf(n))
          push(t, run, noise);
      }
    }
  }
}

void Search::prune() {
  std::vector<int> runs = Line.repeats();
  std::vector<std::pair<double, int>> order;
  for (int run : runs)
    order.push_back({-static_cast<double>(P.nodes[Line.node(run)].cost) * (0.5 + Rng.unit()), run});
  std::sort(order.begin(), order.end());
  for (auto [weight, run] : order)
    tryErase(run);
}

bool Search::tryErase(int run) {
  ++Moves;
  Timeline::Place here = Line.before(run);
  int node = Line.node(run);
  int64_t saved = 0;
  for (int t : Line.readsOf(node))
    saved += P.tensors[t].bytes;
  for (int t : Line.writesOf(node)) {
    Timeline::Place end = Line.endOfLatest(t, here);
    if (end < here && Line.endOfLatest(t, here + 1) > here + 1 &&
        Line.maxIn(end, here) + P.tensors[t].bytes - saved > Budget)
      return false;
  }
  size_t mark = Log.size();
  erase(run);
  if (Line.peak() <= Budget)
    return true;
  undo(mark);
  return false;
}

void Search::ruin() {
  std::vector<int> runs = Line.repeats();
  int count = static_cast<int>(runs.size());
  if (count == 0)
    return;
  int most = std::max(1, std::min(count, 4 + count / 10));
  int size = 1 + Rng.below(most);
  switch (Rng.below(3)) {
  case 0: // Anywhere.
    for (int i = 0; i < size && i < count; ++i) {
      std::swap(runs[i], runs[i + Rng.below(count - i)]);
      erase(runs[i]);
    }
    break;
  case 1: { // Near in time.
    int begin = Rng.below(count);
    for (int i = 0; i < size && begin + i < count; ++i)
      if (Rng.below(4) > 0)
        erase(runs[begin + i]);
    break;
  }
  default: { // Near in the graph.
    int middle = Line.node(runs[Rng.below(count)]);
    auto distance = [&](int run) { return std::abs(Line.node(run) - middle); };
    size = std::min(size, count);
    std::nth_element(runs.begin(), runs.begin() + size - 1, runs.end(),
                     [&](int a, int b) { return distance(a) < distance(b); });
    for (int i = 0; i < size; ++i)
      if (Rng.below(4) > 0)
        erase(runs[i]);
  }
  }
}

void Search::improve(uint64_t moves) {
  uint64_t begin = Moves;
  Value current = value();
  remember();
  double extra = 0;
  for (const Node &node : P.nodes)
    extra -= static_cast<double>(node.cost);
  extra += static_cast<double>(current.cost);
  while (Moves - begin < moves) {
    double progress = static_cast<double>(Moves - begin) / static_cast<double>(moves);
    double heat = 0.01 * extra * std::pow(1e-3, progress);
    Log.clear();
    ruin();
    repair(0.7 * Rng.unit());
    if (Line.peak() <= Budget)
      prune();
    Value now = value();
    double slack = -heat * std::log(Rng.unit() + 1e-12);
    bool isTaken = now.excess < current.excess ||
                   (now.excess == current.excess && double(now.cost) <= double(current.cost) + slack);
    ++Rounds;
    if (!isTaken) {
      undo(0);
      continue;
    }
    current = now;
    remember();
  }
}

} // namespace recast::remat
