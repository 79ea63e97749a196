// What a runtime makes of a graph, as far as memory goes. Passes do not link the runtime: a tool that links both hands
// them a function that compiles.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/ADT/StringMap.h"
#include <functional>

namespace recast::checkpoint {

/// One operator of the graph, or of a body in it.
struct StepFacts {
  int64_t workspaceBytes = 0; ///< Needed while it runs: scratch, what it is expanded to, the arenas of its bodies.
  /// Results, and the operands whose memory they take over where nothing reads those later; by names.
  std::vector<std::pair<std::string, std::string>> inPlace;
};

struct MemoryFacts {
  int64_t arenaBytes = 0;     ///< Of the whole plan.
  int64_t alignmentBytes = 1; ///< Every tensor takes a multiple of this.
  /// By origin (originOf). Operators that are missing cost nothing: views, and what is computed before the run.
  llvm::StringMap<StepFacts> steps;
  /// Bytes in an arena of each result, by the name of the value. Those that are missing lie elsewhere: in the state.
  llvm::StringMap<int64_t> tensors;
};

/// Compiles the module, which stays as it is. Failure has been reported.
using MeasureMemory = std::function<mlir::FailureOr<MemoryFacts>(mlir::ModuleOp)>;

/// What `measure` says. Where it is null: views cost nothing, no operand's memory is taken over, and the arena is as
/// large as what is live at once. An error names a value whose size is not known.
mlir::FailureOr<MemoryFacts> measureMemory(mlir::ModuleOp module, const MeasureMemory &measure);

/// A changed copy of the module; no module where nothing is better.
struct Measured {
  mlir::OwningOpRef<mlir::ModuleOp> module;
  MemoryFacts facts;
};

/// The module in an order with a smaller arena.
mlir::FailureOr<Measured> orderForMemory(mlir::ModuleOp module, const MemoryFacts &facts, const MeasureMemory &measure);

} // namespace recast::checkpoint
