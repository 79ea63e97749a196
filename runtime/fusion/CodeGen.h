// Machine code of regions for the CPU that this runs on.
#pragma once
#include "runtime/fusion/Schedule.h"
#include "runtime/plan/Status.h"

namespace recast::fusion {

/// A region that is to be compiled. Functions are called by name and phase: see entryName.
struct Kernel {
  const Region *region;
  const Program *program;
  std::string name; ///< Equal for equal regions.
};

/// "" where regions can be compiled for this processor; else the reason.
std::string whyNoCode();
/// The level of the x86-64 ABI that code is compiled for: "x86-64-v4" or "x86-64-v3".
std::string hostTarget();
/// A name made of everything that the code depends on.
std::string contentName(const Region &region, const Program &program);
inline std::string entryName(const std::string &name, size_t phase) { return name + "_" + std::to_string(phase); }

/// A shared object with the functions of all kernels, which may be there more than once. What was compiled before comes
/// from the cache (Cache.h).
Result<std::string> compileKernels(std::span<const Kernel> kernels);

/// Links object files into one shared object: its bytes.
Result<std::string> linkObjects(const std::vector<std::string> &objects);

} // namespace recast::fusion
