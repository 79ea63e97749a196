// Flags of the optimizers, one for each setting of the table in passes/step/Optimizers.cpp.
#pragma once
#include "llvm/Support/CommandLine.h"
#include <memory>
#include <string>
#include <vector>

namespace recast::tools {

class OptimizerFlags {
public:
  explicit OptimizerFlags(llvm::cl::OptionCategory &category);
  /// The flags that were given, as NAME=VALUE. A message where `optimizer` is unknown, does not use one of them, or
  /// cannot take its value; "" where all is well.
  std::string read(llvm::StringRef optimizer, std::vector<std::string> &settings) const;

private:
  std::vector<std::unique_ptr<llvm::cl::opt<std::string>>> flags;
  llvm::cl::list<std::string> betas;
  std::unique_ptr<llvm::cl::alias> accumulator; ///< PyTorch's name.
};

} // namespace recast::tools
