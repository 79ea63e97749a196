// A proof for one event without a linear program, in time that is linear in the graph. Private to LowerBound.
#pragma once
#include "passes/checkpoint/remat/bound/Relaxation.h"

namespace recast::remat {

/// Multipliers of the relaxation's rows, in units of cost for one of the row. The relaxation has one event before the
/// end of time and no inner columns; `price` is the memory row's multiplier, cost for a byte held over that event.
/// Each reading after the event asks for its tensor. What it may be charged is at most what holding the tensor costs,
/// and at most what is left of its writer's cost and, beyond that, of what the writer's inputs can be charged.
std::vector<double> dualAscent(const Problem &problem, const Relaxation &relaxation, double price);

/// The price at which dropping what costs least for a byte makes the event fit; 0: it fits anyway.
double criticalPrice(const Problem &problem, const Relaxation &relaxation);

} // namespace recast::remat
