// Small graphs that show how fast a machine runs each kind of operator.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace recast::tools {

/// Calls `measure` with a graph for each kind of operator, in each floating-point type that training uses and in a
/// small, a middle and a large size. Inputs are graph inputs; integers among them may all be 0. What the runtime has no
/// kernel for is among them, too.
void forEachCalibrationGraph(mlir::MLIRContext &context, llvm::function_ref<void(mlir::ModuleOp)> measure);

/// `count` steps that do next to nothing, one after the other.
mlir::OwningOpRef<mlir::ModuleOp> overheadGraph(mlir::MLIRContext &context, int64_t count);
/// A step that copies `bytes` bytes and does nothing else.
mlir::OwningOpRef<mlir::ModuleOp> copyGraph(mlir::MLIRContext &context, int64_t bytes);

} // namespace recast::tools
