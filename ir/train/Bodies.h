// Tables of bodies, one for each family; Bodies.cpp joins them.
#pragma once
#include "ir/train/Dialect.h"

namespace recast::train {

/// Builds one operator's body; see buildBody.
using BodyFn = mlir::LogicalResult (*)(onnx_ir::Node op, onnx_ir::NodeBuilder &b, llvm::ArrayRef<mlir::Value> inputs,
                                       llvm::SmallVectorImpl<mlir::Value> &outputs);
struct BodyEntry {
  llvm::StringLiteral op;
  BodyFn build;
};

llvm::ArrayRef<BodyEntry> convolutionBodies(); ///< BodiesConvolution.cpp: convolutions and pools
llvm::ArrayRef<BodyEntry> gradientBodies();    ///< BodiesGradient.cpp: norms, softmax, losses, indexing
llvm::ArrayRef<BodyEntry> stepBodies();        ///< BodiesStep.cpp: scaling, clipping, random masks
llvm::ArrayRef<BodyEntry> optimizerBodies();   ///< BodiesOptimizer.cpp
llvm::ArrayRef<BodyEntry> fp8Bodies();         ///< BodiesFp8.cpp: quantisation, amax history
llvm::ArrayRef<BodyEntry> precisionBodies();   ///< BodiesPrecision.cpp: rounding

} // namespace recast::train
