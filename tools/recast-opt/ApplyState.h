// Trained values into a model.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include <string>

namespace recast::tools {

/// Replaces the data of the initializers that `path` (safetensors, as recast-run writes its state) has tensors for, and
/// gives default values to inputs of fixed shape that it has tensors for; other tensors of the file (moments, step
/// count) are passed over. An error for a shape that differs, or if nothing fits.
mlir::LogicalResult applyState(mlir::ModuleOp module, const std::string &path);

} // namespace recast::tools
