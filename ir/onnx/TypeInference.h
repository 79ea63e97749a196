// Types of results, through the ONNX library's own schema functions.
#pragma once
#include "ir/onnx/Node.h"
#include "llvm/ADT/DenseMap.h"
#include <memory>

namespace recast::onnx_ir {

/// Infers result types one operation at a time, in order, and carries integer values that are known in part (shapes
/// with symbols) from operation to operation, as the ONNX library's data propagation does.
class TypeInference {
public:
  TypeInference();
  ~TypeInference();

  /// Sets the result types of `op`. What is known already (`value_info`) is kept where inference knows less, unless
  /// `fresh`. Operations without a rule keep what they have. An inference error is reported at the operation.
  mlir::LogicalResult infer(mlir::Operation *op, bool fresh = false);
  /// All operations of a region's block, in order, and the bodies inside.
  mlir::LogicalResult inferAll(mlir::Region &region, bool fresh = false);
  /// Must be called before an operation that was inferred is erased.
  void forget(mlir::Operation *op);

  /// The elements of an integer vector or scalar as far as they are known: a value or a symbol each. Null if nothing
  /// is.
  const onnx::TensorShapeProto *knownInts(mlir::Value value);

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

} // namespace recast::onnx_ir
