// Ranks that are threads of one process.
#pragma once
#include "runtime/exec/Communicator.h"
#include <atomic>
#include <condition_variable>
#include <gtest/gtest.h>
#include <mutex>
#include <vector>

namespace recast::test {

/// What the threads share.
struct Meeting {
  explicit Meeting(int ranks) : addends(static_cast<size_t>(ranks)) {}

  /// False where a rank has ended all.
  bool meet() {
    std::unique_lock lock(mutex);
    size_t round = rounds;
    if (++arrived == addends.size()) {
      arrived = 0;
      ++rounds;
      changed.notify_all();
    }
    changed.wait(lock, [&] { return rounds != round || isEnded; });
    return rounds != round;
  }
  void end() {
    std::lock_guard lock(mutex);
    isEnded = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  size_t arrived = 0, rounds = 0;
  bool isEnded = false;
  std::vector<std::vector<double>> addends;
  std::mutex turn; ///< Of ranks that may not compute at the same time.
};

class ThreadCommunicator final : public Communicator {
public:
  /// With `takesTurns` only one rank at a time is beyond its construction and outside of sum().
  ThreadCommunicator(Meeting &meeting, int rank, bool takesTurns = false) : meeting(meeting) {
    ownRank = rank;
    ranks = static_cast<int>(meeting.addends.size());
    if (takesTurns)
      turn = std::unique_lock(meeting.turn);
  }
  Status sum(float *data, size_t count) override { return add(data, count); }
  Status sum(double *data, size_t count) override { return add(data, count); }
  /// Not with turns, which a thread gives back itself.
  bool worksOnThreads() const override { return isForThreads && !turn.owns_lock(); }
  void abort() override { meeting.end(); }

  bool isForThreads = true;
  std::atomic<int> begun = 0; ///< Sums.

private:
  template <typename T> Status add(T *data, size_t count) {
    ++begun;
    bool takesTurns = turn.owns_lock();
    if (takesTurns)
      turn.unlock();
    meeting.addends[static_cast<size_t>(ownRank)].assign(data, data + count);
    if (!meeting.meet())
      return Status::error("a rank is lost");
    for (size_t i = 0; i < count; ++i) {
      double total = 0;
      for (const std::vector<double> &addend : meeting.addends) {
        EXPECT_EQ(addend.size(), count);
        total += addend[i];
      }
      data[i] = static_cast<T>(total);
    }
    if (!meeting.meet())
      return Status::error("a rank is lost");
    if (takesTurns)
      turn.lock();
    return Status::success();
  }
  Meeting &meeting;
  std::unique_lock<std::mutex> turn;
};

} // namespace recast::test
