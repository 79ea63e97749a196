// Fetches ahead of their readers, for machines that copy while they compute; and what a schedule takes there.
#pragma once
#include "passes/checkpoint/remat/Problem.h"

namespace recast::remat {

/// The schedule with each fetch so early that its copy, and those after it, end before what it brings is read, as far
/// as that needs no higher peak. Copies run one after another beside the nodes, whose costs are time in the same unit.
Schedule hoistFetches(const Problem &problem, const Schedule &schedule);

/// When all runs have ended. Where copies overlap they go one after another, in the order of the schedule, beside the
/// nodes: a copy to the host begins when the tensor is written, one back not before the node ahead of it has ended. A
/// node waits for what is fetched for it, and for copies to the host of tensors that were read for the last time before
/// it, whose memory it may take. Else it is Usage::cost.
int64_t timeOf(const Problem &problem, const Schedule &schedule);

} // namespace recast::remat
