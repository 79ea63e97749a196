// Schedules to choose from, for a budget that only the runtime's placement of all tensors decides.
#pragma once
#include "passes/checkpoint/Policies.h"

namespace recast::remat {

/// Schedules from cheap to dear, each with a lower peak than the one before and than the plain one.
std::vector<Schedule> candidates(const Problem &problem, const Roles &roles);

/// The node with the most bytes of inputs, outputs and workspace, and those bytes: no schedule needs less.
std::pair<int, int64_t> largestNode(const Problem &problem);

} // namespace recast::remat
