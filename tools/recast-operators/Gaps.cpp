#include "tools/recast-operators/Gaps.h"

namespace recast::tools {

namespace {

constexpr llvm::StringLiteral kControlFlow = "gradients through control flow are refused by name";

constexpr Gap kGaps[] = {
    {"If", "gradient", "all", kControlFlow},
    {"Loop", "gradient", "all", kControlFlow},
    {"Scan", "gradient", "all", kControlFlow},
    {"LRN", "gradient", "all", "refused by name"},
    {"Resize", "gradient", "all", "refused by name"},
    {"Multinomial", "CPU kernel", "all", "refused by name"},
    {"RandomNormal", "CPU kernel", "all", "refused by name"},
    {"RandomNormalLike", "CPU kernel", "all", "refused by name"},
    {"RandomUniform", "CPU kernel", "all", "refused by name"},
    {"RandomUniformLike", "CPU kernel", "all", "refused by name"},
};

} // namespace

llvm::ArrayRef<Gap> declaredGaps() { return kGaps; }

} // namespace recast::tools
