// Memory aligned for vector loads and for the libraries' kernels.
#pragma once
#include "runtime/plan/Plan.h"
#include <memory>
#include <new>

namespace recast {

/// Uninitialised bytes; null where the system has not that much memory. An empty buffer has an address, too.
class AlignedBuffer {
public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes)
      : memory(static_cast<std::byte *>(
            ::operator new(bytes ? bytes : 1, std::align_val_t(kAlignmentBytes), std::nothrow))) {}
  std::byte *data() const { return memory.get(); }

private:
  struct Free {
    void operator()(std::byte *bytes) const { ::operator delete(bytes, std::align_val_t(kAlignmentBytes)); }
  };
  std::unique_ptr<std::byte, Free> memory;
};

} // namespace recast
