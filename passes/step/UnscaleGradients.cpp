#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_UNSCALEGRADIENTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct UnscaleGradientsPass : impl::UnscaleGradientsBase<UnscaleGradientsPass> {
  using UnscaleGradientsBase::UnscaleGradientsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    SmallVector<Value> gradients = s.gradients();
    // The cast to fp8 saturates: an infinite gradient shows in the amax alone.
    SmallVector<Value> amaxes;
    for (const step::Fp8Tensor &tensor : s.info.fp8)
      if (tensor.format == onnx::TensorProto::FLOAT8E5M2)
        amaxes.push_back(s.find(tensor.amax));
    Value foundInf;
    if (isa<train::ScaledType>(gradients.front().getType())) {
      SmallVector<Value> operands = gradients;
      for (Value amax : amaxes) // of scaled gradients, and checked with them
        operands.push_back(s.b.node("train.mark_scaled", {amax}));
      operands.push_back(s.find(s.info.lossScale));
      Operation *unscale = s.b.node("train.unscale", operands, static_cast<unsigned>(operands.size()));
      SmallVector<Value> unscaled(unscale->getResults().take_front(gradients.size()));
      for (auto [value, parameter] : llvm::zip(unscaled, s.info.parameters))
        setName(value, s.names.unique("grad." + parameter));
      s.setGradients(unscaled);
      foundInf = unscale->getResults().back();
    } else {
      SmallVector<Value> checked = gradients;
      checked.append(amaxes);
      foundInf = s.b.node("train.check_finite", checked);
    }
    setName(foundInf, s.claim("found_inf"));
    s.info.foundInf = nameOf(foundInf).str();
    s.info.metrics.push_back(s.info.foundInf);
    s.addOutput(foundInf);
    s.info.skip = s.info.foundInf;
    if (!s.info.tokens.empty()) {
      // A window without a single token has nothing to learn from.
      Value tokens = s.find(s.info.tokens), zero = s.b.scalarLike(tokens, 0);
      Value isEmpty = s.b.node("Not", {s.b.node("Greater", {tokens, zero})});
      setName(isEmpty, s.names.unique("no_tokens"));
      Value skip = s.b.node("Or", {foundInf, isEmpty});
      setName(skip, s.names.unique("skip"));
      s.info.skip = nameOf(skip).str();
    }
    s.finish();
  }
};

} // namespace
} // namespace recast
