// Runs a plan on a device: everything is given to it at once, and the host waits once a step, at its end.
#pragma once
#include "runtime/device/Device.h"
#include "runtime/exec/Executor.h"

namespace recast {

/// Owns the device. The plan must be one for CUDA (CompileOptions::device), and outlive the executor.
///
/// A step that fails (an index out of range, a label outside of the classes) is noticed at the end of the step: the
/// device's state may have changed, and the run must not go on.
Result<std::unique_ptr<Executor>> createDeviceExecutor(const Plan &plan, std::unique_ptr<Device> device);

} // namespace recast
