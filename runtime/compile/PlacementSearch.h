// Exact placement in an arena of a given size: a search that ends with a placement or with the proof that there is
// none.
#pragma once
#include "runtime/compile/Placement.h"

namespace recast::placement {

enum class Fit { Found, Impossible, OutOfNodes };

/// Looks for a placement of at most `capacity` bytes. `nodes` is the effort left, in decisions: it is lowered by what
/// was used, so the result depends on the problem and on no clock. `solution` is written where one was found.
Fit fit(const Problem &problem, size_t capacity, uint64_t &nodes, Solution &solution);

/// The smallest arena that at most `nodes` decisions find: `start` (a sound solution) or better, and the optimum where
/// the search could end.
Solution minimise(const Problem &problem, Solution start, uint64_t nodes);

} // namespace recast::placement
