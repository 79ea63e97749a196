// The rules of mixed precision and accumulation, checked on any training graph by how values flow. docs/verify.md has a
// broken example of each.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "passes/verify/Roles.h"

namespace recast::verify {

enum class Rule : uint8_t {
  ClipBeforeUnscale,
  UncheckedGradient,
  UpdateOutsideSkip,
  MissingUnscale,
  DoubleUnscale,
  LossScaledTwice,
  StatisticsInRecompute,
  MeanOfMeans,
  LowPrecisionAccumulator,
};
inline constexpr unsigned kNumRules = 9;

/// "clip-before-unscale", ...
llvm::StringRef nameOf(Rule rule);

struct Finding {
  Rule rule;
  std::string text;               ///< One sentence: what is wrong, and what to do.
  std::vector<std::string> chain; ///< The nodes that lead to it, in the order of execution.
};

struct Report {
  std::vector<Finding> findings;
  std::vector<std::string> parameters, moments;
  std::vector<std::string> gradients; ///< Outputs and buffers, where the model updates no parameter.
  std::vector<std::string> scales;    ///< What the loss is scaled by.
  bool hasCheck = false;              ///< Some update is decided by a test of gradients.
};

/// Checks every rule. The graph may be any: what trains nothing has nothing to break.
Report verifyTraining(mlir::ModuleOp module);

} // namespace recast::verify
