// What each amount of memory costs in time, and what a step runs again: for people who choose a budget.
#pragma once
#include "ir/cost/Profile.h"
#include "passes/checkpoint/Memory.h"
#include "passes/checkpoint/remat/Solver.h"

namespace recast::checkpoint {

/// The best schedule found for one budget, against the module as it is. Bytes are those that are live at once in the
/// block that trains; the arena is larger by what placement loses.
struct TradeoffPoint {
  int64_t budgetBytes = 0, peakBytes = 0;
  int numRepeated = 0;
  double moreFlopsPercent = 0, moreTimePercent = 0;
};

/// `count` budgets, evenly from the least peak found to the peak of the module as it is. A larger budget never costs
/// more time. Precondition: count >= 2.
mlir::FailureOr<std::vector<TradeoffPoint>> memoryTradeoff(mlir::ModuleOp module, int count,
                                                           const MeasureMemory &measure, const cost::Profile &profile,
                                                           const remat::SolverOptions &effort = {});

/// An operator that runs again, by the name that ApplySchedule gave its later run.
struct RepeatedRun {
  mlir::Operation *first = nullptr, *again = nullptr;
  int64_t bytes = 0; ///< Of the results that it gives again.
  int64_t flops = 0, timeNs = 0;
};

/// A value that waits in the host's memory.
struct OffloadedValue {
  mlir::Value value;
  int64_t bytes = 0;
  int fetches = 0;
  int64_t timeNs = 0; ///< Of all its copies.
};

/// In the order of the graph, bodies included.
std::vector<OffloadedValue> offloadedValues(mlir::ModuleOp module, const cost::Profile &profile);
std::vector<RepeatedRun> repeatedRuns(mlir::ModuleOp module, const cost::Profile &profile);

} // namespace recast::checkpoint
