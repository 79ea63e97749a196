#include "runtime/device/checking/Order.h"
#include <algorithm>

namespace recast::checking {

void Order::begin(Stream stream, const std::string &step) {
  current = stream;
  Clock &clock = clocks[static_cast<size_t>(stream)];
  ++clock[static_cast<size_t>(stream)];
  now = clock;
  if (steps.empty() || steps.back() != step)
    steps.push_back(step);
}

void Order::record(Stream stream, int event) { events[event] = clocks[static_cast<size_t>(stream)]; }

bool Order::wait(Stream stream, int event) {
  auto found = events.find(event);
  if (found == events.end())
    return false;
  Clock &clock = clocks[static_cast<size_t>(stream)];
  for (size_t s = 0; s < kStreams; ++s)
    clock[s] = std::max(clock[s], found->second[s]);
  return true;
}

void Order::synchronize() {
  Clock all{};
  for (const Clock &clock : clocks)
    for (size_t s = 0; s < kStreams; ++s)
      all[s] = std::max(all[s], clock[s]);
  clocks.fill(all);
}

void Order::split(uintptr_t at) {
  auto next = segments.upper_bound(at);
  if (next == segments.begin())
    return;
  auto [start, segment] = *std::prev(next);
  if (start == at || segment.end <= at)
    return;
  std::prev(next)->second.end = at;
  segments.emplace(at, segment);
}

std::string Order::unordered(int step) const {
  return "nothing brings it after " + (step < 0 ? "an earlier command" : steps[static_cast<size_t>(step)]) +
         ": an event is missing";
}

std::string Order::read(const Access &access) {
  auto begin = reinterpret_cast<uintptr_t>(access.data), end = begin + access.bytes;
  split(begin);
  split(end);
  uintptr_t at = begin;
  for (auto it = segments.lower_bound(begin); at < end; ++it) {
    if (it == segments.end() || it->first != at)
      return "it reads memory that nothing has written";
    Segment &segment = it->second;
    if (segment.owner != access.owner && segment.owner != kAnyOwner)
      return "it reads memory that " +
             (segment.writeStep < 0 ? "another buffer's value" : steps[static_cast<size_t>(segment.writeStep)]) +
             " has written over: buffers overlap";
    if (!isBefore(segment.writer, segment.written))
      return unordered(segment.writeStep);
    segment.read[static_cast<size_t>(current)] = now[static_cast<size_t>(current)];
    segment.readStep = static_cast<int>(steps.size()) - 1;
    at = segment.end;
  }
  return "";
}

std::string Order::write(const Access &access) {
  auto begin = reinterpret_cast<uintptr_t>(access.data), end = begin + access.bytes;
  split(begin);
  split(end);
  Segment made{end, access.owner, current, now[static_cast<size_t>(current)], {}, static_cast<int>(steps.size()) - 1, -1};
  auto first = segments.lower_bound(begin), last = first;
  for (; last != segments.end() && last->first < end; ++last) {
    const Segment &segment = last->second;
    if (!isBefore(segment.writer, segment.written))
      return unordered(segment.writeStep);
    for (size_t s = 0; s < kStreams; ++s)
      if (!isBefore(static_cast<Stream>(s), segment.read[s]))
        return unordered(segment.readStep);
  }
  segments.erase(first, last);
  segments.emplace(begin, made);
  return "";
}

} // namespace recast::checking
