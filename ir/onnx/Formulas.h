// Definitions by formula: functions of one number, rows, Einsum. What Definitions.h offers, a row an operator.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

struct Formula {
  llvm::StringLiteral op; ///< Of ONNX's own domain.
  /// True where the node can be written so: in floats of at most 32 bits, which f32 computes, with known sizes where
  /// the formula needs them.
  bool (*accepts)(Node node);
  /// Builds where b's insertion point stands; the result has the type of the node's.
  mlir::Value (*build)(Node node, NodeBuilder &b);
};

/// Null where there is none. The node may still be one that the formula does not accept.
const Formula *findFormula(Node node);

} // namespace recast::onnx_ir
