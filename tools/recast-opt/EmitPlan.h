// --emit=plan: the compiled form of what the passes made.
#pragma once
#include "ir/io/MappedFile.h"
#include "mlir/IR/BuiltinOps.h"
#include <string>
#include <vector>

namespace recast::tools {

/// Compiles the module, which comes from `model`, for this machine and `threads` threads (0: all), or for `device` cuda
/// or check (CUDA, with host code for the checking device), and writes the plan;
/// "-" is standard output. Weights that lie in `files`, which the module was loaded from, are referred to. An error is
/// one sentence.
llvm::Error emitPlan(mlir::ModuleOp module, const std::string &model, const std::string &path,
                     const std::vector<std::shared_ptr<io::MappedFile>> &files, int threads, const std::string &device,
                     int cudaArchitecture);

} // namespace recast::tools
