#include "ir/onnx/Builder.h"
#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_TOINFERENCE
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct ToInferencePass : impl::ToInferenceBase<ToInferencePass> {
  using ToInferenceBase::ToInferenceBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    auto lossValue = gradient::findLoss(s.graph, loss);
    if (failed(lossValue))
      return signalPassFailure();
    forgetDeclaredTypes(s.graph);
    SmallVector<Value> kept;
    for (Value output : s.outputs())
      if (output != *lossValue)
        kept.push_back(output);
    if (kept.empty()) {
      s.graph.emitError() << "the loss '" << nameOf(*lossValue) << "' is the only output: without it nothing is left";
      return signalPassFailure();
    }
    s.setOutputs(kept);
    for (Operation &op : llvm::make_early_inc_range(s.graph.getBody().front())) {
      if (isa<BatchNormalizationOp>(op))
        inferenceNorm(s, &op);
      else if (isa<DropoutOp>(op))
        inferenceDropout(&op);
    }
    dropUnused(s.graph);
  }

  // Only the first output stays; opset 14 and later say training_mode.
  void inferenceNorm(step::StepGraph &s, Operation *op) {
    Node node(op);
    if (node.getInt("training_mode", 0) == 0)
      return;
    SmallVector<NamedAttribute> attrs;
    for (NamedAttribute attr : op->getAttrs())
      if (StringRef name = attr.getName().strref(); name != "training_mode" && !name.starts_with("onnx."))
        attrs.push_back(attr);
    s.b.before(op);
    Operation *made = s.b.node("BatchNormalization", op->getOperands(), 1, attrs);
    if (!node.name().empty())
      made->setAttr("onnx.name", op->getAttr("onnx.name"));
    std::string name = nameOf(node.output()).str();
    node.output().replaceAllUsesWith(made->getResult(0));
    for (unsigned i = 1; i < node.numOutputs(); ++i)
      if (i <= 2 && !isAbsent(node.output(i)))
        node.output(i).replaceAllUsesWith(node.input(i + 2)); // the statistics stay what they are
    op->erase();
    setName(made->getResult(0), name);
  }

  // The input; masks are read by gradients only, which are not here.
  static void inferenceDropout(Operation *op) { op->getResult(0).replaceAllUsesWith(op->getOperand(0)); }

  static void dropUnused(GraphOp graph) {
    Block &block = graph.getBody().front();
    for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
      if (!op.hasTrait<OpTrait::IsTerminator>() && op.use_empty() && (isNode(&op) || isa<InitializerOp>(op)))
        op.erase();
    // Inputs that only the loss has read: labels.
    DictionaryAttr info = graph.getInfo();
    SmallVector<StringRef> names = stringsIn(info, "inputs"), kept;
    BitVector unused(block.getNumArguments());
    for (BlockArgument argument : block.getArguments())
      if (argument.use_empty())
        unused.set(argument.getArgNumber());
      else
        kept.push_back(names[argument.getArgNumber()]);
    if (auto defaults = info.getAs<ArrayAttr>("defaults")) {
      SmallVector<Attribute> left;
      for (auto [i, value] : llvm::enumerate(defaults))
        if (!unused[i])
          left.push_back(value);
      info = withEntry(info, "defaults", ArrayAttr::get(graph.getContext(), left));
    }
    block.eraseArguments(unused);
    graph.setInfoAttr(withEntry(info, "inputs", stringArray(graph.getContext(), kept)));
  }
};

} // namespace
} // namespace recast
