// Learning rates as a function of the step.
#pragma once
#include "runtime/plan/Status.h"
#include <cstdint>
#include <vector>

namespace recast {

struct ScheduleOptions {
  std::string kind = "constant"; ///< constant, linear, cosine, or a file with one rate a step (lines, or a JSON list).
  int64_t warmupSteps = 0;
  double minLr = 0;
};

/// Counts optimizer steps from 0, not micro-batches; a step that is skipped for an overflow counts, as in PyTorch's
/// usual loop, which calls scheduler.step() in every iteration. With base rate b, W warm-up steps, N steps in all, and
/// r = (t - W) / (N - W):
///   t < W:    b (t + 1) / W
///   linear:   b + r (min - b)
///   cosine:   min + (b - min) (1 + cos(pi r)) / 2
class Schedule {
public:
  static Result<Schedule> create(const ScheduleOptions &options, double baseLr, int64_t totalSteps);
  double at(int64_t step) const;
  /// False for a constant rate without warm-up: then the state's own value stays.
  bool changes() const { return kind != Kind::Constant || warmupSteps; }
  /// All that the rates depend on, as text: a resumed run must have the same.
  std::string describe() const;

private:
  enum class Kind { Constant, Linear, Cosine, File };
  Kind kind = Kind::Constant;
  int64_t warmupSteps = 0, totalSteps = 0;
  double baseLr = 0, minLr = 0;
  std::vector<double> rates;
};

} // namespace recast
