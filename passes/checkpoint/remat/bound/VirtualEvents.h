// Where a virtual event helps. Private to LowerBound.
#pragma once
#include "passes/checkpoint/remat/bound/Prover.h"

namespace recast::remat {

/// The spans that matter: from the first event, to the end of time, and those of virtual events between the first runs
/// beside them.
std::vector<Span> spansOf(const std::vector<Event> &events);

/// The events with virtual ones, and what first runs these need, where that bounds better. Raises `bound` to the best
/// that was proven on the way.
std::vector<Event> withVirtualEvents(const Problem &problem, int64_t target, std::vector<Event> events, Work &work,
                                     Bound &bound);

} // namespace recast::remat
