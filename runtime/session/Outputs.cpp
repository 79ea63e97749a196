#include "runtime/session/Outputs.h"
#include "runtime/session/Safetensors.h"

namespace recast {

Status OutputStack::append(const Executor &executor) {
  const Plan &plan = executor.plan();
  for (const Output &output : plan.outputs) {
    const TensorType &type = plan.buffers[output.buffer].type;
    auto [it, isNew] = stacks.try_emplace(output.name);
    Stack &stack = it->second;
    if (isNew)
      stack.type = type;
    else if (stack.type != type)
      return Status::error("output '" + output.name + "' is " + toString(type) + " at step " +
                           std::to_string(steps + 1) + " and was " + toString(stack.type) +
                           ": steps of unequal sizes do not stack in '" + path + "'; pass --drop-last");
    const std::byte *bytes = executor.tensor(output.buffer).as<std::byte>();
    stack.bytes.insert(stack.bytes.end(), bytes, bytes + type.bytes());
  }
  ++steps;
  return Status::success();
}

Result<std::unique_ptr<AtomicFile>> OutputStack::stage() const {
  std::vector<NamedTensor> tensors;
  for (const auto &[name, stack] : stacks) {
    TensorType type = stack.type;
    type.dims.insert(type.dims.begin(), steps);
    tensors.push_back({name, std::move(type), stack.bytes.data()});
  }
  return stageSafetensors(path, std::move(tensors));
}

} // namespace recast
