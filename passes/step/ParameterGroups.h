// Groups of parameters by name: factors of the learning rate and of the weight decay.
#pragma once
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"
#include <string>
#include <vector>

namespace recast::step {

/// GLOB=FACTOR. `text` is how the user gave it, for errors.
struct FactorRule {
  std::string glob;
  double factor;
  std::string text;
};

/// Reads GLOB=FACTOR entries of the flag `--<flag>`. An error, to be printed after "--", for anything but a factor that
/// is finite and not negative.
llvm::Expected<std::vector<FactorRule>> readFactors(llvm::StringRef flag, llvm::ArrayRef<std::string> entries);

/// The factor of each parameter: that of the first rule whose glob matches, else 1. An error for a glob that matches
/// none of them.
llvm::Expected<std::vector<double>> factorsOf(llvm::ArrayRef<std::string> parameters, llvm::ArrayRef<FactorRule> rules);

} // namespace recast::step
