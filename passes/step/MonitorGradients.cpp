#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_MONITORGRADIENTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct MonitorGradientsPass : impl::MonitorGradientsBase<MonitorGradientsPass> {
  using MonitorGradientsBase::MonitorGradientsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    SmallVector<Value> gradients = s.gradients();
    // f16 has 5 bits of exponent; bf16 and the fp8 presets' base type have those of f32.
    double tiny = type == "f16" ? 0x1p-14 : 0x1p-126;
    Type f64 = Float64Type::get(&getContext());
    s.b.setScope("monitor");
    Value threshold = s.b.scalar(f64, tiny);
    if (!s.info.lossScale.empty())
      threshold = s.b.div(threshold, s.b.cast(s.find(s.info.lossScale), f64));
    for (const std::string &group : groups) {
      SmallVector<std::pair<std::string, SmallVector<Value>>> members;
      if (group == "each") {
        for (auto [name, gradient] : llvm::zip(s.info.parameters, gradients))
          members.push_back({name, {gradient}});
      } else {
        SmallVector<Value> found;
        for (auto [name, gradient] : llvm::zip(s.info.parameters, gradients))
          if (gradient::matchesGlob(group, name))
            found.push_back(gradient);
        if (found.empty()) {
          s.graph.emitError() << "--monitor=" << group << " matches no trained parameter";
          return signalPassFailure();
        }
        members.push_back({group, found});
      }
      for (auto &[label, values] : members) {
        values.push_back(threshold);
        Operation *op = s.b.node("train.grad_stats", values, 4);
        constexpr llvm::StringLiteral kinds[] = {"grad_norm.", "grad_amax.", "grad_nonfinite.", "grad_underflow."};
        for (auto [kind, value] : llvm::zip(kinds, op->getResults())) {
          setName(value, s.claim((kind + StringRef(label)).str()));
          s.info.metrics.push_back(nameOf(value).str());
          s.addOutput(value);
        }
      }
    }
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }
};

} // namespace
} // namespace recast
