#include "passes/step/ParameterGroups.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/ADT/STLExtras.h"
#include <cmath>

namespace recast::step {

llvm::Expected<std::vector<FactorRule>> readFactors(llvm::StringRef flag, llvm::ArrayRef<std::string> entries) {
  std::vector<FactorRule> rules;
  for (llvm::StringRef entry : entries) {
    auto [glob, number] = entry.rsplit('=');
    double factor;
    if (glob.empty() || number.getAsDouble(factor) || !std::isfinite(factor) || factor < 0)
      return llvm::createStringError(flag + "=" + entry + ": GLOB=FACTOR is needed, FACTOR a number from 0 on");
    rules.push_back({glob.str(), factor, ("--" + flag + "=" + entry).str()});
  }
  return rules;
}

llvm::Expected<std::vector<double>> factorsOf(llvm::ArrayRef<std::string> parameters,
                                              llvm::ArrayRef<FactorRule> rules) {
  std::vector<double> factors(parameters.size(), 1);
  std::vector<bool> isDecided(parameters.size());
  for (const FactorRule &rule : rules) {
    bool matched = false;
    for (auto [i, name] : llvm::enumerate(parameters)) {
      if (!gradient::matchesGlob(rule.glob, name))
        continue;
      matched = true;
      if (!isDecided[i])
        factors[i] = rule.factor;
      isDecided[i] = true;
    }
    if (!matched)
      return llvm::createStringError(rule.text + " matches no trained parameter ('recast-inspect MODEL --trainable' " +
                                     "lists them)");
  }
  return factors;
}

} // namespace recast::step
