// Kernels that were generated for a GPU (runtime/fusion/GpuCode.h), as host code. The program that opens them must
// export its symbols: they call the emulation by name.
#pragma once
#include "runtime/kernels/cuda/emulation/Emulation.h"
#include "runtime/plan/SharedObject.h"
#include <memory>

namespace recast::cuda::emulation {

class GeneratedKernels {
public:
  /// `object`: the bytes of a shared object.
  static Result<std::unique_ptr<GeneratedKernels>> open(const std::string &object);
  /// Null where there is no such entry. `pointers` is the number of its arguments; `name` must outlive the kernel.
  std::unique_ptr<Kernel> find(const std::string &name, size_t pointers, int threads) const;

private:
  explicit GeneratedKernels(SharedObject object) : object(std::move(object)) {}
  SharedObject object;
};

} // namespace recast::cuda::emulation
