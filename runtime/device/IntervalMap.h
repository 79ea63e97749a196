// What is known of ranges of addresses: neighbours with different histories are different segments.
#pragma once
#include <cstdint>
#include <map>

namespace recast::device {

template <typename History> class IntervalMap {
public:
  struct Segment {
    uintptr_t end;
    History history;
  };
  using Segments = std::map<uintptr_t, Segment>; ///< By their beginnings.

  /// The whole segments that [begin, end) is made of; gaps become segments without a history.
  std::pair<typename Segments::iterator, typename Segments::iterator> cut(uintptr_t begin, uintptr_t end) {
    split(begin);
    split(end);
    auto it = segments.lower_bound(begin);
    for (uintptr_t at = begin; at < end;) {
      uintptr_t next = it == segments.end() || it->first > end ? end : it->first;
      if (next > at)
        it = std::next(segments.emplace_hint(it, at, Segment{next, {}}));
      if (next == end)
        break;
      at = it->second.end;
      ++it;
    }
    return {segments.lower_bound(begin), segments.lower_bound(end)};
  }

private:
  void split(uintptr_t at) {
    auto after = segments.upper_bound(at);
    if (after == segments.begin())
      return;
    auto before = std::prev(after);
    if (before->first == at || before->second.end <= at)
      return;
    Segment tail = before->second;
    before->second.end = at;
    segments.emplace_hint(after, at, std::move(tail));
  }

  Segments segments;
};

} // namespace recast::device
