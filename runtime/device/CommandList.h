// The commands of a plan for a GPU, with all addresses: what runs at every step, in order.
#pragma once
#include "runtime/device/Device.h"

namespace recast {

/// A step that may meet a value that it cannot work with: the device writes the position there.
struct FaultReport {
  std::string step;
  size_t offset = 0; ///< In the memory for faults; ~0 means that all is well.
};

struct CommandList {
  std::vector<Command> commands;
  std::vector<FaultReport> faults;
  std::vector<Access> buffers; ///< Of the plan's buffers, bytes and owner included; data is null where absent.
};

/// Where a plan's memory lies.
struct DeviceMemory {
  std::byte *arena = nullptr, *faults = nullptr;
  std::map<std::pair<const Plan *, int>, std::byte *> fixed; ///< Inputs, state and constants, those of bodies too.
};

/// Bytes that faults need.
size_t faultBytes(const Plan &plan);
/// An error names the first step that a GPU does not run.
Result<CommandList> listCommands(const Plan &plan, const DeviceMemory &memory);

} // namespace recast
