#include "tools/recast-operators/Gaps.h"

namespace recast::tools {

namespace {

constexpr llvm::StringLiteral kControlFlow = "gradients through control flow are refused by name";

constexpr llvm::StringLiteral kNotOnCuda = "refused by name when a CUDA plan is compiled";
constexpr llvm::StringLiteral kOnlyInSteps = "a step draws from its key instead; elsewhere refused by name";
constexpr llvm::StringLiteral kHostDecides = "the host does not wait for a value";

constexpr Gap kGaps[] = {
    {"If", "gradient", "all", kControlFlow},
    {"Loop", "gradient", "all", kControlFlow},
    {"Scan", "gradient", "all", kControlFlow},
    {"Multinomial", "CPU kernel", "all", "refused by name"},
    {"RandomNormal", "CPU kernel", "all", kOnlyInSteps},
    {"RandomNormalLike", "CPU kernel", "all", kOnlyInSteps},
    {"RandomUniform", "CPU kernel", "all", kOnlyInSteps},
    {"RandomUniformLike", "CPU kernel", "all", kOnlyInSteps},
    {"If", "CUDA", "all", kHostDecides},
    {"Loop", "CUDA", "all", kHostDecides},
    {"Multinomial", "CUDA", "all", kNotOnCuda},
    {"RandomNormal", "CUDA", "all", kOnlyInSteps},
    {"RandomNormalLike", "CUDA", "all", kOnlyInSteps},
    {"RandomUniform", "CUDA", "all", kOnlyInSteps},
    {"RandomUniformLike", "CUDA", "all", kOnlyInSteps},
};

} // namespace

llvm::ArrayRef<Gap> declaredGaps() { return kGaps; }

} // namespace recast::tools
