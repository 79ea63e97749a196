#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/gradient/Gradient.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_COMPUTEGRADIENTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct ComputeGradientsPass : impl::ComputeGradientsBase<ComputeGradientsPass> {
  using ComputeGradientsBase::ComputeGradientsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    gradient::TrainableOptions options{{train.begin(), train.end()}, {freeze.begin(), freeze.end()}};
    auto lossValue = gradient::findLoss(s.graph, loss);
    if (failed(lossValue))
      return signalPassFailure();
    if (s.info.loss.empty())
      s.info.loss = s.info.objective = nameOf(*lossValue).str();
    bool isScaled = s.info.objective != s.info.loss;
    Value objective = isScaled ? s.find(s.info.objective) : *lossValue;

    auto choices = gradient::chooseTrainable(s.graph, *lossValue, options);
    if (failed(choices))
      return signalPassFailure();
    SmallVector<Value> parameters;
    for (const gradient::Choice &choice : *choices)
      if (choice.trainable) {
        parameters.push_back(choice.value);
        s.info.parameters.push_back(nameOf(choice.value).str());
      }
    if (parameters.empty()) {
      s.graph.emitError() << "nothing to train: no floating-point initializer influences the loss '" << s.info.loss
                          << "'; name tensors with --train=GLOB";
      return signalPassFailure();
    }
    numParameters += parameters.size();

    SmallVector<Operation *> marked;
    LogicalResult done = markPadding(s, marked);
    auto gradients = gradient::differentiate(s.graph, s.b, objective, parameters);
    for (Operation *op : marked)
      op->removeAttr(gradient::kPaddingIndex);
    if (failed(done) || failed(gradients))
      return signalPassFailure();
    s.b.setScope("");
    for (auto [name, gradient] : llvm::zip(s.info.parameters, *gradients)) {
      Value result = gradient;
      if (isScaled)
        result = s.b.node("train.mark_scaled", {result});
      result = s.named(result, (isScaled ? "grad.scaled." : "grad.") + name);
      s.info.gradients.push_back(nameOf(result).str());
      s.addOutput(result);
    }
    s.finish();
  }

  // Look-ups in the tables that --padding-index names.
  LogicalResult markPadding(step::StepGraph &s, SmallVectorImpl<Operation *> &marked) {
    for (const std::string &entry : paddingIndex) {
      auto [glob, number] = StringRef(entry).rsplit('=');
      int64_t index;
      if (number.getAsInteger(10, index))
        return s.graph.emitError() << "--padding-index=" << entry << ": GLOB=N is needed, N a row of the table";
      size_t before = marked.size();
      for (auto gather : s.graph.getBody().front().getOps<GatherOp>())
        if (gradient::matchesGlob(glob, nameOf(gather->getOperand(0)))) {
          gather->setAttr(gradient::kPaddingIndex, IntegerAttr::get(IntegerType::get(&getContext(), 64), index));
          marked.push_back(gather);
        }
      if (marked.size() == before)
        return s.graph.emitError() << "--padding-index=" << entry << ": no Gather reads a tensor of that name";
    }
    return success();
  }
};

} // namespace
} // namespace recast
