#include "runtime/kernels/Parallel.h"
#include <algorithm>
#include <atomic>

// The entry points of libgomp's stable ABI: the compiler's own OpenMP mode would bring a second pool of threads.
extern "C" {
void GOMP_parallel(void (*body)(void *), void *data, unsigned threads, unsigned flags);
int omp_get_thread_num();
int omp_get_num_threads();
int omp_get_max_threads();
void omp_set_num_threads(int count);
}

namespace recast {

void setThreadCount(int count) { omp_set_num_threads(std::max(count, 1)); }
int threadCount() { return omp_get_max_threads(); }

void detail::parallelRun(int64_t count, int64_t grain, void (*body)(void *, int64_t, int64_t), void *context) {
  if (count <= 0)
    return;
  int64_t threads = std::min<int64_t>(threadCount(), (count + grain - 1) / std::max<int64_t>(grain, 1));
  if (threads <= 1)
    return body(context, 0, count);
  struct Work {
    int64_t count;
    void (*body)(void *, int64_t, int64_t);
    void *context;
  } work{count, body, context};
  GOMP_parallel(
      [](void *data) {
        const Work &w = *static_cast<Work *>(data);
        int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
        int64_t begin = w.count * i / n, end = w.count * (i + 1) / n;
        if (begin < end)
          w.body(w.context, begin, end);
      },
      &work, static_cast<unsigned>(threads), 0);
}

} // namespace recast
