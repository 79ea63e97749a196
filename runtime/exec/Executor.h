// Walks a plan's steps on the CPU. One arena, allocated once; no look-up and no allocation in run() after its first
// call.
#pragma once
#include "runtime/exec/Communicator.h"
#include "runtime/plan/Plan.h"

namespace recast {

/// A step that starts or has ended. Steps of bodies are reported too, at every iteration.
struct StepEvent {
  const Plan &plan; ///< That holds the step: the executor's, or a body.
  size_t step;
  bool isBegin;
  std::span<const TensorRef> inputs, outputs;
};

class Executor {
public:
  /// Prepares every kernel of the plan and allocates the arena. The plan, and the communicator of the ranks that run it
  /// together, must outlive the executor; null: this process is the only one.
  static Result<std::unique_ptr<Executor>> create(const Plan &plan, bool referenceOnly = false,
                                                  Communicator *communicator = nullptr);
  ~Executor();

  const Plan &plan() const;
  /// The memory of a buffer; inputs and state are written through this before run().
  TensorRef tensor(int buffer) const;
  /// The buffer called `name` among the graph's inputs, state and outputs; -1 if there is none.
  int find(std::string_view name) const;

  /// One execution: runs all steps, then copies the outputs that update state and lie elsewhere. On an error no state
  /// has changed: steps that write state where it lies come after all that may fail.
  Status run();

  /// The arena's high-water mark as measured on the buffers and workspaces that the steps were given, whatever the plan
  /// says: the plan's arenaBytes must be this number.
  size_t arenaBytes() const;

  /// Called around each step, where set (profiling, search for non-finite values).
  std::function<void(const StepEvent &)> observer;

private:
  struct Impl;
  std::unique_ptr<Impl> impl;
  explicit Executor(std::unique_ptr<Impl> impl);
};

} // namespace recast
