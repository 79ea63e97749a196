// The CPU's code of a region as MLIR.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "runtime/fusion/Schedule.h"

namespace recast::fusion {

struct EmitOptions {
  int64_t lanes = 16;   ///< Elements of a vector.
  bool isMasked = true; ///< One loop whose last turn is masked; else whole vectors first, then one masked.
};

/// Adds a function for each phase: `<name>_<phase>(ptr buffers, ptr workspace, i64 begin, i64 end)` runs the ranges
/// [begin, end). `buffers` are the region's inputs, then its outputs.
void emit(mlir::ModuleOp module, const std::string &name, const Region &region, const Program &program,
          const EmitOptions &options);

} // namespace recast::fusion
