// A device on the host that checks what it is asked to do: kernels run by the emulation, library calls by stand-ins
// that hold the library's rules against them, and every use of memory is held against the streams' order and against
// what was written there last. The first fault ends the run, with a sentence that names the step.
#pragma once
#include "runtime/device/Hazards.h"
#include "runtime/kernels/cuda/emulation/Generated.h"
#include <chrono>
#include <set>

namespace recast::device {

class CheckingDevice final : public Device {
public:
  /// `architecture`: the compute capability whose rules hold; 0: every device's.
  explicit CheckingDevice(int architecture = 0);
  ~CheckingDevice() override;
  /// Generated kernels are host code: CompileOptions::emulates.
  Status load(std::span<const CodeObject> code) override;
  Result<std::byte *> allocate(size_t bytes, const std::string &what) override;
  Result<std::byte *> allocateHost(size_t bytes, const std::string &what) override;
  Status useOnHost(const MemoryUse &use) override;
  Status copyIn(const MemoryUse &to, const void *from, int stream) override;
  Status copyOut(void *to, const MemoryUse &from, int stream) override;
  Result<std::string> prepare(const Work &work) override;
  Status launch(const Work &work, int stream) override;
  Status record(int event, int stream) override;
  Status wait(int event, int stream) override;
  Status waitOnHost(int event) override;
  Status mark(int number, int stream) override;
  Result<double> secondsBetween(int from, int to) override;
  Status beginCapture(int stream) override;
  Result<int> endCapture(int stream) override;
  Status replay(int graph, int stream) override;
  Status synchronise() override;
  Result<bool> isDone(int) override { return true; }
  /// Sums go through the ranks' own communicator.
  Status join(Communicator &communicator) override {
    ranks = &communicator;
    return Status::success();
  }
  void abandonRanks() override {}

  /// Events that are not recorded, for tests: waits for them are left out.
  std::vector<int> lostEvents;
  bool lacksCudnn = false; ///< For tests: as a machine without the library.
  size_t launches = 0;

private:
  struct Allocation {
    std::byte *data;
    size_t bytes;
  };
  Status perform(const Work &work, int stream);
  Status execute(const Work &work) const;
  Status copy(const MemoryUse &onDevice, const void *onHost, bool isIn, int stream);
  Status checkNoCapture(const std::string &what) const;
  /// `reachesHost`: page-locked memory counts as the device's.
  Status checkUses(const std::string &step, std::span<const MemoryUse> uses, bool reachesHost = false) const;

  int architecture;
  Communicator *ranks = nullptr;
  Hazards hazards;
  std::map<int, std::chrono::steady_clock::time_point> marks;
  std::vector<Allocation> allocations, hostAllocations;
  std::vector<std::unique_ptr<cuda::emulation::GeneratedKernels>> generated;
  std::vector<std::vector<std::function<Status()>>> graphs;
  bool isCapturing = false;
  std::set<int> capturing, captured; ///< Streams and events of the capture.
  bool reversed = false;
};

} // namespace recast::device
