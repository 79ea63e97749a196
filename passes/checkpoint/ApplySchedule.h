// From a schedule back to the graph.
#pragma once
#include "ir/onnx/Builder.h"
#include "passes/checkpoint/BuildProblem.h"

namespace recast::checkpoint {

/// End the names of copies in the host's memory, and of what comes back from there.
inline constexpr llvm::StringLiteral kOffloadSuffix = ".offload", kFetchSuffix = ".fetch";
/// Ends the names of what runs again, before the number that a third run has.
inline constexpr llvm::StringLiteral kRecomputeSuffix = ".recompute";

/// Brings the block into the order of `runs`, nodes of `graph.problem`: first runs are the operators themselves,
/// further ones are clones called `<name>.recompute`. What a stretch of clones reads from before it passes one
/// `train.barrier`, which also waits for the operator that runs last before the stretch. Every reader gets what the
/// latest run has left; a tensor that is fetched gets a `train.offload` right after its first run, and a `train.fetch`
/// wherever a fetch runs; graph outputs and statistics come from the first. `graph` is used up: its operators move.
/// Precondition: an operator's first run comes after the first runs of what it reads.
void applyRuns(const GraphProblem &graph, llvm::ArrayRef<int> runs, onnx_ir::NameScope &names);

} // namespace recast::checkpoint
