#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_UPDATELOSSSCALE
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct UpdateLossScalePass : impl::UpdateLossScaleBase<UpdateLossScalePass> {
  using UpdateLossScaleBase::UpdateLossScaleBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    MLIRContext *context = &getContext();
    Type f32 = Float32Type::get(context), f64 = Float64Type::get(context), i64 = IntegerType::get(context, 64);
    Value scale = s.find(s.info.lossScale);
    Value goodSteps = s.addState(s.info.lossScale + ".good_steps", splatTensor(RankedTensorType::get({}, i64), 0));
    Operation *op =
        s.b.node("train.update_loss_scale",
                 {s.find(s.info.foundInf), scale, goodSteps, s.b.scalar(f64, growth), s.b.scalar(f64, backoff),
                  s.b.intScalar(interval), s.b.scalar(f32, min), s.b.scalar(f32, max)},
                 2);
    // A step that is skipped for another reason than a non-finite gradient tells nothing about the scale.
    auto unlessEmpty = [&](Value before, Value after) {
      if (s.info.skip == s.info.foundInf)
        return after;
      Value isOther = s.b.node("And", {s.find(s.info.skip), s.b.node("Not", {s.find(s.info.foundInf)})});
      return s.b.node("train.keep_if", {isOther, before, after});
    };
    s.update(scale, unlessEmpty(scale, op->getResult(0)));
    s.update(goodSteps, unlessEmpty(goodSteps, op->getResult(1)));
    s.finish();
  }
};

} // namespace
} // namespace recast
