// What the files of the train family share.
#pragma once
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"

namespace recast::reference {

// The tables that trainEntries() concatenates.
std::span<const Entry> optimizerEntries();
std::span<const Entry> scalingEntries();
std::span<const Entry> softmaxGradientEntries();
std::span<const Entry> fp8Entries();
std::span<const Entry> precisionEntries();

/// A refusal that says which type was not expected.
inline std::string unsupported(DType type) { return std::string(name(type)) + " is not supported"; }

} // namespace recast::reference
