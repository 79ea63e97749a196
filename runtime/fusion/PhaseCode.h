// What the code of a phase needs for every processor: addresses of operands, slots and rows.
#pragma once
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "runtime/fusion/Schedule.h"
#include <map>

namespace recast::fusion {

class PhaseCode {
protected:
  PhaseCode(mlir::ImplicitLocOpBuilder &b, const Region &region, const Program &program, const Phase &phase)
      : b(b), region(region), program(program), phase(phase), scalars(phase.nodes.size()), rows(phase.nodes.size()) {}

  mlir::Value number(int64_t value);
  mlir::Value add(mlir::Value x, mlir::Value y);
  mlir::Value mul(mlir::Value x, int64_t y);
  /// scf.for from `begin` to `end`, whose body gives the next values of what is carried; the last ones.
  llvm::SmallVector<mlir::Value>
  forLoop(mlir::Value begin, mlir::Value end, mlir::Value step, mlir::ValueRange init,
          llvm::function_ref<llvm::SmallVector<mlir::Value>(mlir::Value, mlir::ValueRange)> body);

  mlir::Value address(mlir::Value base, DType type, mlir::Value offset);
  mlir::Value loadScalar(DType type, mlir::Value base, mlir::Value offset);
  mlir::Value slotBase(int slot);
  /// The part of a slot that this range has.
  mlir::Value partBase(int slot);
  /// Where a store goes: a slot, or an output.
  mlir::Value baseOf(const Store &store) {
    return store.isSlot ? slotBase(store.index) : operands[region.inputs.size() + static_cast<size_t>(store.index)];
  }

  /// Begins a row of `elems` elements: offsets of maps belong before the loops over elements.
  void enterRow(mlir::Value at, mlir::Value elems);
  /// The number of the first element of the row in `map`, by the row's number.
  mlir::Value rowOffset(const Map &map);
  bool variesInRow(const Map &map) const { return !map.empty() && map[0].div < phase.inner; }
  DType typeOf(int node) const { return phase.nodes[static_cast<size_t>(node)].type; }
  /// Reductions over the row that are known after this pass.
  std::vector<int> reductionsOf(int pass) const;

  /// What is summed over a row in a pass: reductions, in the last one also accumulations of whole rows. False where the
  /// pass has nothing to do.
  bool sumsOf(int pass, llvm::SmallVector<std::pair<Op, DType>> &sums) const;
  /// Computes the nodes that a row needs once, from this pass on.
  void emitRowNodes(int pass, llvm::function_ref<mlir::Value(const Node &)> compute);

  mlir::ImplicitLocOpBuilder &b;
  const Region &region;
  const Program &program;
  const Phase &phase;
  mlir::Value workspace, range, row, length;
  std::vector<mlir::Value> operands;           ///< Addresses of the region's inputs, then of its outputs.
  std::vector<mlir::Value> scalars, rows;      ///< Nodes that are known, one a node.
  std::map<const void *, mlir::Value> offsets; ///< Of maps, in this row.
};

} // namespace recast::fusion
