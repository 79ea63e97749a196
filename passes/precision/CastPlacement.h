// Puts one graph or function into mixed precision: inserts the casts that an Assignment asks for.
#pragma once
#include "ir/onnx/Builder.h"
#include "passes/precision/Assignment.h"

namespace recast::precision {

/// One walk in the graph's order, bodies included. A node's operands have their new types when it is reached; casts are
/// inserted before it (one for each value and type, in the block of the value), and its results are typed anew. What
/// the graph takes and gives keeps its type, parameters among it.
class CastPlacement {
public:
  /// `holder` is the graph or function of `assignment`.
  CastPlacement(mlir::Operation *holder, const Assignment &assignment, mlir::Type low);

  /// Fails only where the ONNX library refuses the types of a result, which it reports at the node.
  mlir::LogicalResult run();

  /// True where the graph is not as it was.
  bool hasChanged() const { return isChanged || casts || !changed.empty(); }
  unsigned numCasts() const { return casts; }
  unsigned numLow() const { return lowNodes; }

private:
  mlir::LogicalResult visitBlock(mlir::Block &block);
  mlir::LogicalResult visit(mlir::Operation *op);
  mlir::LogicalResult visitCastLike(mlir::Operation *op);
  mlir::LogicalResult visitBodies(mlir::Operation *op);
  void noteCast(mlir::Operation *op);
  void finishNode(onnx_ir::Node node, llvm::ArrayRef<mlir::Type> before);
  mlir::LogicalResult retype(mlir::Operation *op, llvm::ArrayRef<mlir::Type> before);
  void retype(mlir::Value value, mlir::Type element);
  void forgetDeclaredTypes();
  void keepOutputTypes();
  void removeDeadOperations();

  mlir::Type originalType(mlir::Value value) const;
  void setOperand(mlir::OpOperand &operand, mlir::Type type);
  mlir::Value as(mlir::OpOperand &operand, mlir::Type type);
  mlir::Value insertCast(mlir::Value value, mlir::Type type);

  mlir::Operation *holder;
  mlir::Block &block;
  const Assignment &assignment;
  mlir::Type low, f32;
  onnx_ir::NameScope names;
  onnx_ir::TypeInference types;
  onnx_ir::NodeBuilder b;

  llvm::DenseMap<mlir::Value, mlir::Type> changed; ///< Element types before the pass, of values that have another now.
  llvm::DenseMap<std::pair<mlir::Value, mlir::Type>, mlir::Value> known; ///< What a value is in another type.
  llvm::DenseSet<mlir::Value> inserted;                                  ///< Casts of this pass.
  llvm::SetVector<mlir::Operation *> perhapsDead;                        ///< Casts and constants that lost a reader.
  unsigned casts = 0, lowNodes = 0;
  bool isChanged = false;
};

} // namespace recast::precision
