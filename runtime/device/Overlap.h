// What ranks reduce, known as early as possible: so that its reduction goes on beside the rest of the backward.
#pragma once
#include "runtime/device/Device.h"

namespace recast::device {

/// Moves work that only leads to one of `results` (the conversion and the weighting of a gradient, the copy of its sum
/// out of the last micro-batch) to where all that it comes after has been done. Returns for each result after how many
/// pieces of `work` it is known, at least 1. What comes out follows from the work's order alone, not from addresses.
std::vector<size_t> finishEarly(std::vector<Work> &work, std::span<const MemoryUse> results);

} // namespace recast::device
