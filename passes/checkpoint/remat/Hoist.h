// Fetches ahead of their readers, for machines that copy while they compute.
#pragma once
#include "passes/checkpoint/remat/Problem.h"

namespace recast::remat {

/// The schedule with each fetch so early that its copy, and those after it, end before what it brings is read, as far
/// as that needs no higher peak. Copies run one after another beside the nodes, whose costs are time in the same unit.
Schedule hoistFetches(const Problem &problem, const Schedule &schedule);

} // namespace recast::remat
