// What a loop of vectors over a row carries for its reductions.
#pragma once
#include "runtime/fusion/Compute.h"

namespace recast::fusion {

class RowSums {
public:
  /// For each reduction, vectors of elements in its type.
  using Terms = llvm::SmallVector<llvm::SmallVector<mlir::Value>>;

  RowSums(mlir::ImplicitLocOpBuilder &b, llvm::ArrayRef<std::pair<Op, DType>> kinds, int64_t lanes);
  size_t size() const { return sums.size(); }

  /// Values before the first element. An extreme of floats has a second one: NaN in the lanes that have seen one, so
  /// that the comparison need not watch for it.
  llvm::SmallVector<mlir::Value> start();
  /// The next values. Terms join in a tree before they meet what is carried: that is one dependent operation a turn.
  llvm::SmallVector<mlir::Value> take(Terms terms, mlir::ValueRange carried);
  /// The reductions, scalars: over the lanes in a fixed tree.
  llvm::SmallVector<mlir::Value> totals(mlir::ValueRange carried);

private:
  struct Sum {
    Op op;
    DType type;
    bool isWatched() const { return isExtreme(op) && isFloat(type); }
  };
  mlir::Value join(const Sum &sum, mlir::Value x, mlir::Value y);
  mlir::Value overLanes(const Sum &sum, mlir::Value x);

  mlir::ImplicitLocOpBuilder &b;
  llvm::SmallVector<Sum> sums;
  mlir::Type shape; ///< Some vector of the loop's lanes.
};

} // namespace recast::fusion
