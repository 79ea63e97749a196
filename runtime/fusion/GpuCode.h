// Regions as PTX, and the same kernels as host code over the emulation.
#pragma once
#include "runtime/fusion/CodeGen.h"
#include "runtime/fusion/GpuEmit.h"

namespace recast::fusion {

/// The oldest architecture that PTX is for: drivers compile it for every later one.
inline constexpr const char *kPtxArchitecture = "sm_80";

/// One PTX module with an entry for each phase of all kernels (gpuLaunches), which may be there more than once. What
/// was compiled before comes from the cache.
Result<std::string> compilePtx(std::span<const Kernel> kernels);

/// CodeObject::target of code for the emulation.
inline constexpr const char *kEmulatedTarget = "emulated";

/// A shared object with, for each phase, `void <entry>(const void *arguments)`: one thread of the kernel, whose device
/// functions (gpu_names) and accesses of memory (LLVM's sanitizer coverage) are calls that the program must answer.
Result<std::string> compileEmulated(std::span<const Kernel> kernels);

/// The functions of f64 that a device has, as LLVM bitcode (device/Wide.cpp).
std::string_view wideBitcode();

} // namespace recast::fusion
