// The optimizer models of ONNX Runtime: what they say about the update.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include <string>

namespace recast::forms {

struct OrtOptimizer {
  std::string kind; ///< adamw or sgd.
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weightDecay = 0;
  std::string adamForm = "pytorch"; ///< As the option of insert-optimizer.
};

/// Reads the AdamWOptimizer or SGDOptimizerV2 node of a model; its learning rate is an input there and stays open.
/// Reports a model without such a node, and an AdamW of unknown form.
mlir::FailureOr<OrtOptimizer> readOrtOptimizer(mlir::ModuleOp module);

} // namespace recast::forms
