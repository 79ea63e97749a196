// A Chrome trace (chrome://tracing, Perfetto) of every kernel that ran, on this processor or on a device.
#pragma once
#include "runtime/exec/Executor.h"
#include "runtime/plan/Files.h"
#include <chrono>

namespace recast {

/// Records up to kMostEvents kernels; later ones are left out. The plans that are observed must outlive the profile's
/// last use.
class Profile {
public:
  static constexpr size_t kMostEvents = 200'000;

  explicit Profile(std::string path) : path(std::move(path)) {}
  void observe(const StepEvent &event);
  void observe(const WorkEvent &event);
  /// The training step that the next events belong to, counted from 1.
  void beginStep(int64_t step) {
    trainingStep = step;
    stepBegin = Clock::now();
  }
  Result<std::unique_ptr<AtomicFile>> stage() const;

private:
  using Clock = std::chrono::steady_clock;
  struct Event {
    const Step *step;
    int64_t trainingStep;
    Clock::time_point begin, end;
    std::string kernel = {}; ///< Of a device, as what follows.
    int stream = 0;
    size_t bytes = 0;
    double flops = 0;
  };
  std::string path;
  Clock::time_point start = Clock::now();
  std::vector<Clock::time_point> begins; ///< Of the steps that run now: a body's inside that of its own step.
  int64_t trainingStep = 0;
  Clock::time_point stepBegin = start;
  std::vector<Event> events;
};

} // namespace recast
