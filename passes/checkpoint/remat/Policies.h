// Fixed rules of what to keep and what to compute again: the known ones, beside the solver.
#pragma once
#include "passes/checkpoint/remat/Problem.h"
#include <string>

namespace recast::remat {

/// What rules ask of the nodes, one flag each.
struct Roles {
  std::vector<char> isForward; ///< The loss depends on it.
  std::vector<char> isCheap;   ///< Costs little beside the memory that its results take.
};

/// Each forward operator whose results are not kept runs again, once, just before the backward first needs it. What
/// cannot repeat is kept in any case. `isKept`: one flag a tensor.
Schedule recomputeJustInTime(const Problem &problem, const Roles &roles, std::vector<char> isKept);

/// Stretches of `count` forward operators; what goes from one to a later one is kept, and so is all of the last one,
/// whose backward comes at once.
Schedule everyN(const Problem &problem, const Roles &roles, int count);

/// sqrt(n) stretches (Chen et al. 2016, arXiv:1604.06174) of about equal bytes, cut where little goes across.
Schedule sqrtSegments(const Problem &problem, const Roles &roles);

/// Recomputes cheap operators only (Korthikanti et al. 2022, arXiv:2205.05198): of stretches between narrow places the
/// fewest bytes are kept from which cheap operators give what the backward reads.
Schedule selective(const Problem &problem, const Roles &roles);

/// Keeps the results of the nodes that are marked, and those after the last of them; recomputes the rest.
Schedule keepOnly(const Problem &problem, const Roles &roles, const std::vector<char> &isMarked);

} // namespace recast::remat
