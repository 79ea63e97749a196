// A DeviceExecutor as the session's Executor: it reads and writes copies on the host.
#pragma once
#include "runtime/device/DeviceExecutor.h"
#include "runtime/exec/Executor.h"

namespace recast::device {

/// Owns the device. The plan outlives the executor.
Result<std::unique_ptr<Executor>> createSessionExecutor(const Plan &plan, std::unique_ptr<Device> device,
                                                        const DeviceOptions &options);

} // namespace recast::device
