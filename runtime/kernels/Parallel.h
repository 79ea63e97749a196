// Data parallelism inside one kernel. The pool is libgomp's, which oneDNN uses too: one set of threads a process.
#pragma once
#include <cstdint>
#include <utility>

namespace recast {

/// Threads that parallelFor and oneDNN use; at least 1.
void setThreadCount(int count);
int threadCount();

namespace detail {
void parallelRun(int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *context);
}

/// Calls body(begin, end) on disjoint ranges that cover [0, count). No range is shorter than `grain` unless it is the
/// last. Which thread takes which range does not influence results as long as ranges write disjoint data: never sum
/// across ranges.
template <typename Body> void parallelFor(int64_t count, int64_t grain, Body &&body) {
  auto call = [](void *context, int64_t begin, int64_t end) { (*static_cast<Body *>(context))(begin, end); };
  detail::parallelRun(count, grain, call, const_cast<void *>(static_cast<const void *>(&body)));
}

} // namespace recast
