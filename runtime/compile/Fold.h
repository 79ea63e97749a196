// Operations whose results are known before the first step.
#pragma once
#include "runtime/compile/Unit.h"

namespace recast::compile {

/// Results with more elements than this stay steps, unless they are a constant's elements in another shape, or one
/// value repeated: folded values take memory for as long as the plan lives.
inline constexpr int64_t kFoldElems = 1 << 16;

/// Evaluates `op` where all that its results depend on is known; then its results are constants of unit.values, or it
/// has no uses any more. Never folds what draws random numbers. Precondition: result types are inferred.
void fold(Unit &unit, mlir::Operation *op);

} // namespace recast::compile
