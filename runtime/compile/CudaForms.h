// Operators that no kernel of CUDA takes, written as others that have one.
#pragma once
#include "ir/onnx/Builder.h"
#include "ir/onnx/Node.h"

namespace recast::compile {

struct CudaForm {
  llvm::StringLiteral op; ///< Of ONNX's own domain.
  int oldest, newest;     ///< Versions of its definition.
  /// "" or why this node has no such form. All shapes are known.
  std::string (*refuses)(onnx_ir::Node node);
  /// Builds before the node; the result has the type of the node's.
  mlir::Value (*build)(onnx_ir::Node node, onnx_ir::NodeBuilder &b);
};

/// Null where there is none.
const CudaForm *findCudaForm(llvm::StringRef domain, llvm::StringRef op, int version);

} // namespace recast::compile
