// Launches executed as PTX, where the emulation executes host code.
#pragma once
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "tests/ptx/Machine.h"
#include <set>

namespace recast::ptx {

/// The module of cuda::ptxModules() that has the kernel; each is read once.
Result<const Module *> moduleOf(std::string_view kernel);

/// Names of the entries that run() was asked for.
std::set<std::string, std::less<>> &entriesRun();

/// Executes the entry, whose parameters must be the arguments; the ranges are all the memory that there is.
Status run(const Module &module, std::string_view kernel, const cuda::emulation::BoundLaunch &bound, bool reversed);

/// For emulation::create: of a kernel of this program's own modules.
Status runBound(const cuda::emulation::BoundLaunch &bound, bool reversed);

} // namespace recast::ptx
