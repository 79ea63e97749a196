#pragma once
#include "runtime/kernels/cuda/source/Cuda.h"

namespace recast::cuda {

struct FaultyArgs {
  const uint32_t *src;
  uint32_t *dst;
};
std::span<const emulation::Kernel> faultyKernels();

} // namespace recast::cuda
