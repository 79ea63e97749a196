// The optimizers of ai.onnx.preview.training: the ONNX library documents them by pseudo code and has no bodies.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// True for ONNX's preview of training operators, by its name and by the misspelt one that early models have.
bool isPreviewTrainingDomain(llvm::StringRef domain);

/// Adam, Adagrad or Momentum of that domain.
bool isPreviewOptimizer(Node node);

/// Builds what the operator's documentation (onnx/defs/training/defs.cc) says where b's insertion point stands, with a
/// value in `outputs` for each result. Scalars are computed in f64 and rounded to a tensor's type where they meet it;
/// attributes are the floats of the file. The node itself stays. Opset 9.
mlir::LogicalResult expandPreviewOptimizer(Node node, NodeBuilder &b, llvm::SmallVectorImpl<mlir::Value> &outputs);

} // namespace recast::onnx_ir
