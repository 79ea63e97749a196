// Kernels that were generated for a GPU (runtime/fusion/GpuCode.h), as host code. The program that opens them must
// export its symbols: they call the emulation by name.
#pragma once
#include "runtime/kernels/cuda/emulation/Emulation.h"
#include <memory>

namespace recast::cuda::emulation {

class GeneratedKernels {
public:
  /// `object`: the bytes of a shared object.
  static Result<std::unique_ptr<GeneratedKernels>> open(const std::string &object);
  ~GeneratedKernels();
  /// Null where there is no such entry. `pointers` is the number of its arguments; `name` must outlive the kernel.
  std::unique_ptr<Kernel> find(const std::string &name, size_t pointers, int threads) const;

private:
  GeneratedKernels(void *handle, int file) : handle(handle), file(file) {}
  void *handle;
  int file; ///< Open as long as the object is: the loader knows objects by their path, which has its number.
};

} // namespace recast::cuda::emulation
