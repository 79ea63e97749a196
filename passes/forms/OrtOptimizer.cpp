#include "passes/forms/OrtOptimizer.h"
#include "ir/onnx/Node.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::forms {

FailureOr<OrtOptimizer> readOrtOptimizer(ModuleOp module) {
  GraphOp graph = mainGraph(module);
  for (Operation &op : graph.getBody().front()) {
    Node node(&op);
    if (!isNode(&op) || node.domain() != "com.microsoft")
      continue;
    OrtOptimizer found;
    if (node.opType() == "SGDOptimizerV2") {
      found.kind = "sgd";
      return found;
    }
    if (node.opType() != "AdamWOptimizer")
      continue;
    // Defaults are those of the operator's schema in onnxruntime (training_op_defs.cc).
    found.kind = "adamw";
    found.beta1 = node.getFloat("alpha", 0.9);
    found.beta2 = node.getFloat("beta", 0.999);
    found.eps = node.getFloat("epsilon", 1e-8);
    found.weightDecay = node.getFloat("weight_decay", 1e-2);
    if (int64_t mode = node.getInt("adam_mode", 0); mode == 1) {
      found.adamForm = node.getInt("correct_bias", 1) ? "transformers" : "transformers-uncorrected";
    } else if (mode != 0 || node.getInt("correct_bias", 1) == 0) {
      op.emitError() << "node " << node.describe() << ": adam_mode = " << mode
                     << " with correct_bias = " << node.getInt("correct_bias", 1)
                     << "; mode 0 with correction, or mode 1, is needed";
      return failure();
    }
    return found;
  }
  graph.emitError() << "holds no AdamWOptimizer or SGDOptimizerV2 node: --optimizer-model takes the optimizer model of "
                    << "ONNX Runtime's training artifacts";
  return failure();
}

} // namespace recast::forms
