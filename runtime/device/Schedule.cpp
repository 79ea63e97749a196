// Which stream each piece of work runs on, and what it waits for.
#include "runtime/device/Dependencies.h"
#include "runtime/device/DeviceExecutor.h"
#include <algorithm>
#include <optional>
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
    if (computing > 1 && std::ranges::any_of(work, &Work::isForRanks))
      forRanks = static_cast<int>(--computing);
    if (std::ranges::any_of(work, &Work::isTransfer))
      forTransfers = computing > 1 ? static_cast<int>(--computing) : forRanks;
    for (Work &item : work)
      add(std::move(item));
    join();
  }
  std::vector<Scheduled> scheduled;

private:
  /// The pieces before number `ends[s]` of stream s, for those that a stream has waited for.
  using Clock = std::vector<size_t>;

  void add(Work item) {
    Dependencies::Pieces needs;
    if (clocks.size() > 1)
      needs = dependencies.add(scheduled.size(), item.uses);
    std::optional<int> own = item.isForRanks ? forRanks : item.isTransfer ? forTransfers : std::nullopt;
    int stream = own ? *own : streamFor(needs);
    Scheduled next{std::move(item), stream, {}, -1};
    for (size_t need : needs) // The latest first: what it waited for is waited for with it.
      waitFor(next, need);
    if (ends[static_cast<size_t>(stream)] == 0 && !scheduled.empty())
      waitFor(next, 0); // A stream's first work comes after what stream 0 has done before the step.
    place(std::move(next));
  }

  /// That of the latest piece that it needs where nothing has come after that, else the one that has least work.
  int streamFor(const Dependencies::Pieces &needs) const {
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

  Dependencies dependencies;
  std::optional<int> forRanks; ///< The stream of what ranks reduce, where there is such work.
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
