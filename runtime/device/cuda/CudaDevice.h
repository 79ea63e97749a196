// A device over NVIDIA's driver.
#pragma once
#include "runtime/device/Device.h"
#include "runtime/device/cuda/CublasLt.h"
#include "runtime/device/cuda/Cudnn.h"
#include "runtime/device/cuda/Driver.h"
#include "runtime/device/cuda/Nccl.h"
#include <map>
#include <optional>

namespace recast::device {

class CudaDevice final : public Device {
public:
  /// Opens the driver; cuBLASLt is opened at the first product, cuDNN at the first convolution, NCCL by join().
  static Result<std::unique_ptr<CudaDevice>> open(int ordinal);
  /// Over functions that the caller has; those of libraries may be null.
  static Result<std::unique_ptr<CudaDevice>> create(const Driver &driver, const CublasLtFunctions *lt,
                                                    const CudnnFunctions *dnn, const NcclFunctions *nccl, int ordinal);
  ~CudaDevice() override;

  /// The compute capability of a device, 90 for sm_90. Opens the driver.
  static Result<int> architectureOf(int ordinal);

  /// "NVIDIA H100 80GB HBM3 (sm_90)".
  const std::string &name() const { return deviceName; }

  Status load(std::span<const CodeObject> code) override;
  Result<std::byte *> allocate(size_t bytes, const std::string &what) override;
  Result<std::byte *> allocateHost(size_t bytes, const std::string &what) override;
  Status useOnHost(const MemoryUse &) override { return Status::success(); }
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
  Result<bool> isDone(int stream) override;
  Status join(Communicator &ranks) override;
  void abandonRanks() override;

private:
  explicit CudaDevice(const Driver &driver) : driver(driver) {}
  Status begin(int ordinal);
  static Result<int> architectureOf(const Driver &driver, int ordinal, int &device);
  Status loadModule(const char *text, const std::string &name, CudaHandle &module) const;
  Result<CudaHandle> findKernel(const std::string &name);
  Status launchMatmul(const Work &work, CudaHandle stream);
  Status openDnn();
  void dropGraphs();
  Result<CudaHandle> streamOf(int stream);
  Result<CudaHandle> eventOf(int event);

  Driver driver;
  std::string deviceName;
  int architecture = 0;
  std::optional<CublasLtFunctions> ltFunctions;
  std::unique_ptr<CublasLt> lt;
  std::optional<CudnnFunctions> dnnFunctions;
  std::unique_ptr<Cudnn> dnn;
  std::string dnnMissing; ///< Why there is none, once that is known.
  std::optional<NcclFunctions> ncclFunctions;
  std::unique_ptr<Nccl> nccl;                        ///< Where there are several ranks.
  std::vector<CudaHandle> modules;                   ///< Of plans.
  std::map<std::string_view, CudaHandle> ownModules; ///< Of cuda::ptxModules(), those that are needed.
  std::vector<CudaHandle> streams, events, marks, graphs;
  std::map<std::string, CudaHandle, std::less<>> kernels; ///< Those that have been launched.
  std::vector<CudaPointer> allocations;
  std::vector<void *> hostAllocations;
};

} // namespace recast::device
