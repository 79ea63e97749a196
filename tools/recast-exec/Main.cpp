// recast-exec: runs a compiled plan. It links no compiler.
#include "runtime/plan/PlanFile.h"
#include "tools/run/RunSession.h"

using namespace recast;

namespace {

const tools::ToolText kText = {"recast-exec",
                               "Runs a plan that recast-opt --emit=plan compiled, as recast-run runs its model.",
                               "PLAN", "The plan; the files with its weights lie where they lay when it was made",
                               R"(  Compile once, then train without the compiler:
    recast-opt model.onnx --dim=batch=32 --emit=plan -o step.plan
    recast-exec step.plan --data=train.safetensors --epochs=3 --shuffle --state-out=trained.safetensors)"};

std::vector<GraphInput> inputsOf(const Plan &plan) {
  std::vector<GraphInput> inputs;
  for (int input : plan.inputs)
    inputs.push_back({plan.buffers[static_cast<size_t>(input)].name, plan.buffers[static_cast<size_t>(input)].type});
  return inputs;
}

} // namespace

int main(int argc, char **argv) {
  tools::RunFlags flags(kText);
  if (auto code = flags.parse(argc, argv))
    return *code;
  auto plan = readPlan(flags.model);
  if (!plan)
    return tools::failRun(flags.tool, plan.message());
  std::vector<GraphInput> inputs = inputsOf(**plan);
  return tools::runSession(flags, std::move(inputs), [&](const auto &) -> Result<std::unique_ptr<Plan>> {
    if (!*plan)
      return Status::error("'" + flags.model +
                           "' is compiled for one batch size: compile the model for this one, too, "
                           "or leave out what is left with --drop-last");
    return std::move(*plan);
  });
}
