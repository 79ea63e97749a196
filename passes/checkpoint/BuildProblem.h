// From the block of a graph that holds forward and backward to the recomputation problem.
#pragma once
#include "ir/cost/Profile.h"
#include "passes/checkpoint/Memory.h"
#include "passes/checkpoint/remat/Policies.h"
#include "llvm/ADT/DenseMap.h"

namespace recast::checkpoint {

/// Where training happens: the main graph, or with accumulation the body of the Scan over the micro-batches.
struct TrainingBlock {
  mlir::Block *block = nullptr;
  mlir::Value loss; ///< What the backward starts from, before any loss scale, as the block computes it.
};

/// Follows the loss into the Scan that computes it. An error where the model does not say which value is the loss.
mlir::FailureOr<TrainingBlock> findTrainingBlock(mlir::ModuleOp module);

/// The blocks that a step spends its time in: the main graph, and where training happens if that is a body.
llvm::SmallVector<TrainingBlock, 2> stepBlocks(mlir::ModuleOp module);

/// The problem of one block, and what its numbers stand for.
struct GraphProblem {
  remat::Problem problem; ///< Costs are nanoseconds.
  mlir::Block *block = nullptr;
  std::vector<mlir::Operation *> ops;        ///< One a node.
  std::vector<int64_t> flops;                ///< One a node.
  std::vector<mlir::Value> values;           ///< One a tensor: the result that it is.
  llvm::DenseMap<mlir::Value, int> tensorOf; ///< Results and views of them.
  llvm::DenseSet<mlir::Value> alwaysFirst; ///< Results that readers take from the first run: graph outputs, statistics.
  /// Results of the block's operators that are computed from constants and sizes before the run.
  llvm::DenseSet<mlir::Value> known;
  remat::Roles roles;

  /// True for those, and for constants.
  bool isKnown(mlir::Value value) const;
};

/// `facts` are of the module as it is, or of one that it is a copy of. Without a profile nothing costs time.
/// `offloads`, which needs one: tensors may be fetched from the host.
GraphProblem buildProblem(const TrainingBlock &training, const MemoryFacts &facts,
                          const cost::Profile *profile = nullptr, bool offloads = false);

/// True where the results of `op` are its operands: the same elements in the same memory. Result i is operand i.
bool isView(mlir::Operation *op);

/// True where it matters how often and in which order `op` runs. Draws from a key and an offset are functions of those.
bool hasEffects(mlir::Operation *op);

/// Calls `visit` for the operands of `op` and of the operations in its bodies that `block` defines.
void forEachOperand(mlir::Operation *op, mlir::Block &block, llvm::function_ref<void(mlir::OpOperand &)> visit);

/// How steps of a plan call the operator that they come from: by its first result.
llvm::StringRef originOf(mlir::Operation *op);

} // namespace recast::checkpoint
