#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_INSERTLOSSSCALE
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct InsertLossScalePass : impl::InsertLossScaleBase<InsertLossScalePass> {
  using InsertLossScaleBase::InsertLossScaleBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    auto lossValue = gradient::findLoss(s.graph, s.info.loss.empty() ? loss.getValue() : s.info.loss);
    if (failed(lossValue))
      return signalPassFailure();
    Type f32 = Float32Type::get(&getContext());
    Value scale = s.addState("loss_scale", splatTensor(RankedTensorType::get({}, f32), init));
    Value scaled = s.b.node("train.scale_loss", {*lossValue, scale});
    s.info.loss = nameOf(*lossValue).str();
    s.info.objective = nameOf(scaled).str();
    s.info.lossScale = s.name(scale);
    s.finish();
  }
};

} // namespace
} // namespace recast
