#include "passes/verify/Verify.h"
#include "tools/recast-inspect/Inspect.h"

using namespace mlir;
namespace recast::inspect {

llvm::json::Object verify(ModuleOp module) {
  recast::verify::Report report = recast::verify::verifyTraining(module);
  llvm::json::Array findings;
  for (recast::verify::Finding &finding : report.findings)
    findings.push_back(llvm::json::Object{{"rule", recast::verify::nameOf(finding.rule)},
                                          {"text", std::move(finding.text)},
                                          {"chain", llvm::json::Array(finding.chain)}});
  return llvm::json::Object{{"rules", static_cast<int64_t>(recast::verify::kNumRules)},
                            {"parameters", llvm::json::Array(report.parameters)},
                            {"moments", llvm::json::Array(report.moments)},
                            {"gradients", llvm::json::Array(report.gradients)},
                            {"loss_scale", llvm::json::Array(report.scales)},
                            {"finite_check", report.hasCheck},
                            {"findings", std::move(findings)}};
}

void printVerified(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  auto count = [&](StringRef key) { return facts.getArray(key)->size(); };
  size_t gradients = count("parameters") + count("gradients");
  out << "verified: " << *facts.getInteger("rules") << " rules, " << gradients << " gradients, " << count("parameters")
      << " updates, " << count("moments") << " moments";
  for (const llvm::json::Value &scale : *facts.getArray("loss_scale"))
    out << ", loss scale '" << *scale.getAsString() << '\'';
  out << (*facts.getBoolean("finite_check") ? ", finite check" : "") << '\n';
  if (gradients == 0)
    out << "Nothing is trained in this graph: no output is the new value or the gradient of an input\n";
}

} // namespace recast::inspect
