#include "tools/common/MeasureMemory.h"
#include "ir/onnx/Node.h"
#include "runtime/compile/Compile.h"
#include "runtime/compile/Placement.h"

namespace recast::tools {

namespace {

/// Reads the facts off a plan and the plans of its bodies.
class Reader {
public:
  Reader(mlir::ModuleOp module, checkpoint::MemoryFacts &facts) : facts(facts) {
    module.walk([&](mlir::Operation *op) {
      for (mlir::Value result : op->getResults())
        results.insert(onnx_ir::nameOf(result));
    });
  }

  void read(const Plan &plan);

private:
  checkpoint::MemoryFacts &facts;
  llvm::StringSet<> results; ///< Of the model's operators; other buffers are inside of what an operator is expanded to.
};

void Reader::read(const Plan &plan) {
  std::vector<size_t> last(plan.buffers.size(), 0);
  auto isInner = [&](int buffer) {
    const Buffer &b = plan.buffers[static_cast<size_t>(buffer)];
    return b.place == Place::Arena && !results.contains(b.name);
  };
  for (size_t i = 0; i < plan.steps.size(); ++i)
    for (const std::vector<int> *buffers : {&plan.steps[i].inputs, &plan.steps[i].outputs})
      for (int buffer : *buffers)
        if (buffer >= 0)
          last[static_cast<size_t>(buffer)] = i;
  std::vector<int> inner; // Live, of expanded operators.
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step &step = plan.steps[i];
    int64_t workspace = static_cast<int64_t>(step.workspaceBytes);
    for (int buffer : step.outputs) {
      if (buffer < 0 || plan.buffers[static_cast<size_t>(buffer)].place != Place::Arena)
        continue;
      const Buffer &result = plan.buffers[static_cast<size_t>(buffer)];
      if (isInner(buffer))
        inner.push_back(buffer);
      else
        facts.tensors[result.name] = static_cast<int64_t>(result.type.bytes());
    }
    for (int buffer : inner)
      workspace += static_cast<int64_t>(plan.buffers[static_cast<size_t>(buffer)].type.bytes());
    std::erase_if(inner, [&](int buffer) { return last[static_cast<size_t>(buffer)] <= i; });
    checkpoint::StepFacts &own = facts.steps[step.origin];
    own.workspaceBytes = std::max(own.workspaceBytes, workspace);
    for (const Plan &body : step.bodies)
      read(body);
  }
}

} // namespace

mlir::FailureOr<checkpoint::MemoryFacts> measureMemory(mlir::ModuleOp module) {
  auto plan = compileModule(module, {});
  if (!plan)
    return module.emitError() << "planning its memory: " << plan.message();
  checkpoint::MemoryFacts facts;
  facts.arenaBytes = static_cast<int64_t>((*plan)->arenaBytes);
  facts.alignmentBytes = static_cast<int64_t>(placement::Problem().alignment);
  Reader(module, facts).read(**plan);
  return facts;
}

} // namespace recast::tools
