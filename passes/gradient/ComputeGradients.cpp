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
    auto lossValue = gradient::findLoss(s.graph, s.info.loss.empty() ? loss.getValue() : s.info.loss);
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

    s.graph->removeAttr(gradient::kParameters);
    SmallVector<Operation *> marked;
    LogicalResult done = markPadding(s, parameters, marked);
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

  // Look-ups in the tables that --padding-index names, and in those that show their padding row.
  LogicalResult markPadding(step::StepGraph &s, ArrayRef<Value> parameters, SmallVectorImpl<Operation *> &marked) {
    llvm::DenseSet<Value> decided;
    auto mark = [&](Value table, int64_t row) {
      decided.insert(table);
      for (Operation *user : table.getUsers())
        if (isa<GatherOp>(user) && user->getOperand(0) == table) {
          user->removeAttr(gradient::kPaddingIndex);
          if (row < 0)
            continue;
          user->setAttr(gradient::kPaddingIndex, IntegerAttr::get(IntegerType::get(&getContext(), 64), row));
          marked.push_back(user);
        }
    };
    for (const std::string &entry : paddingIndex) {
      auto [glob, number] = StringRef(entry).rsplit('=');
      int64_t row = -1;
      if (number != "none" && (number.getAsInteger(10, row) || row < 0))
        return s.graph.emitError() << "--padding-index=" << entry
                                   << ": GLOB=N is needed, N a row of the table, or GLOB=none";
      size_t before = decided.size();
      for (auto gather : s.graph.getBody().front().getOps<GatherOp>())
        if (gradient::matchesGlob(glob, nameOf(gather->getOperand(0))) && !decided.contains(gather->getOperand(0)))
          mark(gather->getOperand(0), row);
      if (decided.size() == before)
        return s.graph.emitError() << "--padding-index=" << entry << ": no Gather reads a tensor of that name";
    }
    // Models of other forms say it at each look-up; a negative row is none.
    llvm::DenseSet<Value> declared;
    for (auto gather : s.graph.getBody().front().getOps<GatherOp>()) {
      auto row = gather->getAttrOfType<IntegerAttr>(gradient::kPaddingIndex);
      if (!row || decided.contains(gather->getOperand(0)))
        continue;
      declared.insert(gather->getOperand(0));
      if (row.getInt() < 0)
        gather->removeAttr(gradient::kPaddingIndex);
      else
        marked.push_back(gather);
    }
    decided.insert(declared.begin(), declared.end());
    for (Value table : parameters) {
      auto row = decided.contains(table) ? std::nullopt : gradient::paddingRow(table);
      if (!row)
        continue;
      mark(table, *row);
      s.graph.emitRemark() << "row " << *row << " of '" << nameOf(table) << "' holds only zeros: it is taken for the "
                           << "padding_idx of an embedding, and look-ups give it no gradient; to train it, say "
                           << "--padding-index=" << nameOf(table) << "=none";
    }
    return success();
  }
};

} // namespace
} // namespace recast
