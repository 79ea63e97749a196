// An order of operators that needs less memory. Plain structs, no MLIR.
#pragma once
#include "passes/checkpoint/remat/Problem.h"

namespace recast::remat {

/// What must run before what, beside writers before readers.
using Precedences = std::vector<std::pair<int, int>>;

/// The problem's nodes in an order of lower peak, or of less memory over time at the same peak; as they are where none
/// is found. Takes n log n time for n nodes, reads and precedences.
std::vector<int> orderForMemory(const Problem &problem, const Precedences &precedences);

/// The problem with its nodes in another order.
Problem reordered(const Problem &problem, const std::vector<int> &order);

} // namespace recast::remat
