#include "tools/recast-opt/EmitPlan.h"
#include "runtime/compile/Compile.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/plan/PlanFile.h"

namespace recast::tools {

llvm::Error emitPlan(mlir::ModuleOp module, const std::string &model, const std::string &path,
                     const std::vector<std::shared_ptr<io::MappedFile>> &files, int threads, const std::string &device,
                     int cudaArchitecture) {
  if (threads)
    setThreadCount(threads);
  CompileOptions options{.regions = true}; // As recast-run.
  options.device = device == "cpu" ? "cpu" : "cuda";
  options.emulates = device == "check";
  options.cudaArchitecture = cudaArchitecture;
  auto plan = compileModule(module, options);
  if (!plan)
    return llvm::createStringError((model == "-" ? "standard input" : model) + ": " + plan.message());
  std::vector<PlanSource> sources;
  for (const auto &file : files)
    if (!file->path().empty()) // Standard input is no file that a plan could refer to.
      sources.push_back({file->path(), std::as_bytes(std::span(file->bytes().data(), file->bytes().size()))});
  if (Status status = writePlan(**plan, path, sources); !status.ok())
    return llvm::createStringError(status.message());
  return llvm::Error::success();
}

} // namespace recast::tools
