// Arithmetic of the operators whose class does not say it: formulas over types and attributes.
#pragma once
#include "ir/cost/Cost.h"

namespace recast::cost {

int64_t saturatingAdd(int64_t a, int64_t b);
int64_t saturatingMultiply(int64_t a, int64_t b); ///< Of numbers from 0 on.

/// Sizes of an operation's operands and results; remembers whether one that was asked for is not known.
class Sizes {
public:
  explicit Sizes(onnx_ir::Node node) : node(node) {}

  /// 0 where the value is left out or has no fixed size.
  int64_t elems(mlir::Value value);
  int64_t bytes(mlir::Value value);
  /// From the end where negative. 0 where there is no such dimension.
  int64_t dim(mlir::Value value, int64_t index);
  int64_t rank(mlir::Value value);

  const onnx_ir::Node node;
  bool isOpen = false;    ///< A size that was asked for is not fixed.
  bool isUntyped = false; ///< A type that was asked for is not known, or no tensor.

private:
  mlir::RankedTensorType typeOf(mlir::Value value);
};

struct Formula {
  llvm::StringLiteral domain, op;
  Work work;
  int64_t (*flops)(Sizes &sizes);
};

/// Null: the operator's class says what it costs.
const Formula *findFormula(onnx_ir::Node node);

} // namespace recast::cost
