// What is known of each byte that an emulated launch touches: who wrote it last, who read it last.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>

namespace recast::cuda::emulation {

/// One access: by a thread of a block, between which barriers of the block and which of the warp.
struct Access {
  uint64_t launch = 0; ///< 0: none.
  int64_t block = 0;
  int thread = 0;
  uint32_t barriers = 0, warpBarriers = 0;
  bool isAtomic = false;

  /// True where the other access, later in the emulation, comes after this one on every device.
  bool isBefore(const Access &later) const {
    if (launch != later.launch)
      return true;
    return block == later.block && (thread == later.thread || barriers < later.barriers ||
                                    (thread / 32 == later.thread / 32 && warpBarriers < later.warpBarriers));
  }
};

class Shadow {
public:
  /// Notes an access of one byte; the other access of a race, or null.
  const Access *read(uintptr_t address, const Access &access);
  const Access *write(uintptr_t address, const Access &access);
  /// True where a thread of this block and launch has written the byte.
  bool isWritten(uintptr_t address, const Access &access);

private:
  struct Cell {
    Access written, read;
    Access otherRead; ///< A read of another thread that is not in order with `read`.
  };
  static constexpr uintptr_t kPageBytes = 1024;
  using Page = std::array<Cell, kPageBytes>;
  Cell &at(uintptr_t address);

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  uintptr_t lastNumber = ~uintptr_t(0); ///< Most accesses stay on a page.
  Page *lastPage = nullptr;
};

} // namespace recast::cuda::emulation
