// Operators that ONNX Runtime puts into training graphs, and their standard counterparts.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::forms {

/// True for the domains of ONNX Runtime's own operators: com.microsoft and org.pytorch.aten.
bool isOrtDomain(llvm::StringRef domain);

/// Builds what `node`, of such a domain, computes from standard operators where b's insertion point stands. `outputs`
/// gets a value for each result, null for results that only the backward of ONNX Runtime reads. Reports an operator or
/// a form of one that has no counterpart here. The node itself stays.
mlir::LogicalResult expandOrtOperator(onnx_ir::Node node, onnx_ir::NodeBuilder &b,
                                      llvm::SmallVectorImpl<mlir::Value> &outputs);

} // namespace recast::forms
