// What recast-run and recast-exec do once they know the model's inputs and have something that makes its plan.
#pragma once
#include "tools/run/RunFlags.h"

namespace recast::tools {

/// Joins the ranks that were started together, calls `run` with them (null: this process is alone), and ends all of
/// them where it fails: they wait for each other.
int withRanks(const RunFlags &flags, const std::function<int(Communicator *)> &run);

/// Explains the plan or runs the session, as the flags say, and gives the exit code. `inputs` are those that are no
/// state.
int runSession(const RunFlags &flags, std::vector<GraphInput> inputs, const Planner &planner,
               Communicator *communicator);

/// The same where the flags name a compiled plan.
int runPlan(const RunFlags &flags, Communicator *communicator);

} // namespace recast::tools
