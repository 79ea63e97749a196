#include "runtime/device/Hazards.h"
#include <algorithm>

namespace recast::device {

Hazards::Clock &Hazards::clockOf(int stream) {
  auto index = static_cast<size_t>(stream);
  if (clocks.size() <= index)
    clocks.resize(index + 1);
  Clock &clock = clocks[index];
  clock.resize(std::max(clock.size(), clocks.size()));
  return clock;
}

std::string Hazards::note(const std::string &step, std::span<const MemoryUse> uses, int stream) {
  Clock &clock = clockOf(stream);
  uint64_t tick = ++clock[static_cast<size_t>(stream)];
  auto sharedStep = std::make_shared<const std::string>(step);
  auto about = [&](const MemoryUse &use, const char *what, const Access &other, const char *did) {
    return step + " " + what + " " + use.name + ", which " + *other.step + " " + did +
           (*other.name == use.name ? "" : " as " + *other.name);
  };
  auto start = [](const MemoryUse &use) { return reinterpret_cast<uintptr_t>(use.data); };
  for (const MemoryUse &use : uses) {
    if (!use.isRead || !use.bytes)
      continue;
    auto [begin, end] = memory.cut(start(use), start(use) + use.bytes);
    auto name = std::make_shared<const std::string>(use.name);
    for (auto it = begin; it != end; ++it) {
      History &history = it->second.history;
      if (history.write.stream < 0)
        return step + " reads " + use.name + ", which nothing has written";
      if (!isBefore(history.write, clock))
        return about(use, "reads", history.write, "writes") + ", and no event puts the read after the write";
      if (use.value && history.value != use.value)
        return about(use, "reads", history.write, "has written over");
      Access access{stream, tick, sharedStep, name};
      auto same = std::ranges::find(history.reads, stream, &Access::stream);
      if (same == history.reads.end())
        history.reads.push_back(access);
      else
        *same = access;
    }
  }
  for (const MemoryUse &use : uses) {
    if (!use.isWritten || !use.bytes)
      continue;
    auto [begin, end] = memory.cut(start(use), start(use) + use.bytes);
    Access access{stream, tick, sharedStep, std::make_shared<const std::string>(use.name)};
    for (auto it = begin; it != end; ++it) {
      History &history = it->second.history;
      if (!isBefore(history.write, clock))
        return about(use, "writes", history.write, "writes") + ", and no event orders the two";
      for (const Access &read : history.reads)
        if (!isBefore(read, clock))
          return about(use, "writes", read, "reads") + ", and no event puts the write after the read";
      history.write = access;
      history.value = use.value;
      history.reads.clear();
    }
  }
  return "";
}

void Hazards::record(int event, int stream) { events[event] = clockOf(stream); }

bool Hazards::wait(int event, int stream) {
  auto found = events.find(event);
  if (found == events.end())
    return false;
  Clock &clock = clockOf(stream);
  clock.resize(std::max(clock.size(), found->second.size()));
  for (size_t i = 0; i < found->second.size(); ++i)
    clock[i] = std::max(clock[i], found->second[i]);
  return true;
}

std::vector<uint64_t> Hazards::ticks() const {
  std::vector<uint64_t> ticks(clocks.size());
  for (size_t i = 0; i < clocks.size(); ++i)
    ticks[i] = i < clocks[i].size() ? clocks[i][i] : 0;
  return ticks;
}

void Hazards::synchronise() {
  std::vector<uint64_t> now = ticks();
  for (Clock &clock : clocks)
    clock = now;
}

bool Hazards::hasJoined(int first, const std::vector<uint64_t> &since) const {
  std::vector<uint64_t> now = ticks();
  const Clock &clock = clocks[static_cast<size_t>(first)];
  for (size_t i = 0; i < now.size(); ++i)
    if (now[i] > (i < since.size() ? since[i] : 0) && (i < clock.size() ? clock[i] : 0) < now[i])
      return false;
  return true;
}

} // namespace recast::device
