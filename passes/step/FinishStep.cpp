#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"
#include "llvm/Support/JSON.h"

namespace recast {
#define GEN_PASS_DEF_FINISHSTEP
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// One line of JSON, for metadata_props.
std::string compact(llvm::json::Value value) {
  std::string text;
  llvm::raw_string_ostream(text) << value;
  return text;
}

struct FinishStepPass : impl::FinishStepBase<FinishStepPass> {
  using FinishStepBase::FinishStepBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    // A constant loss scale is state that nothing updates.
    if (!s.info.lossScale.empty() &&
        llvm::none_of(s.info.state, [&](const auto &pair) { return pair.first == s.info.lossScale; })) {
      Value scale = s.find(s.info.lossScale);
      s.update(scale, s.b.node("Identity", {scale}));
    }
    llvm::StringMap<Value> byName;
    for (Value output : s.outputs())
      byName[nameOf(output)] = output;
    SmallVector<Value> ordered{byName.lookup(s.info.loss)};
    for (const std::string &metric : s.info.metrics)
      ordered.push_back(byName.lookup(metric));
    llvm::json::Object state;
    for (const auto &[input, next] : s.info.state) {
      ordered.push_back(byName.lookup(next));
      state[input] = next;
    }
    s.setOutputs(ordered);
    removeDeadNodes(s.graph.getBody().front());

    ModuleOp module = getOperation();
    setMetadata(module, "recast.state", compact(std::move(state)));
    setMetadata(module, "recast.loss", s.info.loss);
    setMetadata(module, "recast.parameters", compact(llvm::json::Array(s.info.parameters)));
    setMetadata(module, "recast.metrics", compact(llvm::json::Array(s.info.metrics)));
    llvm::json::Object renamed;
    for (const auto &[name, own] : s.info.renamed)
      renamed[name] = own;
    if (!renamed.empty())
      setMetadata(module, "recast.renamed", compact(std::move(renamed)));
    s.graph->removeAttr("train.step");
  }

  // What only outputs that are gone have used: logits, gradients of earlier stages.
  static void removeDeadNodes(Block &block) {
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (!op.hasTrait<OpTrait::IsTerminator>() && op.use_empty() && (isNode(&op) || isa<InitializerOp>(op)))
        op.erase();
      else
        for (Region &body : op.getRegions())
          removeDeadNodes(body.front());
  }
};

} // namespace
} // namespace recast
