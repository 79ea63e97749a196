// Puts one graph into mixed precision: decides the type of every node from its class, and inserts the casts.
#pragma once
#include "ir/onnx/Builder.h"
#include "passes/precision/OperandGroups.h"
#include "passes/precision/Policy.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/SetVector.h"

namespace recast::precision {

/// One walk in the graph's order. A node's operands have their new types when it is reached; the node decides what it
/// reads, casts are inserted before it (one for each value and type), and its results are typed anew. What the graph
/// takes and gives keeps its type, parameters among it. Bodies of control flow keep computing in f32.
class CastPlacement {
public:
  CastPlacement(onnx_ir::GraphOp graph, Policy &policy, mlir::Type low);

  /// Fails only where the ONNX library refuses the types of a result, which it reports at the node.
  mlir::LogicalResult run();

  unsigned numCasts() const { return casts; }
  unsigned numLow() const { return lowNodes; }

private:
  mlir::LogicalResult visit(mlir::Operation *op);
  mlir::LogicalResult visitCastLike(mlir::Operation *op);
  void place(onnx_ir::Node node, const onnx::OpSchema &schema, onnx_ir::AutocastClass autocast);
  void restore(mlir::Operation *op);
  void pinTypeAttributes(onnx_ir::Node node, llvm::ArrayRef<mlir::Type> before);
  mlir::LogicalResult retype(mlir::Operation *op, llvm::ArrayRef<mlir::Type> before);
  void keepOutputTypes();
  void removeDeadOperations();
  void removeEmptyCasts();
  void warnAboutOpset();

  std::optional<onnx_ir::AutocastClass> classOf(onnx_ir::Node node);
  mlir::Type typeFor(onnx_ir::Node node, const OperandGroup &group, onnx_ir::AutocastClass autocast);
  bool yields(onnx_ir::Node node, unsigned operand, onnx_ir::AutocastClass autocast);
  bool isBias(onnx_ir::Node node, unsigned operand);
  mlir::Type originalType(mlir::Value value);

  void setOperand(mlir::OpOperand &operand, mlir::Type type);
  mlir::Value as(mlir::Value value, mlir::Type type);
  mlir::Value insertCast(mlir::Value value, mlir::Type type);

  onnx_ir::GraphOp graph;
  mlir::Block &block;
  Policy &policy;
  mlir::Type low, f32;
  onnx_ir::NameScope names;
  onnx_ir::TypeInference types;
  onnx_ir::NodeBuilder b;

  llvm::DenseMap<mlir::Value, mlir::Type> changed; ///< Element types before the pass, of values that have another now.
  llvm::DenseMap<std::pair<mlir::Value, mlir::Type>, mlir::Value> known; ///< What a value is in another type.
  llvm::DenseSet<mlir::Value> inserted;                                  ///< Casts of this pass.
  llvm::DenseSet<mlir::Operation *> lowProducts;      ///< Nodes of class low that run in the low type.
  llvm::SetVector<mlir::Operation *> perhapsDead;     ///< Casts and constants that lost a reader.
  llvm::MapVector<llvm::StringRef, unsigned> refused; ///< Operators of class low whose schema refuses, and how often.
  unsigned casts = 0, lowNodes = 0;
};

} // namespace recast::precision
