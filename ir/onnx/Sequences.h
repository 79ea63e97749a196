// Sequences whose elements are known: exporters write a split of a tensor as a sequence that is indexed by constants.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::onnx_ir {

/// Follows sequences from operation to operation, and gives what reads them the tensors themselves:
///
///     s = SplitToSequence(x, [2, 3])      a, b = Split(x, [2, 3])
///     a = SequenceAt(s, 0)            ->
///     b = SequenceAt(s, 1)
///
/// Sequences that come from outside, from a body, or whose length depends on data are left as they are.
class Sequences {
public:
  explicit Sequences(NodeBuilder &builder) : b(builder) {}

  /// To be called for the operations of a block in order, once their types are inferred. The uses of what `op` reads
  /// from a known sequence are replaced; `op` itself stays, without uses. An error names the node: an index that the
  /// sequence does not have.
  mlir::LogicalResult resolve(mlir::Operation *op);
  /// All operations of the graph's or a body's block; what is left without uses is erased.
  mlir::LogicalResult resolveAll(mlir::Block &block);
  /// Must be called before an operation that was resolved is erased.
  void forget(mlir::Operation *op) {
    for (mlir::Value result : op->getResults())
      elements.erase(result);
  }

private:
  using Elements = llvm::SmallVector<mlir::Value>;
  const Elements *elementsOf(mlir::Value sequence) const;
  mlir::FailureOr<int64_t> position(Node node, unsigned operand, int64_t length, int64_t last, int64_t fallback) const;
  void split(Node node);
  mlir::Value concat(Node node, const Elements &parts);
  void replace(mlir::Value result, mlir::Value value);

  NodeBuilder &b;
  llvm::DenseMap<mlir::Value, Elements> elements;
  llvm::DenseSet<mlir::Value> fresh; ///< Parts that nobody has asked for yet.
};

} // namespace recast::onnx_ir
