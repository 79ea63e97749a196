// If, Loop and Scan: steps that the executor runs itself.
#pragma once
#include "runtime/exec/Frame.h"

namespace recast {

/// The kernel of a step with bodies. `workspace` is where their arenas lie.
Result<std::unique_ptr<Kernel>> createControlFlow(const Step &step, std::byte *workspace, std::byte *host,
                                                  FrameContext &context);

} // namespace recast
