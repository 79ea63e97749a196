// Operands of a node that must have one type, and the types that ONNX's schema allows for them.
#pragma once
#include "ir/onnx/Node.h"

namespace recast::precision {

/// Floating-point operands whose formal parameters share a type variable of the schema.
struct OperandGroup {
  std::string variable;                    ///< "T", or a type such as "tensor(float)".
  llvm::SmallVector<unsigned, 4> operands; ///< Never empty.
  /// The variable is that of the first input or of an output: the operator computes in this type. Others are side
  /// inputs: scales of Resize, the ratio of Dropout, the mask of Attention, parameters of BatchNormalization.
  bool isComputed = false;
  bool isResult = false; ///< The variable is that of an output.
  bool allowsLow = false, allowsF32 = false;
};

/// Groups of a node with a schema, in the order of their first operand. Inputs that are no float tensors are in none.
llvm::SmallVector<OperandGroup> operandGroups(onnx_ir::Node node, const onnx::OpSchema &schema, mlir::Type low);

/// The first opset after `opset` in which the first input of the operator may have the type `low`;
/// 0 if none has.
int64_t firstOpsetAllowing(llvm::StringRef op, int64_t opset, mlir::Type low);

} // namespace recast::precision
