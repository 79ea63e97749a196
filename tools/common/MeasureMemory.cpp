#include "tools/common/MeasureMemory.h"
#include "runtime/compile/Compile.h"
#include "runtime/plan/MemoryUse.h"

namespace recast::tools {

namespace {

/// Results that take memory of an arena, in the plan and in those of its bodies.
void addTensors(const Plan &plan, llvm::StringMap<int64_t> &tensors) {
  for (const Step &step : plan.steps) {
    for (int output : step.outputs)
      if (output >= 0)
        if (const Buffer &buffer = plan.buffers[static_cast<size_t>(output)]; buffer.place == Place::Arena)
          tensors[buffer.name] = static_cast<int64_t>(buffer.type.bytes());
    for (const Plan &body : step.bodies)
      addTensors(body, tensors);
  }
}

} // namespace

mlir::FailureOr<checkpoint::MemoryFacts> measureMemory(mlir::ModuleOp module) {
  // Facts of operators are those of a plan in which each is a step; the arena is that of the run, which fuses them.
  std::unique_ptr<Plan> plan;
  auto fused = compileModule(module, {.regions = true, .generateCode = false}, &plan);
  if (!fused)
    return module.emitError() << "planning its memory: " << fused.message();
  checkpoint::MemoryFacts facts;
  facts.arenaBytes = static_cast<int64_t>((*fused)->arenaBytes);
  facts.alignmentBytes = static_cast<int64_t>(kAlignmentBytes);
  for (auto &[origin, found] : originFacts(*plan))
    facts.steps[origin] = {static_cast<int64_t>(found.workspaceBytes), found.inPlace};
  addTensors(*plan, facts.tensors);
  return facts;
}

} // namespace recast::tools
