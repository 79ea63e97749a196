#include "passes/checkpoint/remat/Search.h"
#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace recast::remat {

namespace {

// Found by trials on the graphs of bench/remat; results change little around them.
constexpr int kVisits = 100; ///< Nodes that one plan looks at.
constexpr double kReach = 5; ///< Plans may cost that many times the rate last paid, at first.
constexpr double kMostReach = 1e6;
constexpr double kNoise[] = {1.2, 3};
constexpr double kFirstHeat = 0.01, kCooling = 1e-3; ///< Of the extra cost; and by how much it falls to the end.
constexpr int kRuinRuns = 8;                         ///< Runs to take out at most, and this share of all repeats more.
constexpr double kRuinShare = 0.2;
constexpr double kFree = 1e-3; ///< Cost of a node without cost: more bytes are better then, too.

constexpr auto isWorse = [](const auto &a, const auto &b) { return a.score > b.score; };

} // namespace

Search::Search(const Problem &problem, const Schedule &start, int64_t budgetBytes, uint64_t seed)
    : P(problem), Line(problem, start), Budget(budgetBytes), Rng(seed), All(runnables(problem)),
      Writer(problem.tensors.size(), -1), FetchOf(fetchesByTensor(problem)), Wanted(All.size(), 0),
      Kept(problem.tensors.size(), 0), LastRead(problem.tensors.size(), -1) {
  int64_t cost = 0;
  for (size_t n = 0; n < problem.nodes.size(); ++n) {
    cost += problem.nodes[n].cost;
    for (int t : problem.nodes[n].writes)
      Writer[t] = static_cast<int>(n);
  }
  BestValue = value();
  Best = start;
  // As if a quarter of all nodes had to run again; the first plans correct it.
  if (BestValue.excess > 0)
    Rate = (static_cast<double>(cost) / 4 + kFree) / BestValue.excess;
}

void Search::repair(double noise) {
  double rate = Rate;
  repairAround(noise, rate);
  Rate = rate;
}

void Search::repairAround(double noise, double &rate) {
  Plan plan;
  Reach = kReach;
  double tolerance = Line.isExact() ? 1.0001 : 1.05;
  for (bool isHelped = true; isHelped || Reach < kMostReach; Reach *= isHelped ? 1 : 100) {
    isHelped = false;
    int first = Line.firstOver(Budget);
    if (first < 0)
      return;
    Rate = rate * std::exp(noise * (2 * Rng.unit() - 1));
    Low = Line.before(first), High = Line.before(Line.lastOver(Budget));
    Heap.clear();
    enumerate(noise);
    while (!Heap.empty()) {
      if (Line.peak() <= Budget)
        return;
      std::pop_heap(Heap.begin(), Heap.end(), isWorse);
      Candidate top = Heap.back();
      Heap.pop_back();
      // What helped before may be gone, help less, or cost more by now.
      if (Line.stamp(top.reader) != top.stamp || !evaluate(top.tensor, top.reader, plan))
        continue;
      double score = plan.score * top.factor;
      if (!Heap.empty() && score > top.score * tolerance && score > Heap.front().score) {
        top.score = score;
        Heap.push_back(top);
        std::push_heap(Heap.begin(), Heap.end(), isWorse);
        continue;
      }
      rate = 0.95 * rate + 0.05 * plan.score;
      Rate = 0.9 * Rate + 0.1 * plan.score;
      isHelped = true;
      int next = plan.next;
      apply(plan, noise);
      if (next != top.reader)
        push(top.tensor, top.reader, noise);
    }
  }
}

void Search::apply(const Plan &plan, double noise) {
  for (int node : plan.nodes) {
    int run = insert(node, plan.next);
    for (int t : Line.readsOf(node))
      push(t, run, noise);
  }
}

void Search::enumerate(double noise) {
  for (size_t t = 0; t < P.tensors.size(); ++t)
    for (int reader : Line.readersOf(static_cast<int>(t)))
      push(static_cast<int>(t), reader, noise);
}

void Search::push(int tensor, int reader, double noise) {
  Plan plan;
  if (!evaluate(tensor, reader, plan))
    return;
  double factor = noise > 0 ? std::exp(noise * (2 * Rng.unit() - 1)) : 1;
  Heap.push_back({plan.score * factor, factor, tensor, reader, Line.stamp(reader)});
  std::push_heap(Heap.begin(), Heap.end(), isWorse);
}

bool Search::evaluate(int tensor, int reader, Plan &plan) {
  ++Moves;
  plan.score = -1;
  bool canRepeat = P.nodes[Writer[tensor]].canRepeat;
  if (!canRepeat && FetchOf[tensor] < 0)
    return false;
  Timeline::Place here = Line.before(reader), from = Line.endOfUses(tensor, here);
  if (from > High || here <= Low)
    return false;
  if (Line.reliefIn(from, here, P.tensors[tensor].bytes, Budget) <= 0)
    return false;
  if (canRepeat)
    evaluateRuns(tensor, from, reader, plan);
  Plan fetch;
  if (FetchOf[tensor] >= 0 && evaluateAt(tensor, FetchOf[tensor], from, reader, fetch) &&
      (plan.score < 0 || fetch.score < plan.score))
    std::swap(plan, fetch);
  return plan.score >= 0;
}

/// The writer runs again.
void Search::evaluateRuns(int tensor, Timeline::Place from, int reader, Plan &plan) {
  int producer = Writer[tensor];
  Timeline::Place here = Line.before(reader);
  if (evaluateAt(tensor, producer, from, reader, plan) && plan.nodes.size() == 1 && plan.kept.empty())
    return;
  // Inputs are gone by then. Running earlier, when one of them ends, may be better than any other way to have them.
  int others[3], count = 0;
  for (int t : Line.readsOf(producer))
    if (Timeline::Place end = Line.endOfLatest(t, here); end < here && end > from && count < 3)
      others[count++] = Line.atOrAfter(end);
  Plan other;
  for (int i = 0; i < count; ++i)
    if (evaluateAt(tensor, producer, from, others[i], other) && (plan.score < 0 || other.score < plan.score))
      std::swap(plan, other);
}

bool Search::evaluateAt(int tensor, int source, Timeline::Place from, int next, Plan &plan) {
  plan.score = -1;
  Timeline::Place here = Line.before(next);
  double relief = Line.reliefIn(from, here, P.tensors[tensor].bytes, Budget);
  if (relief <= 0)
    return false;
  for (int t : All[source].writes)
    if (t != tensor && Line.endOfLatest(t, here) > here)
      relief += Line.reliefIn(Line.endOfUses(t, here), here, P.tensors[t].bytes, Budget);
  ++Epoch;
  Visits = 0;
  plan.cost = 0, plan.burden = 0, plan.keptBytes = 0, plan.next = next;
  plan.nodes.clear();
  plan.kept.clear();
  if (!collect(source, next, plan, relief * Rate * Reach))
    return false;
  // The runs themselves: what they write and what is kept for them, on top of what is live there, until the last of
  // them that reads it.
  int64_t live = Line.liveBefore(next) - P.tensors[tensor].bytes + plan.keptBytes;
  std::sort(plan.nodes.begin(), plan.nodes.end(),
            [&](int a, int b) { return std::pair(placeOf(a), a) < std::pair(placeOf(b), b); });
  for (int n : plan.nodes)
    for (int t : Line.readsOf(n))
      LastRead[t] = n;
  for (int n : plan.nodes) {
    for (int t : All[n].writes)
      live += P.tensors[t].bytes;
    relief -= static_cast<double>(std::max<int64_t>(0, live + All[n].workspaceBytes - Budget));
    for (int t : Line.readsOf(n))
      if (LastRead[t] == n && (isMade(t) || Kept[t] == Epoch))
        live -= P.tensors[t].bytes;
  }
  relief -= plan.burden;
  if (relief <= 0)
    return false;
  plan.score = (static_cast<double>(plan.cost) + kFree) / relief;
  return true;
}

/// Adds `node`, and what must run or stay for it, to the plan. An input that is gone stays longer, runs again or is
/// fetched, whichever costs least, with memory over the budget at the going rate. False where that is more than
/// `limit`; the caller clears up then.
bool Search::collect(int node, int next, Plan &plan, double limit) {
  if (!All[node].canRepeat || ++Visits > kVisits)
    return false;
  Moves += 1 + Line.readsOf(node).size() / 4;
  plan.cost += Line.costOfNext(node);
  plan.nodes.push_back(node);
  Wanted[node] = Epoch;
  auto price = [&](int64_t cost, double burden) { return static_cast<double>(cost) + Rate * burden; };
  Timeline::Place here = Line.before(next);
  for (int t : Line.readsOf(node)) {
    if (isMade(t) || Kept[t] == Epoch)
      continue;
    Timeline::Place end = Line.endOfLatest(t, here);
    if (end >= here)
      continue;
    if (price(plan.cost, plan.burden) > limit)
      return false;
    double burden = Line.burdenIn(end, here, P.tensors[t].bytes, Budget);
    if (burden > 0) {
      size_t nodes = plan.nodes.size(), kept = plan.kept.size();
      int64_t cost = plan.cost, keptBytes = plan.keptBytes;
      double oldBurden = plan.burden, before = price(cost, oldBurden);
      bool isFetchCheaper = FetchOf[t] >= 0 && static_cast<double>(Line.costOfNext(FetchOf[t])) < Rate * burden;
      double other = isFetchCheaper ? static_cast<double>(Line.costOfNext(FetchOf[t])) : Rate * burden;
      double most = std::min(limit, before + other);
      if (before + static_cast<double>(P.nodes[Writer[t]].cost) < most && collect(Writer[t], next, plan, most))
        continue;
      for (size_t i = nodes; i < plan.nodes.size(); ++i)
        Wanted[plan.nodes[i]] = 0;
      for (size_t i = kept; i < plan.kept.size(); ++i)
        Kept[plan.kept[i]] = 0;
      plan.nodes.resize(nodes);
      plan.kept.resize(kept);
      plan.cost = cost, plan.keptBytes = keptBytes, plan.burden = oldBurden;
      if (isFetchCheaper) {
        plan.cost += Line.costOfNext(FetchOf[t]);
        plan.nodes.push_back(FetchOf[t]);
        Wanted[FetchOf[t]] = Epoch;
        continue;
      }
    }
    Kept[t] = Epoch;
    plan.kept.push_back(t);
    plan.burden += burden;
    plan.keptBytes += P.tensors[t].bytes;
  }
  return price(plan.cost, plan.burden) <= limit;
}

void Search::prune() {
  std::vector<std::pair<double, int>> order;
  for (int run : Line.repeats())
    order.push_back({-static_cast<double>(Line.costOfLast(Line.node(run))) * (0.5 + Rng.unit()), run});
  std::sort(order.begin(), order.end());
  for (auto [weight, run] : order)
    tryErase(run);
}

bool Search::tryErase(int run) {
  ++Moves;
  Timeline::Place here = Line.before(run);
  int node = Line.node(run);
  int64_t saved = 0; // At most: inputs that lived for this run alone.
  for (int t : Line.readsOf(node))
    saved += P.tensors[t].bytes;
  for (int t : Line.writesOf(node)) {
    Timeline::Place end = Line.endOfLatest(t, here);
    if (end < here && Line.endOfLatest(t, Line.after(run)) > Line.after(run) &&
        Line.maxIn(end, here) + P.tensors[t].bytes - saved > Budget)
      return false;
  }
  size_t mark = Log.size();
  erase(run);
  if (Line.peak() <= Budget)
    return true;
  undoTo(mark);
  return false;
}

void Search::ruin() {
  std::vector<int> runs = Line.repeats();
  int count = static_cast<int>(runs.size());
  if (count == 0)
    return;
  int size = 1 + Rng.below(std::min(count, kRuinRuns + static_cast<int>(count * kRuinShare)));
  switch (Rng.below(3)) {
  case 0: // Anywhere.
    for (int i = 0; i < size; ++i) {
      std::swap(runs[i], runs[i + Rng.below(count - i)]);
      erase(runs[i]);
    }
    break;
  case 1: { // Near in time.
    int begin = Rng.below(count);
    for (int i = begin; i < std::min(count, begin + size); ++i)
      if (Rng.below(4) > 0)
        erase(runs[i]);
    break;
  }
  default: { // Near in the graph.
    int middle = placeOf(Line.node(runs[Rng.below(count)]));
    auto distance = [&](int run) { return std::abs(placeOf(Line.node(run)) - middle); };
    std::nth_element(runs.begin(), runs.begin() + size - 1, runs.end(),
                     [&](int a, int b) { return distance(a) < distance(b); });
    for (int i = 0; i < size; ++i)
      if (Rng.below(4) > 0)
        erase(runs[i]);
  }
  }
}

void Search::improve(const Effort &effort, bool stopWhenFits) {
  using Clock = std::chrono::steady_clock;
  uint64_t begin = Moves;
  Clock::time_point start = effort.deadline ? Clock::now() : Clock::time_point();
  auto progress = [&] {
    if (!effort.deadline)
      return static_cast<double>(Moves - begin) / static_cast<double>(effort.moves + 1);
    std::chrono::duration<double> done = Clock::now() - start, all = *effort.deadline - start;
    return all.count() > 0 ? done.count() / all.count() : 1;
  };
  remember();
  Value current = value();
  int64_t plain = 0;
  for (const Node &node : P.nodes)
    plain += node.cost;
  for (double part = progress(); part < 1 && !(stopWhenFits && BestValue.excess == 0); part = progress()) {
    double heat = kFirstHeat * static_cast<double>(current.cost - plain) * std::pow(kCooling, part);
    Log.clear();
    ruin();
    repair(kNoise[Rng.below(2)] * Rng.unit());
    if (Line.peak() <= Budget)
      prune();
    ++Moves; // So that it ends where there is nothing to do.
    Value now = value();
    double slack = -heat * std::log(Rng.unit() + 1e-12);
    if (now.excess < current.excess ||
        (now.excess == current.excess && static_cast<double>(now.cost) <= static_cast<double>(current.cost) + slack)) {
      current = now;
      remember();
    } else {
      undoTo(0);
    }
  }
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

void Search::undoTo(size_t mark) {
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

} // namespace recast::remat
