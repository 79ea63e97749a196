#include "passes/Passes.h"
#include "passes/precision/CastPlacement.h"

namespace recast {
#define GEN_PASS_DEF_AUTOCAST
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct AutocastPass : impl::AutocastBase<AutocastPass> {
  using AutocastBase::AutocastBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    auto policy = precision::Policy::load(type, this->policy);
    if (!policy) {
      emitError(UnknownLoc::get(&getContext())) << llvm::toString(policy.takeError());
      return signalPassFailure();
    }
    Builder b(&getContext());
    precision::CastPlacement placement(graph, *policy, type == "f16" ? Type(b.getF16Type()) : Type(b.getBF16Type()));
    if (failed(placement.run()))
      return signalPassFailure();
    numCasts += placement.numCasts();
    numLow += placement.numLow();
    for (const std::string &name : policy->unusedNames())
      emitWarning(UnknownLoc::get(&getContext()))
          << "--policy=" << this->policy << ": the rule for the name '" << name << "' decides no node";
  }
};

} // namespace
} // namespace recast
