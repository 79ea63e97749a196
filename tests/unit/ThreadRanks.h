// Ranks that are threads of one process.
#pragma once
#include "runtime/exec/Communicator.h"
#include <barrier>
#include <gtest/gtest.h>
#include <mutex>
#include <vector>

namespace recast::test {

/// What the threads share.
struct Meeting {
  explicit Meeting(int ranks) : barrier(ranks), addends(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
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
  void abort() override {}

private:
  template <typename T> Status add(T *data, size_t count) {
    bool takesTurns = turn.owns_lock();
    if (takesTurns)
      turn.unlock();
    meeting.addends[static_cast<size_t>(ownRank)].assign(data, data + count);
    meeting.barrier.arrive_and_wait();
    for (size_t i = 0; i < count; ++i) {
      double total = 0;
      for (const std::vector<double> &addend : meeting.addends) {
        EXPECT_EQ(addend.size(), count);
        total += addend[i];
      }
      data[i] = static_cast<T>(total);
    }
    meeting.barrier.arrive_and_wait();
    if (takesTurns)
      turn.lock();
    return Status::success();
  }
  Meeting &meeting;
  std::unique_lock<std::mutex> turn;
};

} // namespace recast::test
