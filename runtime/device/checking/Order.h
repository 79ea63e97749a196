// Who has touched which memory, and whether streams and events bring that into an order.
#pragma once
#include "runtime/device/Device.h"
#include <array>

namespace recast::checking {

/// For each stream, the commands of it that have ended.
using Clock = std::array<uint64_t, kStreams>;

class Order {
public:
  /// The stream's next command: until the next call, accesses are its.
  void begin(Stream stream, const std::string &step);
  void record(Stream stream, int event);
  /// False where nobody has recorded the event.
  bool wait(Stream stream, int event);
  void synchronize();

  /// "" or what is wrong.
  std::string read(const Access &access);
  std::string write(const Access &access);

private:
  /// Bytes with one history.
  struct Segment {
    uintptr_t end;
    int owner = -1; ///< -1: nobody has written.
    Stream writer = Stream::Compute;
    uint64_t written = 0; ///< The writer's clock; 0: before everything.
    Clock read{};         ///< Of each stream, the last read since.
    int writeStep = -1, readStep = -1; ///< Into `steps`.
  };
  void split(uintptr_t at);
  bool isBefore(Stream stream, uint64_t clock) const { return clock <= now[static_cast<size_t>(stream)]; }
  std::string unordered(int step) const;

  std::map<uintptr_t, Segment> segments; ///< By their start.
  std::vector<std::string> steps;
  std::array<Clock, kStreams> clocks{}; ///< What each stream's next command comes after.
  std::map<int, Clock> events;
  Clock now{}; ///< Of the command that began last.
  Stream current = Stream::Compute;
};

} // namespace recast::checking
