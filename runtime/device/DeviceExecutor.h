// Runs a plan that is compiled for a device: the whole step as one list of work without a decision of the host, on one
// stream or several, from the second step on replayed as a graph.
#pragma once
#include "runtime/device/Device.h"
#include "runtime/exec/Executor.h"
#include "runtime/plan/Plan.h"

namespace recast::cuda {
struct Launch;
struct Program;
} // namespace recast::cuda

namespace recast::device {

struct DeviceOptions {
  /// At most. Where ranks reduce, and there are several, the last is theirs alone, and reductions go on beside the rest
  /// of the backward; on one stream they come after it.
  int streams = 1;
  bool graph = true; ///< Capture the second step and replay it.
  /// The ranks that train together, each on a device of its own; null: this process alone.
  Communicator *ranks = nullptr;
  size_t bucketBytes = kBucketBytes; ///< That ranks reduce at a time, at most.
  /// Told, for each call of a library that a plan can do without, what was chosen for the step, or why plain kernels
  /// run in its place.
  std::function<void(const std::string &step, const Result<std::string> &choice)> onChoice = {};
};

/// One piece of work, where it runs and what it waits for.
struct Scheduled {
  Work work;
  int stream = 0;
  std::vector<int> waits; ///< Events.
  int event = -1;         ///< Recorded after it, where somebody waits for it.
};

/// Puts work on streams. Work that touches what other work touches, one of them writing, comes after it: on its stream,
/// or after an event of it. Of several streams the last one is that of ranks' work, in the order given, where there is
/// such work, and the last of the others that of transfers; on two streams both share it. The last piece is on stream 0
/// and waits for all streams.
std::vector<Scheduled> schedule(std::vector<Work> work, int streams);

class DeviceExecutor {
public:
  /// The plan and the device outlive the executor.
  static Result<std::unique_ptr<DeviceExecutor>> create(const Plan &plan, Device &device, const DeviceOptions &options);

  const Plan &plan() const { return source; }
  /// As Executor::find.
  int find(std::string_view name) const;
  /// Of an input or a state.
  Status write(int buffer, const void *bytes);
  /// Waits for the device.
  Status read(int buffer, void *bytes);
  /// One execution, which ends when it has ended on all ranks. Values that kernels report as out of range are an error
  /// that names the step; the new state is then not to be used.
  Status run();
  /// run() in two: what the device does goes on in between.
  Status start();
  Status finish();
  /// As read, into page-locked memory, which holds the bytes after finish().
  Status readLater(int buffer, void *bytes);

  /// Page-locked memory for the batches of an input; null where it is none. The host may write there between
  /// beginBatch(), which waits until the batch of before is off the host, and sendBatch(). What is sent while a step
  /// runs waits on the device, and is what the next one reads.
  std::byte *batch(int buffer) const;
  Status beginBatch();
  Status sendBatch();

  /// As Executor's; read when a run starts and when it has ended.
  std::function<void(const WorkEvent &)> observer;

  /// What run() issues; tests change it.
  std::vector<Scheduled> scheduled;

private:
  /// Where a buffer of a plan lies, and which value it holds.
  struct Location {
    std::byte *data = nullptr;
    const void *value = nullptr;
  };
  /// A plan whose buffers have their places: the executor's, or a body in one iteration.
  struct Scope {
    const Plan &plan;
    std::byte *arena, *host;
    std::vector<Location> at;
  };

  DeviceExecutor(const Plan &plan, Device &device, const DeviceOptions &options)
      : source(plan), device(device), options(options) {}
  Status prepare();
  Status placeInputs();
  Status uploadConstants(const Plan &plan);
  Status locate(Scope &scope) const;
  Status flatten(Scope &scope);
  Status addStep(const Step &step, Scope &scope);
  Status addCollective(const Step &step, Scope &scope);
  Status addAllReduce(const Step &step, Scope &scope);
  /// Takes the program's plain kernels where the device does not run its calls.
  void chooseLibrary(const Step &step, const Scope &scope, cuda::Program &program, const MemoryUse &workspace);
  /// A launch as work. `workspace`: the memory of Operand::Workspace.
  Work bind(const Step &step, const Scope &scope, const cuda::Launch &launch, const MemoryUse &workspace) const;
  void addLaunches(const Step &step, Scope &scope, const cuda::Program &program, const MemoryUse &workspace);
  Status addGenerated(const Step &step, Scope &scope);
  Status addScan(const Step &step, Scope &scope);
  void addTransfer(const Step &step, Scope &scope);
  Status addUpdates();
  static Work copyWork(const std::string &step, const std::string &name, Location from, Location to, size_t bytes);
  void addCopy(const std::string &step, const std::string &name, Location from, Location to, size_t bytes);
  MemoryUse use(const Scope &scope, int buffer, bool isRead, bool isWritten) const;
  Status placeBatches();
  Status takeBatch();
  Status issue();
  Status replay();
  Status waitForRanks();
  Status checkFaults();
  Status report();

  const Plan &source;
  Device &device;
  DeviceOptions options;
  std::vector<Location> top; ///< Of the plan's buffers.
  std::map<std::pair<const Plan *, int>, Location> constants;
  std::vector<Work> work;
  std::vector<std::string> faultSteps; ///< Of each fault word.
  std::byte *faults = nullptr;
  std::map<std::string, int, std::less<>> names;
  int graph = -1;
  bool hasIssued = false; ///< The first step.
  Communicator::Traffic trafficOfStep;

  /// An input's batch on its way: on the host, and on the device until the step before it has ended.
  struct Batch {
    std::byte *host, *device;
  };
  std::map<int, Batch> batches; ///< By buffer.
  int batchStream = 0;          ///< Of copies from the host, beside the step's streams.
  int sent = -1, taken = -1;    ///< Events: batches are off the host; batches are where the step reads them.
  bool isBatchSent = false;
};

} // namespace recast::device
