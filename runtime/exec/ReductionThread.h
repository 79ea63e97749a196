// Sums over ranks on a thread of their own.
#pragma once
#include "runtime/exec/Communicator.h"
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace recast {

/// Calls the communicator from its own thread, in the order given: nobody else may call it until all that was given has
/// been waited for. After an error nothing more is summed.
class ReductionThread {
public:
  explicit ReductionThread(Communicator &communicator) : communicator(communicator), thread([this] { work(); }) {}
  /// Ends all ranks where a sum still waits for them: this one has failed, and they do not know.
  ~ReductionThread();

  /// Gives the sum a number to wait for. The memory must live as long as this.
  size_t add(float *data, size_t count) { return add({data, nullptr, count}); }
  size_t add(double *data, size_t count) { return add({nullptr, data, count}); }
  /// Until the sum of that number, and all before it, have ended.
  Status wait(size_t number);

private:
  struct Sum {
    float *narrow;
    double *wide;
    size_t count;
  };
  size_t add(const Sum &sum);
  void work();

  Communicator &communicator;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Sum> sums; ///< That are not begun.
  size_t added = 0, done = 0;
  bool isEnding = false;
  Status failure = Status::success();
  std::thread thread;
};

} // namespace recast
