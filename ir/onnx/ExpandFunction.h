// Operators that ONNX defines by others: replaced by their function bodies.
#pragma once
#include "ir/onnx/Builder.h"
#include "onnx/onnx_pb.h"

namespace recast::onnx_ir {

/// True where there is a body for the node's operator at the model's opset: in the ONNX library, or, for the preview of
/// training operators, in PreviewOptimizers.h.
bool hasFunctionBody(Node node);

/// The node as a message, for builders of bodies: its inputs and outputs have names that are only counted and compared
/// with "".
onnx::NodeProto functionCall(Node node);

/// Builds the body with `b` where its insertion point stands; `outputs` has a value (null where the body leaves an
/// optional output out) for each result of the node. The node itself stays.
mlir::LogicalResult expandFunctionBody(Node node, NodeBuilder &b, llvm::SmallVectorImpl<mlir::Value> &outputs);

} // namespace recast::onnx_ir
