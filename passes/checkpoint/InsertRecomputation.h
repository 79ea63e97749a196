// The pass with a runtime behind it; Passes.h has the one without.
#pragma once
#include "passes/Passes.h"
#include "passes/checkpoint/Memory.h"

namespace recast {

/// `measure` compiles with the runtime whose arena counts; null: the pass's own figure, the bytes that are live at
/// once.
std::unique_ptr<mlir::Pass> createInsertRecomputation(const InsertRecomputationOptions &options,
                                                      checkpoint::MeasureMemory measure);

} // namespace recast
