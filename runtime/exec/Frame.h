// One plan made ready to run in memory that somebody else gives: the executor's own plan, and each body of a
// control-flow step.
#pragma once
#include "runtime/exec/Collectives.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/cpu/Generated.h"

namespace recast {

/// What all frames of an executor share.
struct FrameContext {
  bool referenceOnly = false;
  const std::function<void(const StepEvent &)> *observer = nullptr;
  std::byte *arena = nullptr;            ///< Start of the executor's arena.
  Communicator *communicator = nullptr;  ///< Null: one process.
  ReductionThread *reductions = nullptr; ///< Null: ranks sum on the executor's thread.
  size_t bucketBytes = kBucketBytes;
  const GeneratedCode *code = nullptr;
  size_t highWater = 0;      ///< One past the last byte of it that a step may touch, rounded up to the alignment.
  std::byte *host = nullptr; ///< What offload writes; a CPU's host has the same memory, set apart.
  size_t hostHighWater = 0;  ///< As highWater.

  void touch(const std::byte *begin, size_t bytes);
  void touchHost(const std::byte *begin, size_t bytes);
};

class Frame {
public:
  /// `arena` has plan.arenaBytes bytes, `host` plan.hostBytes. The memory of Input, State and Outer buffers is not
  /// known yet: see bind().
  static Result<std::unique_ptr<Frame>> create(const Plan &plan, std::byte *arena, std::byte *host,
                                               FrameContext &context);

  /// Gives an Input, State or Outer buffer and its views their memory; may be called before every run, and allocates
  /// nothing.
  void bind(int buffer, void *data);
  TensorRef tensor(int buffer) const { return tensors[static_cast<size_t>(buffer)]; }
  const Plan &plan() const { return source; }
  Status run();

private:
  /// A step with everything resolved: what run() walks over.
  struct Prepared {
    std::unique_ptr<Kernel> kernel;
    KernelArgs args;
    AllReduce *reduction = nullptr; ///< The kernel, where it is one.
    /// Buckets that begin after this step: of which step, and their numbers.
    std::vector<std::pair<size_t, size_t>> begins;
  };

  Frame(const Plan &plan, FrameContext &context) : source(plan), context(context) {}
  Status placeBuffers(std::byte *arena, std::byte *host);
  Status prepareSteps(std::byte *arena, std::byte *host);
  Status prepare(const Step &step, Prepared &prepared, std::byte *arena, std::byte *host);
  Status prepareCollective(const Step &step, Prepared &prepared);
  KnownAfter knownAfter(const Step &reduction) const;
  Status placeView(size_t index);
  Status checkOverlaps(const Step &step, const Kernel &kernel) const;
  std::string compileAgain() const;

  const Plan &source;
  FrameContext &context;
  std::vector<TensorRef> tensors;  ///< One a buffer of the plan.
  std::vector<TensorRef> operands; ///< What the steps' args view.
  /// For each buffer that bind() may move: the operands that are it.
  std::vector<std::vector<size_t>> readers;
  std::vector<std::vector<int>> views; ///< For each buffer, those of it.
  std::vector<Prepared> steps;
};

} // namespace recast
