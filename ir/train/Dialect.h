// The dialect `train`: C++ side of TrainOps.td, and the bodies of its operators in standard ONNX operators.
#pragma once
#include "ir/onnx/Builder.h"
#include "ir/onnx/Dialect.h"

namespace recast::train {

/// Result types from operands and attributes.
bool inferTypes(mlir::Operation *op, llvm::SmallVectorImpl<mlir::Type> &types);
/// Rules that hold for every operator: a scaled gradient goes to `unscale` and nowhere else; counts of operands.
mlir::LogicalResult verifyOp(mlir::Operation *op);

/// Builds what `op` computes from standard operators at the builder's opset: inputs in the order of op's operands (null
/// where left out), outputs in the order of its results. The types of `inputs` are those of op's operands; sizes that
/// they leave open may differ from call to call.
mlir::LogicalResult buildBody(onnx_ir::Node op, onnx_ir::NodeBuilder &b, llvm::ArrayRef<mlir::Value> inputs,
                              llvm::SmallVectorImpl<mlir::Value> &outputs);

/// True where `op` is an operator of this dialect: `conv_grad_input`, ...
bool isTrainOp(mlir::MLIRContext *context, llvm::StringRef op);

} // namespace recast::train

#include "ir/train/TrainDialect.h.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/train/TrainTypes.h.inc"
#define GET_OP_CLASSES
#include "ir/train/TrainOps.h.inc"
