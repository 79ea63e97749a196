#include "tools/recast-operators/Gaps.h"

namespace recast::tools {

namespace {
constexpr Gap kGaps[] = {
    {"If", "gradient", "all", "refused by name"},
};
} // namespace

llvm::ArrayRef<Gap> declaredGaps() { return kGaps; }

} // namespace recast::tools
