// What recast-run and recast-exec do once they know the model's inputs and have something that makes its plan.
#pragma once
#include "tools/run/RunFlags.h"

namespace recast::tools {

/// Explains the plan or runs the session, as the flags say, and gives the exit code. `inputs` are those that are no
/// state.
int runSession(const RunFlags &flags, std::vector<GraphInput> inputs, const Planner &planner);

/// The same where the flags name a compiled plan.
int runPlan(const RunFlags &flags);

} // namespace recast::tools
