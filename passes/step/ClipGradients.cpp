#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_CLIPGRADIENTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct ClipGradientsPass : impl::ClipGradientsBase<ClipGradientsPass> {
  using ClipGradientsBase::ClipGradientsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    SmallVector<Value> gradients = s.gradients();
    Type f64 = Float64Type::get(&getContext());
    auto rename = [&](ResultRange values) {
      for (auto [value, parameter] : llvm::zip(values, s.info.parameters))
        setName(value, s.names.unique("grad.clipped." + parameter));
      s.setGradients(SmallVector<Value>(values.take_front(gradients.size())));
    };
    SmallVector<NamedAttribute> order;
    if (normType != 2)
      order.push_back(s.b.attr("norm_type", normType));
    std::string normName = s.claim("grad_norm"); // before the operator of that name takes it
    Value norm;
    if (maxNorm >= 0) {
      SmallVector<Value> operands = gradients;
      operands.push_back(s.b.scalar(f64, maxNorm));
      Operation *clip = s.b.node("train.clip_grad_norm", operands, static_cast<unsigned>(operands.size()), order);
      norm = clip->getResults().back();
      rename(clip->getResults());
    } else {
      norm = s.b.node("train.grad_norm", gradients, order);
    }
    if (maxValue >= 0) {
      SmallVector<Value> operands = s.gradients();
      operands.push_back(s.b.scalar(f64, maxValue));
      rename(s.b.node("train.clip_grad_value", operands, static_cast<unsigned>(gradients.size()))->getResults());
    }
    setName(norm, normName);
    s.info.metrics.push_back(nameOf(norm).str());
    s.addOutput(norm);
    s.finish();
  }
};

} // namespace
} // namespace recast
