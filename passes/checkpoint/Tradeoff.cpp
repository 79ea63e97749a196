#include "passes/checkpoint/Tradeoff.h"
#include "ir/train/Dialect.h"
#include "passes/checkpoint/ApplySchedule.h"
#include "llvm/ADT/StringMap.h"
#include <algorithm>
#include <cmath>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::checkpoint {

namespace {

double percentMore(int64_t now, int64_t before) {
  return before ? 100.0 * static_cast<double>(now - before) / static_cast<double>(before) : 0;
}

int64_t bytesOf(Operation *op) {
  int64_t bytes = 0;
  for (Value result : op->getResults())
    if (auto type = dyn_cast<RankedTensorType>(result.getType()); type && type.hasStaticShape() && !result.use_empty())
      bytes += type.getNumElements() * storageBits(type.getElementType()) / 8;
  return bytes;
}

} // namespace

FailureOr<std::vector<TradeoffPoint>> memoryTradeoff(ModuleOp module, int count, const MeasureMemory &measure,
                                                     const cost::Profile &profile, const remat::SolverOptions &effort) {
  auto facts = measureMemory(module, measure);
  auto training = findTrainingBlock(module);
  if (failed(facts) || failed(training))
    return failure();
  GraphProblem graph = buildProblem(*training, *facts, &profile);
  remat::SolverOptions part = effort;
  // Neighbours start from each other: each needs a fraction of what a budget by itself would.
  if (part.moves == 0 && part.seconds == 0)
    part.moves = static_cast<uint64_t>(std::clamp(2e7 / (static_cast<double>(graph.ops.size()) + 1), 2e3, 2e5));
  remat::Usage plain = remat::usage(graph.problem, remat::plainSchedule(graph.problem));
  remat::Solution best = remat::leastPeak(graph.problem, part);
  int64_t least = best.usage.peakBytes;
  std::vector<int64_t> budgets;
  for (int i = 0; i < count; ++i)
    budgets.push_back(least + (plain.peakBytes - least) * i / (count - 1));
  int64_t flopsBefore = 0;
  for (int64_t once : graph.flops)
    flopsBefore += once;
  std::vector<TradeoffPoint> points;
  for (auto [budget, solution] : llvm::zip(budgets, remat::curve(graph.problem, budgets, part))) {
    // What fits into less fits into more.
    if (solution.fits && solution.usage.cost <= best.usage.cost)
      best = std::move(solution);
    int64_t flops = 0;
    for (int run : best.schedule.runs)
      flops += graph.flops[static_cast<size_t>(run)];
    points.push_back({budget, best.usage.peakBytes, static_cast<int>(best.schedule.runs.size() - graph.ops.size()),
                      percentMore(flops, flopsBefore), percentMore(best.usage.cost, plain.cost)});
  }
  // And what turned out to need less than it might serves that, too.
  for (size_t i = points.size() - 1; i-- > 0;)
    if (const TradeoffPoint &next = points[i + 1];
        next.peakBytes <= points[i].budgetBytes && next.moreTimePercent <= points[i].moreTimePercent) {
      int64_t budget = points[i].budgetBytes;
      points[i] = next;
      points[i].budgetBytes = budget;
    }
  return points;
}

std::vector<OffloadedValue> offloadedValues(ModuleOp module, const cost::Profile &profile) {
  std::vector<OffloadedValue> values;
  mainGraph(module)->walk<WalkOrder::PreOrder>([&](train::OffloadOp op) {
    OffloadedValue found{op->getOperand(0), bytesOf(op), 0, 0};
    double ns = cost::timeNs(op, profile);
    for (Operation *user : op->getResult(0).getUsers())
      if (isa<train::FetchOp>(user)) {
        ns += cost::timeNs(user, profile);
        ++found.fetches;
      }
    found.timeNs = std::llround(ns);
    values.push_back(found);
  });
  return values;
}

std::vector<RepeatedRun> repeatedRuns(ModuleOp module, const cost::Profile &profile) {
  llvm::StringMap<Operation *> firsts;
  std::vector<RepeatedRun> runs;
  mainGraph(module)->walk<WalkOrder::PreOrder>([&](Operation *op) {
    StringRef name = originOf(op);
    if (!isNode(op) || name.empty())
      return;
    firsts.try_emplace(name, op);
    auto first = name.contains(kRecomputeSuffix) ? firsts.find(name.split(kRecomputeSuffix).first) : firsts.end();
    if (first == firsts.end() || first->second->getName() != op->getName() || isView(op))
      return;
    runs.push_back({first->second, op, bytesOf(op), cost::costOf(op).flops,
                    static_cast<int64_t>(std::llround(cost::timeNs(op, profile)))});
  });
  return runs;
}

} // namespace recast::checkpoint
