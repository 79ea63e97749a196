#include "tools/recast-operators/Gaps.h"

namespace recast::tools {

namespace {

constexpr llvm::StringLiteral kControlFlow = "gradients through control flow are refused by name";

constexpr llvm::StringLiteral kNotOnCuda = "refused by name when a CUDA plan is compiled";
constexpr llvm::StringLiteral kHostDecides = "the host does not wait for a value";

constexpr Gap kGaps[] = {
    {"If", "gradient", "all", kControlFlow},
    {"Loop", "gradient", "all", kControlFlow},
    {"Scan", "gradient", "all", kControlFlow},
    {"Multinomial", "CPU kernel", "all", "refused by name"},
    {"RandomNormal", "CPU kernel", "all", "refused by name"},
    {"RandomNormalLike", "CPU kernel", "all", "refused by name"},
    {"RandomUniform", "CPU kernel", "all", "refused by name"},
    {"RandomUniformLike", "CPU kernel", "all", "refused by name"},
    {"If", "CUDA", "all", kHostDecides},
    {"Loop", "CUDA", "all", kHostDecides},
    {"TopK", "CUDA", "1", kNotOnCuda},
    {"Acos", "CUDA", "all", kNotOnCuda},
    {"Acosh", "CUDA", "all", kNotOnCuda},
    {"Asin", "CUDA", "all", kNotOnCuda},
    {"Asinh", "CUDA", "all", kNotOnCuda},
    {"Atan", "CUDA", "all", kNotOnCuda},
    {"Atanh", "CUDA", "all", kNotOnCuda},
    {"BitShift", "CUDA", "all", kNotOnCuda},
    {"Cosh", "CUDA", "all", kNotOnCuda},
    {"Einsum", "CUDA", "all", kNotOnCuda},
    {"Hardmax", "CUDA", "all", kNotOnCuda},
    {"LRN", "CUDA", "all", kNotOnCuda},
    {"LpNormalization", "CUDA", "all", kNotOnCuda},
    {"Mod", "CUDA", "all", kNotOnCuda},
    {"Multinomial", "CUDA", "all", kNotOnCuda},
    {"RandomNormal", "CUDA", "all", kNotOnCuda},
    {"RandomNormalLike", "CUDA", "all", kNotOnCuda},
    {"RandomUniform", "CUDA", "all", kNotOnCuda},
    {"RandomUniformLike", "CUDA", "all", kNotOnCuda},
    {"ReduceProd", "CUDA", "all", kNotOnCuda},
    {"Sinh", "CUDA", "all", kNotOnCuda},
    {"Tan", "CUDA", "all", kNotOnCuda},
};

} // namespace

llvm::ArrayRef<Gap> declaredGaps() { return kGaps; }

} // namespace recast::tools
