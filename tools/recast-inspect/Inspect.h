// Questions that recast-inspect answers. Each gives JSON; text is printed from the same facts.
#pragma once
#include "ir/cost/Profile.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace recast::inspect {

/// "f32[batch,20]".
std::string typeText(mlir::Type type);

/// Inputs, parameters, state, operators, element types, what a run costs.
llvm::json::Object summarize(mlir::ModuleOp module, const cost::Profile &profile);
void printSummary(const llvm::json::Object &summary, llvm::raw_ostream &out);

/// {"total": SUM, "phases": {"forward", "backward", "update": SUM}, "classes": {CLASS: SUM}, "machine", "unknown",
/// "uncounted": [{"name", "operator"}]} of one run of the graph, where SUM is {"flops", "bytes", "ns"}. Phases are
/// those of a step model; others have none. `unknown` operators are counted by their bytes only; those with open sizes
/// are `uncounted`. Where such sizes have names there are no sums but "open": [SYMBOL].
llvm::json::Object costTotals(mlir::ModuleOp module, const cost::Profile &profile);
void printCostTotals(const llvm::json::Object &facts, llvm::raw_ostream &out);
/// The same and "nodes": [{"name", "operator", "type", "class", "phase", "times", "flops", "bytes", "ns"}], those that
/// take longest first; sums over all times that a node runs.
llvm::json::Object explainCost(mlir::ModuleOp module, const cost::Profile &profile);
void printCost(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// {"parameters", "state", "inputs", "constants": BYTES} and ARENA, where ARENA is {"arena": BYTES, "steps": [{"name",
/// "operator", "live"}], "fullest": {"step", "values", "outputs", "workspace", "lost", "holders": [{"kind", "name",
/// "bytes", "first", "last"}]}, "buffers": [{"name", "type", "bytes", "offset", "first", "last"}], "bodies": [{"of"}
/// and ARENA]}: the plan that recast-run would make. An error where a size is open.
mlir::FailureOr<llvm::json::Object> explainMemory(mlir::ModuleOp module);
void printMemory(const llvm::json::Object &facts, llvm::raw_ostream &out);
/// {"machine", "repeated": [{"node", "again", "bytes", "flops", "ns"}], "curve": [{"budget_bytes", "peak_bytes",
/// "repeated", "more_flops_percent", "more_time_percent"}]}: what runs again in the graph, and what `budgets` smaller
/// amounts of memory would cost (at least 2). An error where a size is open, or no value is known to be the loss.
mlir::FailureOr<llvm::json::Object> explainCheckpoints(mlir::ModuleOp module, int budgets,
                                                       const cost::Profile &profile);
void printCheckpoints(const llvm::json::Object &facts, llvm::raw_ostream &out);
/// A page with a picture of the arena over time, of the facts of explainMemory.
std::string memoryPage(const llvm::json::Object &facts, llvm::StringRef title);

/// {"trainable": [{"name", "shape", "reason"}], "frozen": [...], "blocked": [...]}: what --train and --freeze would
/// give. `blocked` lists nodes between parameters and the loss that cannot be differentiated.
mlir::FailureOr<llvm::json::Object> explainTrainable(mlir::ModuleOp module, llvm::StringRef loss,
                                                     const gradient::TrainableOptions &options);
void printTrainable(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// {"loss": [...], "parameters": [{"name", "chain": [...]}], "problems": [...]}: for each parameter of a step model the
/// operators from its gradient to its update. An error if the model is no step model.
mlir::FailureOr<llvm::json::Object> explainOrder(mlir::ModuleOp module);
void printOrder(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// {"rules", "parameters": [...], "moments", "gradients", "loss_scale", "finite_check", "findings": [{"rule", "text",
/// "chain"}]}: the rules of passes/verify on any training graph.
llvm::json::Object verify(mlir::ModuleOp module);
/// The last line where there is no finding.
void printVerified(const llvm::json::Object &facts, llvm::raw_ostream &out);
/// {"nodes": [{"name", "operator", "type", "class", "rule", "why", "autocast"}], "types": {...}, "classes": {...}}: for
/// each node its type, and what autocast to `type` (empty: the low type that the file has most of) with `policy` says
/// about the graph as it stands.
mlir::FailureOr<llvm::json::Object> explainPrecision(mlir::ModuleOp module, llvm::StringRef type,
                                                     llvm::StringRef policy);
void printPrecision(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// {"casts": [{"value", "cast", "from", "to", "bytes", "readers"}], "bytes"}: casts between floating-point types, bytes
/// read and written, left out where a size is open.
mlir::FailureOr<llvm::json::Object> explainCasts(mlir::ModuleOp module);
void printCasts(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// {"settings", "inputs", "outputs", "initializers", "nodes": {"added", "removed": [{"name", "text"}], "changed":
/// [{"name", "changes": [{"what", "before", "after"}]}]}}, and how many nodes are the "same": what `after` has instead
/// of what `before` has. A node is the same one where its operator and name are, else where it gives the value of the
/// same name.
llvm::json::Object diff(mlir::ModuleOp before, mlir::ModuleOp after);
void printDiff(const llvm::json::Object &facts, llvm::raw_ostream &out);

/// One node, by its name or that of a value that it gives: what explainPrecision says, and its neighbours.
mlir::FailureOr<llvm::json::Object> explainNode(mlir::ModuleOp module, llvm::StringRef name, llvm::StringRef type,
                                                llvm::StringRef policy);
void printNode(const llvm::json::Object &facts, llvm::raw_ostream &out);

} // namespace recast::inspect
