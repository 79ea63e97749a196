// Definitions by formula: functions of one number, rows, Einsum. Private to Definitions.cpp.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// How an operator of ONNX's own domain is written in others.
struct Definition {
  llvm::StringLiteral op;
  /// True where this node can be: with known sizes and of a type that the definition computes, where it needs them.
  bool (*accepts)(Node node);
  /// Builds where b's insertion point stands; the result has the type of the node's.
  mlir::Value (*build)(Node node, NodeBuilder &b);
};

/// Those that are a formula each, for floats of at most 32 bits, computed in f32.
llvm::ArrayRef<Definition> formulas();

} // namespace recast::onnx_ir
