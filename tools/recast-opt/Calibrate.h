// Measures how fast this machine is, through the runtime: what --calibrate writes.
#pragma once
#include "ir/cost/Profile.h"
#include "llvm/ADT/Twine.h"

namespace recast::tools {

/// Runs small graphs of each kind of operator, unless `base` says what they take; then the steps of `model`, where
/// there is one: its own operators are known in its own sizes. Its sizes must be fixed. The error names what the
/// runtime says against it.
llvm::Expected<cost::Profile> calibrate(mlir::MLIRContext &context, mlir::ModuleOp model, const cost::Profile *base);

} // namespace recast::tools
