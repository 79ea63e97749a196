#include "passes/Passes.h"
#include "passes/verify/Verify.h"
#include "llvm/ADT/StringExtras.h"

namespace recast {
#define GEN_PASS_DEF_VERIFYTRAINING
#include "passes/Passes.h.inc"

namespace {

struct VerifyTrainingPass : impl::VerifyTrainingBase<VerifyTrainingPass> {
  using VerifyTrainingBase::VerifyTrainingBase;

  void runOnOperation() override {
    verify::Report report = verify::verifyTraining(getOperation());
    for (const verify::Finding &finding : report.findings) {
      if (llvm::is_contained(except, verify::nameOf(finding.rule)))
        continue;
      mlir::InFlightDiagnostic error = mlir::emitError(getOperation().getLoc());
      error << verify::nameOf(finding.rule) << ": " << finding.text;
      error.attachNote() << llvm::join(finding.chain, " -> ");
      signalPassFailure();
    }
    markAllAnalysesPreserved();
  }
};

} // namespace
} // namespace recast
