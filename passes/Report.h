// What passes decided, for --report: each adds its facts to the module, and the tool takes them out again.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/JSON.h"

namespace recast {

/// Keeps the facts of a pass with the module. A pass that runs twice adds twice.
void addReport(mlir::ModuleOp module, llvm::StringRef pass, llvm::json::Object facts);
/// {"passes": [{"pass": ..., facts...}]} in the order in which they ran; the module forgets them.
llvm::json::Object takeReport(mlir::ModuleOp module);

} // namespace recast
