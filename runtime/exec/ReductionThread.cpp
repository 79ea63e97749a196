#include "runtime/exec/ReductionThread.h"

namespace recast {

ReductionThread::~ReductionThread() {
  bool isWaiting = false;
  {
    std::lock_guard lock(mutex);
    isEnding = true;
    isWaiting = done < added && failure.ok();
  }
  changed.notify_all();
  if (isWaiting) // Against the rule of one thread at a time; nothing else ends a sum.
    communicator.abort();
  thread.join();
}

size_t ReductionThread::add(const Sum &sum) {
  std::lock_guard lock(mutex);
  sums.push_back(sum);
  changed.notify_all();
  return ++added;
}

Status ReductionThread::wait(size_t number) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done >= number || !failure.ok(); });
  return failure;
}

void ReductionThread::work() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return isEnding || (!sums.empty() && failure.ok()); });
    if (isEnding)
      return;
    Sum sum = sums.front();
    sums.pop_front();
    lock.unlock();
    Status status = sum.wide ? communicator.sum(sum.wide, sum.count) : communicator.sum(sum.narrow, sum.count);
    lock.lock();
    failure = status;
    ++done;
    changed.notify_all();
  }
}

} // namespace recast
