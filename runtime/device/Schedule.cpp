// Which stream each piece of work runs on, and what it waits for.
#include "runtime/device/DeviceExecutor.h"
#include "runtime/device/IntervalMap.h"
#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>

namespace recast::device {
namespace {

class Scheduler {
public:
  Scheduler(std::vector<Work> work, int streams) : clocks(static_cast<size_t>(streams)) {
    for (std::vector<size_t> &clock : clocks)
      clock.assign(clocks.size(), 0);
    ends.assign(clocks.size(), 0);
    computing = ends.size();
    if (computing > 1 && std::ranges::any_of(work, &Work::isTransfer))
      forTransfers = static_cast<int>(--computing);
    for (Work &item : work)
      add(std::move(item));
    join();
  }
  std::vector<Scheduled> scheduled;

private:
  /// The pieces before number `ends[s]` of stream s, for those that a stream has waited for.
  using Clock = std::vector<size_t>;

  void add(Work item) {
    std::vector<size_t> needs = clocks.size() > 1 ? needsOf(item) : std::vector<size_t>();
    int stream = item.isTransfer && forTransfers ? *forTransfers : streamFor(needs);
    Scheduled next{std::move(item), stream, {}, -1};
    for (size_t need : needs) // The latest first: what it waited for is waited for with it.
      waitFor(next, need);
    if (ends[static_cast<size_t>(stream)] == 0 && !scheduled.empty())
      waitFor(next, 0); // A stream's first work comes after what stream 0 has done before the step.
    place(std::move(next));
  }

  /// What wrote or read the memory last that a piece writes or reads: numbers of pieces, the latest first.
  std::vector<size_t> needsOf(const Work &item) {
    std::set<size_t, std::greater<>> needs;
    for (bool isWriting : {false, true})
      for (const MemoryUse &use : item.uses) {
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
            history = {scheduled.size(), {}};
          } else {
            history.readers.push_back(scheduled.size());
          }
        }
      }
    needs.erase(scheduled.size()); // Itself, where it writes what it reads.
    return {needs.begin(), needs.end()};
  }

  /// That of the latest piece that it needs where nothing has come after that, else the one that has least work.
  int streamFor(const std::vector<size_t> &needs) const {
    for (size_t need : needs)
      if (auto stream = static_cast<size_t>(scheduled[need].stream); stream < computing && last.at(stream) == need)
        return scheduled[need].stream;
    if (scheduled.empty())
      return 0;
    auto others = std::span(ends).first(computing);
    return static_cast<int>(std::ranges::min_element(others) - others.begin());
  }

  void waitFor(Scheduled &next, size_t need) {
    Scheduled &before = scheduled[need];
    Clock &clock = clocks[static_cast<size_t>(next.stream)];
    auto from = static_cast<size_t>(before.stream);
    if (before.stream == next.stream || numbers[need] <= clock[from])
      return;
    if (before.event < 0)
      before.event = events++;
    next.waits.push_back(before.event);
    for (size_t s = 0; s < clock.size(); ++s)
      clock[s] = std::max(clock[s], seen[need][s]);
  }

  void place(Scheduled next) {
    auto stream = static_cast<size_t>(next.stream);
    last[stream] = scheduled.size();
    numbers.push_back(++ends[stream]);
    clocks[stream][stream] = ends[stream];
    seen.push_back(clocks[stream]);
    scheduled.push_back(std::move(next));
  }

  /// The last piece of work waits for all streams on stream 0.
  void join() {
    if (scheduled.empty())
      return;
    Scheduled end{{"the end of the step", std::string(kFill), 1, 1, std::vector<std::byte>(sizeof(FillBytesArgs)), {}},
                  0,
                  {},
                  -1};
    for (const auto &[stream, piece] : last)
      waitFor(end, piece);
    if (!end.waits.empty())
      place(std::move(end));
  }

  struct History {
    std::optional<size_t> writer;
    std::vector<size_t> readers; ///< Since then.
  };
  IntervalMap<History> memory;
  std::vector<Clock> clocks;
  std::vector<size_t> ends;        ///< Pieces of each stream.
  size_t computing = 0;            ///< Streams, the first ones, that have all other work.
  std::optional<int> forTransfers; ///< The stream of transfers, where there is such work.
  std::map<size_t, size_t> last;   ///< The last piece of each stream.
  std::vector<size_t> numbers;     ///< Of each piece, on its stream.
  std::vector<Clock> seen;         ///< What comes before the end of each piece.
  int events = 0;
};

} // namespace

std::vector<Scheduled> schedule(std::vector<Work> work, int streams) {
  return std::move(Scheduler(std::move(work), std::max(streams, 1)).scheduled);
}

} // namespace recast::device
