// Schedules to choose from, for a budget that only the runtime's placement of all tensors decides.
#pragma once
#include "passes/checkpoint/remat/Policies.h"
#include "passes/checkpoint/remat/Solver.h"

namespace recast::remat {

struct Candidate {
  Schedule schedule;
  Usage usage; ///< Its cost is timeOf().
};

/// Schedules from cheap to dear, each with a lower peak than the one before and than the plain one; the last has the
/// lowest peak that was found. The same ones whatever budget is asked for, so that a larger budget never costs more.
/// Effort is
/// that of `options` in all; with fetches twice, and where copies overlap four times that.
std::vector<Candidate> candidates(const Problem &problem, const Roles &roles, const SolverOptions &options);

} // namespace recast::remat
