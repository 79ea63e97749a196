// Which earlier work a piece of work comes after: what wrote the memory that it reads or writes, and what read the
// memory that it writes.
#pragma once
#include "runtime/device/Device.h"
#include "runtime/device/IntervalMap.h"
#include <algorithm>
#include <functional>
#include <optional>
#include <set>

namespace recast::device {

class Dependencies {
public:
  /// Numbers of pieces, the latest first.
  using Pieces = std::set<size_t, std::greater<>>;

  /// What piece `number` comes after; from then on later pieces come after it. Numbers rise from call to call.
  Pieces add(size_t number, std::span<const MemoryUse> uses) {
    Pieces needs;
    for (bool isWriting : {false, true})
      for (const MemoryUse &use : uses) {
        if (!(isWriting ? use.isWritten : use.isRead) || !use.bytes)
          continue;
        auto start = reinterpret_cast<uintptr_t>(use.data);
        auto [begin, end] = memory.cut(start, start + use.bytes);
        for (auto it = begin; it != end; ++it) {
          History &history = it->second.history;
          if (history.writer)
            needs.insert(*history.writer);
          if (isWriting) {
            needs.insert(history.readers.begin(), history.readers.end());
            history = {number, use.value, {}};
          } else {
            history.readers.push_back(number);
          }
        }
      }
    needs.erase(number); // Itself, where it writes what it reads.
    return needs;
  }

  /// The pieces whose values a use reads.
  Pieces writersOf(const MemoryUse &use) {
    Pieces writers;
    if (!(use.isRead || use.isScratch) || !use.bytes)
      return writers;
    auto start = reinterpret_cast<uintptr_t>(use.data);
    auto [begin, end] = memory.cut(start, start + use.bytes);
    for (auto it = begin; it != end; ++it)
      if (const History &history = it->second.history; history.writer && (use.isRead || history.value == use.value))
        writers.insert(*history.writer);
    return writers;
  }

private:
  struct History {
    std::optional<size_t> writer;
    const void *value = nullptr; ///< That it wrote.
    std::vector<size_t> readers; ///< Since then.
  };
  IntervalMap<History> memory;
};

} // namespace recast::device
