// Which memory of a block may be written again, and when.
#pragma once
#include "runtime/compile/Unit.h"

namespace recast::compile {

/// Lifetimes in one block (the graph or a body), and the values that are computed where a state lies. Bodies count as
/// part of the operation that has them. Valid while the block and what is prepared for it stay as they are.
class Reuse {
public:
  /// `inPlace` false: no value lies in a state's memory.
  Reuse(Unit &unit, mlir::Block &block, bool inPlace);

  /// True where nothing reads the value's memory after `op`, an operation of the block. Outputs are read at the end.
  bool isLastRead(mlir::Value value, mlir::Operation *op) const;
  /// The state argument in whose memory an operation computes a result; null where it has memory of its own.
  mlir::BlockArgument placeOf(mlir::Value result) const { return places.lookup(result); }
  /// True where the result may lie in the memory of `value`, which is one of the operation's operands and has as many
  /// bytes, provided that it is the last to read it.
  bool allows(mlir::OpResult result, mlir::Value value) const;

private:
  bool fits(mlir::Value value, mlir::BlockArgument state) const;
  mlir::Value takenOver(mlir::Value value, mlir::BlockArgument state) const;
  size_t bytesOf(mlir::Value value) const;

  Unit &unit;
  mlir::Block &block;
  llvm::DenseMap<mlir::Operation *, int> order;
  llvm::DenseMap<mlir::Value, int> lastRead; ///< Keys are sources (sourceOf).
  /// Operations of the block whose bodies read a source.
  llvm::DenseSet<std::pair<mlir::Operation *, mlir::Value>> captures;
  int lastFailing = -1; ///< The last operation that may fail; -1 in bodies, where a failed step fails as a whole.
  llvm::DenseMap<mlir::Value, mlir::BlockArgument> places;
};

} // namespace recast::compile
