// What --outputs keeps: every graph output of every step, stacked on a new axis 0.
#pragma once
#include "runtime/exec/Executor.h"
#include "runtime/plan/Files.h"
#include <map>

namespace recast {

/// Holds all steps in memory until stage().
class OutputStack {
public:
  explicit OutputStack(std::string path) : path(std::move(path)) {}
  /// An error names an output whose type differs from the earlier steps'.
  Status append(const Executor &executor);
  Result<std::unique_ptr<AtomicFile>> stage() const;

private:
  struct Stack {
    TensorType type; ///< Of one step.
    std::vector<std::byte> bytes;
  };
  std::string path;
  std::map<std::string, Stack> stacks;
  int64_t steps = 0;
};

} // namespace recast
