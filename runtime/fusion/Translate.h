// From operators to the values of a region.
#pragma once
#include "runtime/fusion/RegionBuilder.h"
#include "runtime/kernels/Kernel.h"

namespace recast::fusion {

/// Adds what the operator computes to `b`. `in` are values, one an operand, -1 where it is absent or only its constant
/// is read (readsValue). False, and a reason, where a region cannot hold the operator; then `b` may have values that
/// nothing reads.
bool translate(const StepSpec &spec, RegionBuilder &b, std::span<const int> in, std::vector<int> &out,
               std::string &reason);
/// True where the operator has a form; translate() may still refuse its types or attributes.
bool hasForm(const StepSpec &spec);
/// False for operands that are shapes or axes: they must be constants.
bool readsValue(const StepSpec &spec, size_t operand);

} // namespace recast::fusion
