// Definitions in other operators for what ONNX itself defines in words only.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// True for uses of InstanceNormalization, ReduceLogSumExp, GridSample, AffineGrid, Resize, Upsample and what
/// Formulas.h lists that can be written in other operators: where the sizes that this needs are known.
bool hasDefinition(Node node);

/// True for operators of which some uses can be.
bool mayHaveDefinition(Node node);

/// Precondition: hasDefinition(node). Builds it where b's insertion point stands, with a value in `outputs` for the
/// node's result. The node stays.
mlir::LogicalResult buildDefinition(Node node, NodeBuilder &b, llvm::SmallVectorImpl<mlir::Value> &outputs);

} // namespace recast::onnx_ir
