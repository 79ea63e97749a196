// Memory aligned for vector loads and for the libraries' kernels.
#pragma once
#include "runtime/plan/Plan.h"
#include <memory>
#include <new>
#include <sys/mman.h>

namespace recast {

/// Uninitialised bytes; null where the system has not that much memory. An empty buffer has an address, too.
/// Large ones ask Linux for huge pages: an address of each 4 KiB page of a large tensor costs a walk of the page table.
class AlignedBuffer {
public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes)
      : memory(allocate(bytes ? bytes : 1, alignmentOf(bytes)), Free{alignmentOf(bytes)}) {
#ifdef MADV_HUGEPAGE
    if (memory && alignmentOf(bytes) == kHugePage)
      ::madvise(memory.get(), bytes / kHugePage * kHugePage, MADV_HUGEPAGE); // Refused: small pages work, too.
#endif
  }
  std::byte *data() const { return memory.get(); }

private:
  static constexpr size_t kHugePage = size_t(2) << 20, kLeastHuge = 2 * kHugePage;
  static size_t alignmentOf(size_t bytes) { return bytes < kLeastHuge ? size_t(kAlignmentBytes) : kHugePage; }
  static std::byte *allocate(size_t bytes, size_t alignment) {
    return static_cast<std::byte *>(::operator new(bytes, std::align_val_t(alignment), std::nothrow));
  }
  struct Free {
    size_t alignment;
    void operator()(std::byte *bytes) const { ::operator delete(bytes, std::align_val_t(alignment)); }
  };
  std::unique_ptr<std::byte, Free> memory{nullptr, Free{size_t(kAlignmentBytes)}};
};

} // namespace recast
