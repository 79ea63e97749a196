// A step's numbers, as JSON lines or as TensorBoard events.
#pragma once
#include "runtime/plan/Status.h"
#include <cstdint>
#include <memory>
#include <span>
#include <variant>

namespace recast {

struct Metric {
  std::string name;
  std::variant<bool, int64_t, double> value;
};

/// Writes each step as it ends, in one system call, so that a running training can be watched and no reader sees half
/// a line. The file appears with the first step.
class MetricsWriter {
public:
  /// A path that ends in .jsonl or .json is a file; every other is a folder for TensorBoard. With `resumeAfter` >= 0
  /// the lines of a JSON file up to that step are kept, else what is there is replaced. (TensorBoard merges a folder's
  /// files.)
  static Result<std::unique_ptr<MetricsWriter>> create(const std::string &path, int64_t resumeAfter = -1);
  virtual ~MetricsWriter() = default;
  /// Steps are counted from 1.
  virtual Status write(int64_t step, std::span<const Metric> metrics) = 0;
};

/// The line of JSON of one step, with "step" first. NaN and infinities, which JSON has no numbers for, are the strings
/// "nan", "inf" and "-inf".
std::string metricsLine(int64_t step, std::span<const Metric> metrics);

} // namespace recast
