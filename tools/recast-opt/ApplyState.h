// Trained values into a model.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include <string>

namespace recast::tools {

/// Replaces the data of the initializers that `path` (safetensors, as recast-run writes its state) has tensors for;
/// inputs of fixed shape get default values from it; other tensors of the file (moments, step count) are passed over.
/// An error for a shape that differs, or if nothing fits. With `useAverages` the moving averages `<initializer>.ema`
/// take the place of the parameters; tensors that have none (running statistics) keep their own values, and a file
/// without any is an error.
mlir::LogicalResult applyState(mlir::ModuleOp module, const std::string &path, bool useAverages);

} // namespace recast::tools
