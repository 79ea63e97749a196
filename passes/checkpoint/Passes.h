// The passes with a runtime behind them; Passes.h has those without.
#pragma once
#include "passes/Passes.h"
#include "passes/checkpoint/Memory.h"

namespace recast {

/// `measure` compiles with the runtime whose arena counts; null: the pass's own figure, the bytes that are live at
/// once.
std::unique_ptr<mlir::Pass> createInsertRecomputation(const InsertRecomputationOptions &options,
                                                      checkpoint::MeasureMemory measure);
std::unique_ptr<mlir::Pass> createOrderForMemory(checkpoint::MeasureMemory measure);

} // namespace recast
