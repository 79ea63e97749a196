#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_UPDATEFP8SCALES
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct UpdateFp8ScalesPass : impl::UpdateFp8ScalesBase<UpdateFp8ScalesPass> {
  using UpdateFp8ScalesBase::UpdateFp8ScalesBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    Value skip = s.find(s.info.skip);
    for (const step::Fp8Tensor &tensor : s.info.fp8) {
      Value history = s.find(tensor.history), scale = s.find(tensor.scale);
      s.b.setScope(tensor.scale);
      Operation *op = s.b.node("train.update_amax", {skip, history, scale, s.find(tensor.amax)}, 2,
                               {s.b.attr("to", tensor.format), s.b.attr("algorithm", StringRef(algorithm)),
                                s.b.attr("margin", margin.getValue()), s.b.attr("nan", StringRef(nan))});
      s.update(history, op->getResult(0));
      s.update(scale, op->getResult(1));
    }
    s.b.setScope("");
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }
};

} // namespace
} // namespace recast
