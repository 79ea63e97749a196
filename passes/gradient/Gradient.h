// Reverse-mode differentiation, ONNX to ONNX.
#pragma once
#include "passes/gradient/Differentiability.h"

namespace recast::gradient {

/// Builds the gradients of `objective`, a scalar, with respect to `parameters` at the end of the graph, and returns
/// them in order: of each parameter's type, zeros where the objective does not depend on it. Gradients of several uses
/// are summed in the order of the uses, from the last to the first. Every node in the way that cannot be differentiated
/// is reported before anything is built.
mlir::FailureOr<llvm::SmallVector<mlir::Value>> differentiate(onnx_ir::GraphOp graph, onnx_ir::NodeBuilder &b,
                                                              mlir::Value objective,
                                                              llvm::ArrayRef<mlir::Value> parameters);

/// Replaces operators without a gradient rule, but with a function body in the ONNX library, and calls of model-local
/// functions, by their bodies where they lie between `parameters` and `objective`.
mlir::LogicalResult expandForDifferentiation(onnx_ir::GraphOp graph, onnx_ir::NodeBuilder &b, mlir::Value objective,
                                             llvm::ArrayRef<mlir::Value> parameters);

} // namespace recast::gradient
