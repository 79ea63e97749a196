#include "runtime/kernels/cuda/emulation/Generated.h"

namespace recast::cuda::emulation {

Result<std::unique_ptr<GeneratedKernels>> GeneratedKernels::open(const std::string &object) {
  Result<SharedObject> opened = SharedObject::open(object);
  if (!opened)
    return opened.status();
  return std::unique_ptr<GeneratedKernels>(new GeneratedKernels(std::move(*opened)));
}

std::unique_ptr<Kernel> GeneratedKernels::find(const std::string &name, size_t pointers, int threads) const {
  void *symbol = object.find(name);
  if (!symbol)
    return nullptr;
  return std::make_unique<Kernel>(
      Kernel{name, threads, pointers * sizeof(void *), reinterpret_cast<void (*)(const void *)>(symbol)});
}

} // namespace recast::cuda::emulation

// The device's functions, by the names of runtime/fusion/GpuEmit.h.
extern "C" {
int32_t recast_gpu_thread() { return recast::cuda::emulation::threadIndex(); }
int64_t recast_gpu_block() { return recast::cuda::emulation::blockIndex(); }
int64_t recast_gpu_blocks() { return recast::cuda::emulation::gridBlocks(); }
void recast_gpu_sync() { recast::cuda::emulation::syncThreads(0); }
void recast_gpu_sync_warp() { recast::cuda::emulation::syncWarp(); }
int32_t recast_gpu_shuffle(int32_t value, int32_t lanes) {
  using namespace recast::cuda::emulation;
  return static_cast<int32_t>(shuffle(static_cast<uint32_t>(value), lane() ^ lanes));
}
void *recast_gpu_shared() {
  static const char tag = 0;
  return recast::cuda::emulation::shared(&tag, 64, 16);
}
}
