// recast-exec: runs a compiled plan. It links no compiler.
#include "tools/run/RunSession.h"

using namespace recast;

namespace {

const tools::ToolText kText = {
    "recast-exec", "Runs a plan that recast-opt --emit=plan compiled, as recast-run runs its model.", "PLAN",
    "The plan; the files with its weights lie relative to it as they did when it was made",
    R"(  Compile once, then train without the compiler:
    recast-opt model.onnx --dim=batch=32 --emit=plan -o step.plan
    recast-exec step.plan --data=train.safetensors --epochs=3 --shuffle --drop-last \
      --state-out=trained.safetensors)"};

} // namespace

int main(int argc, char **argv) {
  tools::RunFlags flags(kText);
  if (auto code = flags.parse(argc, argv))
    return *code;
  return tools::withRanks(flags, [&](Communicator *ranks) { return tools::runPlan(flags, ranks); });
}
