// Whether a plan makes sense: asked of plans that do not come from the compiler in the same process.
#pragma once
#include "runtime/plan/Plan.h"

namespace recast {

/// An error where an index leads nowhere, sizes do not agree, something leaves the arena, or is larger than any memory.
/// Attributes are the kernels' to check.
Status checkPlan(const Plan &plan);

/// The part of it that other checks of a buffer rest on: an element type that is one, and sizes that memory can hold.
Status checkType(const Buffer &buffer);

/// An error where this machine lacks what machine code was generated for: a level of the x86-64 ABI,
/// "x86-64-v3" (AVX2, FMA, F16C) or "x86-64-v4" (AVX512).
Status checkTarget(std::string_view target);

} // namespace recast
