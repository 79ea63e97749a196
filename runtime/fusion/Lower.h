// From loops in MLIR to LLVM's code for a target.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Pass/PassManager.h"
#include "runtime/plan/Status.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/Support/CodeGen.h"
#include "llvm/Target/TargetMachine.h"
#include <functional>

namespace recast::fusion {

/// Rounding is the graph's: nothing is contracted. Null where this LLVM does not have the target.
std::unique_ptr<llvm::TargetMachine> createTarget(const std::string &triple, const std::string &cpu,
                                                  const std::string &features);

class Lowering {
public:
  /// Null: every call of lower() fails.
  explicit Lowering(std::unique_ptr<llvm::TargetMachine> target);

  /// `emit` fills a module with functions of the dialects arith, math, scf, vector, func and llvm; `complete`, where it
  /// is set, changes their code before it is optimised. The file's bytes.
  Result<std::string> lower(const std::function<void(mlir::ModuleOp)> &emit, llvm::CodeGenFileType file,
                            const std::function<void(llvm::Module &)> &complete = {});
  /// Called on code that is optimised.
  std::function<void(llvm::Module &)> finish;

private:
  void optimize(llvm::Module &module);

  mlir::MLIRContext context;
  std::optional<mlir::PassManager> passes;
  std::unique_ptr<llvm::TargetMachine> target;
};

} // namespace recast::fusion
