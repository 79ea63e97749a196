// Calls of model-local functions, replaced by the functions' bodies.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// The model-local function that a node calls; null if it calls none.
FunctionOp findFunction(Node node);

/// Copies the body of the called function to b's insertion point, with the call's attributes in place of references.
/// `outputs` has a value for each result (null where the function leaves it out). The call itself stays.
mlir::LogicalResult inlineFunction(Node call, NodeBuilder &b, llvm::SmallVectorImpl<mlir::Value> &outputs);

/// Gives the uses and names of a node's results to `outputs`, and erases the node.
void replaceWithValues(Node node, llvm::ArrayRef<mlir::Value> outputs, TypeInference &types);

} // namespace recast::onnx_ir
