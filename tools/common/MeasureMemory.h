// The runtime's answer to passes that plan memory.
#pragma once
#include "passes/checkpoint/Memory.h"

namespace recast::tools {

/// Compiles the module as recast-run will. An error of the compiler is reported as one of the model.
mlir::FailureOr<checkpoint::MemoryFacts> measureMemory(mlir::ModuleOp module);

} // namespace recast::tools
