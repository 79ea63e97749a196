// Which accesses of memory are in order: vector clocks of streams and events over ranges of addresses.
#pragma once
#include "runtime/device/Device.h"
#include "runtime/device/IntervalMap.h"
#include <map>
#include <memory>
#include <span>

namespace recast::device {

class Hazards {
public:
  /// Notes work on a stream; the sentence of the first hazard, or "". Every read must come after the last write of its
  /// bytes, which must have written the same value; every write after all reads and writes.
  std::string note(const std::string &step, std::span<const MemoryUse> uses, int stream);
  void record(int event, int stream);
  /// False where the event was never recorded.
  bool wait(int event, int stream);
  /// Everything on all streams so far comes before all that follows.
  void synchronise();
  /// True where stream `first` has waited for all that was noted on any other stream since `since`.
  bool hasJoined(int first, const std::vector<uint64_t> &since) const;
  std::vector<uint64_t> ticks() const;

private:
  using Clock = std::vector<uint64_t>; ///< By stream: how much of its work comes before.

  struct Access {
    int stream = -1; ///< -1: none.
    uint64_t tick = 0;
    std::shared_ptr<const std::string> step, name;
  };
  struct History {
    Access write;
    const void *value = nullptr;
    std::vector<Access> reads; ///< Since the write: the last of each stream.
  };

  Clock &clockOf(int stream);
  bool isBefore(const Access &access, const Clock &clock) const {
    return access.stream < 0 ||
           access.tick <=
               (static_cast<size_t>(access.stream) < clock.size() ? clock[static_cast<size_t>(access.stream)] : 0);
  }
  std::vector<Clock> clocks; ///< By stream.
  std::map<int, Clock> events;
  IntervalMap<History> memory;
};

} // namespace recast::device
