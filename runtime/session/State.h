// The state of a training in files: what --state-in, --state-out and checkpoints read and write.
#pragma once
#include "runtime/exec/Executor.h"
#include "runtime/session/Safetensors.h"

namespace recast {

/// Every state buffer of the plan, under its name; everything but the rename.
Result<std::unique_ptr<AtomicFile>> stageState(const std::string &path, const Executor &executor,
                                               const Metadata &metadata = {});

/// Fills every state buffer; the file may hold more. An error lists what is missing, or names the tensor and both
/// types, and leaves the state as it was.
Result<Metadata> readState(const std::string &path, Executor &executor);

/// Copies the state of one executor into another of the same model.
void copyState(const Executor &from, Executor &to);

/// "DIR/step-00000100.safetensors".
std::string checkpointPath(const std::string &folder, int64_t step);

/// The checkpoint of the latest step in the folder; "" where there is none, or no folder.
std::string latestCheckpoint(const std::string &folder);

} // namespace recast
