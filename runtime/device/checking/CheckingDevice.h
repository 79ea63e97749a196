// A device on the host that checks every command of a CUDA plan: kernels run by the emulation, and products in plain
// loops. What CUDA would let pass silently is an error that names the step:
// - two accesses of the same memory, one of them writing, that no stream and no event brings into an order;
// - a read of what nobody has written, or of what another buffer has been written over since;
// - memory outside of what was allocated;
// - products that cuBLASLt refuses: leading dimensions, types, alignment (cuBLAS documentation, cublasLtMatmul);
// - whatever the emulation finds in kernels (runtime/kernels/cuda/emulation/Emulation.h).
#pragma once
#include "runtime/device/Device.h"
#include "runtime/kernels/cuda/emulation/Generated.h"
#include <array>

namespace recast {

class CheckingDevice final : public Device {
public:
  CheckingDevice();
  ~CheckingDevice() override;
  Result<std::byte *> allocate(size_t bytes, const std::string &what) override;
  /// Generated kernels are host code, a CodeObject::SharedObject whose target is kEmulatedTarget.
  Status load(std::span<const CodeObject> code) override;
  Status upload(Stream stream, const Access &to, const void *from) override;
  Status download(Stream stream, void *to, const Access &from) override;
  Status issue(Stream stream, const Command &command) override;
  Status record(Stream stream, int event) override;
  Status wait(Stream stream, int event) override;
  Status synchronize() override;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
};

inline constexpr std::string_view kEmulatedTarget = "emulated";

} // namespace recast
