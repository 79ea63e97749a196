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

/// A piece of a device's work that has ended, timed by the device. Seconds begin with the run.
struct WorkEvent {
  const Step *step; ///< Null where the plan has none for it: copies of new state.
  std::string_view kernel;
  int stream;
  double begin, end;
  size_t bytes; ///< Of the operands, each counted where it is read and where it is written.
  double flops; ///< Of products.
};

/// What runs a plan: on this processor, or on a device (runtime/device/DeviceExecutor.h).
class Executor {
public:
  /// Prepares every kernel of the plan and allocates the arena. The plan, and the communicator of the ranks that run it
  /// together, must outlive the executor; null: this process is the only one. `bucketBytes`: that ranks reduce at a
  /// time, at most.
  static Result<std::unique_ptr<Executor>> create(const Plan &plan, bool referenceOnly = false,
                                                  Communicator *communicator = nullptr,
                                                  size_t bucketBytes = kBucketBytes);
  virtual ~Executor() = default;

  const Plan &plan() const { return source; }
  /// The memory of a buffer; inputs and state are written through this before run(). On a device it is a copy on the
  /// host: of state, pullState() makes it the newest, and pushState() sends what was written there.
  virtual TensorRef tensor(int buffer) const = 0;
  virtual Status pullState() { return Status::success(); }
  virtual Status pushState() { return Status::success(); }
  /// The buffer called `name` among the graph's inputs, state and outputs; -1 if there is none.
  int find(std::string_view name) const;

  /// One execution: runs all steps, then copies the outputs that update state and lie elsewhere. On an error no state
  /// has changed: steps that write state where it lies come after all that may fail.
  virtual Status run() = 0;

  /// run() that may call `fillNext` while a device runs: it writes the inputs of the next run, and gives true, or has
  /// nothing to write. Here it is not called: inputs are read where they are written.
  virtual Status runAhead(const std::function<bool()> &fillNext) { return run(); }

  /// The arena's high-water mark as measured on the buffers and workspaces that the steps were given, whatever the plan
  /// says: the plan's arenaBytes must be this number.
  virtual size_t arenaBytes() const = 0;
  /// The same of the memory on the host that the plan has beside the arena.
  virtual size_t hostBytes() const = 0;

  /// Called around each step, where set (profiling, search for non-finite values). Not by devices.
  std::function<void(const StepEvent &)> observer;
  /// Called by devices after each run, where set, for each piece of work of it. It is then launched piece by piece.
  std::function<void(const WorkEvent &)> workObserver;

protected:
  explicit Executor(const Plan &plan);

private:
  const Plan &source;
  std::map<std::string, int, std::less<>> names;
};

} // namespace recast
