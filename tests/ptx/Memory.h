// Global memory: what has been allocated.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace recast::ptx {

struct Allocation {
  uintptr_t first = 0, end = 0;
  bool isWritable = true;

  bool allows(uintptr_t address, size_t bytes, bool isWritten) const {
    return address >= first && address < end && bytes <= end - address && (isWritable || !isWritten);
  }
};

/// Addresses are the host's. Allocations may overlap where a launch is given one buffer twice.
class Memory {
public:
  void add(const void *data, size_t bytes, bool isWritable = true) {
    auto first = reinterpret_cast<uintptr_t>(data);
    allocations.push_back({first, first + bytes, isWritable});
  }
  void remove(const void *data) {
    std::erase_if(allocations, [&](const Allocation &a) { return a.first == reinterpret_cast<uintptr_t>(data); });
  }
  /// One that allows the access; empty where none does.
  Allocation find(uintptr_t address, size_t bytes, bool isWritten) const {
    auto found =
        std::ranges::find_if(allocations, [&](const Allocation &a) { return a.allows(address, bytes, isWritten); });
    return found == allocations.end() ? Allocation{} : *found;
  }

private:
  std::vector<Allocation> allocations;
};

} // namespace recast::ptx
