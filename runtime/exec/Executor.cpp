#include "runtime/exec/Executor.h"
#include "runtime/exec/AlignedBuffer.h"
#include <algorithm>
#include <cstring>

namespace recast {

namespace {

/// A step with everything resolved: what run() walks over.
struct PreparedStep {
  std::unique_ptr<Kernel> kernel;
  KernelArgs args;
};

/// A copy of an output into the state that it updates. `staging` is set where the source is itself state (two states
/// that swap, say): all such sources are read before any state is written.
struct Update {
  const void *source;
  void *target;
  size_t bytes;
  std::byte *staging;
};

} // namespace

struct Executor::Impl {
  const Plan &plan;
  AlignedBuffer arena;
  size_t arenaEnd = 0;              ///< One past the last byte that a step may touch, rounded up to the alignment.
  std::vector<AlignedBuffer> owned; ///< Inputs, state, staging.
  std::vector<TensorRef> tensors;   ///< One per buffer of the plan.
  std::vector<TensorRef> operands;  ///< What the steps' args view.
  std::vector<PreparedStep> steps;
  std::vector<Update> updates;
  std::map<std::string, int, std::less<>> names;

  explicit Impl(const Plan &plan) : plan(plan) {}
  void touch(size_t end) {
    arenaEnd = std::max(arenaEnd, (end + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  }
  Result<std::byte *> allocate(size_t bytes, const std::string &what);
  Status placeBuffers();
  Status prepareSteps(bool referenceOnly);
  Status prepareUpdates();
  void indexNames();
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl(std::move(impl)) {}
Executor::~Executor() = default;

Result<std::unique_ptr<Executor>> Executor::create(const Plan &plan, bool referenceOnly) {
  auto impl = std::make_unique<Impl>(plan);
  if (Status status = impl->placeBuffers(); !status.ok())
    return status;
  if (Status status = impl->prepareSteps(referenceOnly); !status.ok())
    return status;
  if (Status status = impl->prepareUpdates(); !status.ok())
    return status;
  impl->indexNames();
  return std::unique_ptr<Executor>(new Executor(std::move(impl)));
}

const Plan &Executor::plan() const { return impl->plan; }
TensorRef Executor::tensor(int buffer) const { return impl->tensors[buffer]; }
size_t Executor::arenaBytes() const { return impl->arenaEnd; }

int Executor::find(std::string_view name) const {
  auto it = impl->names.find(name);
  return it == impl->names.end() ? -1 : it->second;
}

Status Executor::run() {
  for (size_t i = 0; i < impl->steps.size(); ++i) {
    PreparedStep &step = impl->steps[i];
    if (observer)
      observer(i, true);
    Status status = step.kernel->run(step.args);
    if (observer)
      observer(i, false);
    if (!status.ok())
      return status;
  }
  for (const Update &update : impl->updates)
    if (update.staging && update.bytes)
      std::memcpy(update.staging, update.source, update.bytes);
  for (const Update &update : impl->updates)
    if (update.bytes)
      std::memcpy(update.target, update.staging ? update.staging : update.source, update.bytes);
  return Status::success();
}

Result<std::byte *> Executor::Impl::allocate(size_t bytes, const std::string &what) {
  AlignedBuffer buffer(bytes);
  if (!buffer.data())
    return Status::error("there is not enough memory for " + what + ": " + std::to_string(bytes) + " bytes");
  owned.push_back(std::move(buffer));
  return owned.back().data();
}

Status Executor::Impl::placeBuffers() {
  arena = AlignedBuffer(plan.arenaBytes);
  if (!arena.data())
    return Status::error("there is not enough memory for the arena: " + std::to_string(plan.arenaBytes) + " bytes");
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer &buffer = plan.buffers[i];
    auto data = plan.data.find(static_cast<int>(i));
    TensorRef &tensor = tensors.emplace_back(buffer.type.dtype, buffer.type.dims);
    size_t bytes = tensor.bytes();
    switch (buffer.place) {
    case Place::Absent:
      tensor = TensorRef();
      break;
    case Place::Arena:
      if (buffer.offset > plan.arenaBytes || bytes > plan.arenaBytes - buffer.offset)
        return Status::error("the plan is damaged: buffer '" + buffer.name + "' ends beyond the arena");
      tensor.data = arena.data() + buffer.offset;
      touch(buffer.offset + bytes);
      break;
    case Place::Constant:
      if (data == plan.data.end())
        return Status::error("the plan is damaged: constant '" + buffer.name + "' has no data");
      tensor.data = const_cast<void *>(data->second.bytes);
      break;
    case Place::Input:
    case Place::State:
      if (buffer.place == Place::State && data == plan.data.end())
        return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
      Result<std::byte *> memory = allocate(bytes, "'" + buffer.name + "'");
      if (!memory)
        return memory.status();
      tensor.data = *memory;
      if (bytes && data != plan.data.end())
        std::memcpy(tensor.data, data->second.bytes, bytes);
      else if (bytes)
        std::memset(tensor.data, 0, bytes);
      break;
    }
  }
  return Status::success();
}

Status Executor::Impl::prepareSteps(bool referenceOnly) {
  size_t count = 0;
  for (const Step &step : plan.steps)
    count += step.inputs.size() + step.outputs.size();
  operands.reserve(count); // The spans below point into it.
  auto view = [this](const std::vector<int> &indices) {
    size_t first = operands.size();
    for (int index : indices)
      operands.push_back(index < 0 ? TensorRef() : tensors[index]);
    return std::span<const TensorRef>(operands).subspan(first);
  };
  for (const Step &step : plan.steps) {
    KernelChoice choice = chooseCpuKernel(step.spec, referenceOnly || step.library == "reference");
    std::string name = "'" + step.spec.name + "' (" + step.spec.op + ")";
    if (!choice.kernel) {
      std::string reasons;
      for (const std::string &refusal : choice.refusals)
        reasons += (reasons.empty() ? ": " : "; ") + refusal;
      return Status::error("no kernel runs " + name + reasons);
    }
    if (choice.library != step.library && !referenceOnly)
      return Status::error("the plan has " + step.library + " for " + name + ", but this machine would take " +
                           choice.library + ": compile the model here");
    if (choice.kernel->workspaceBytes() > step.workspaceBytes)
      return Status::error("the plan has " + std::to_string(step.workspaceBytes) + " bytes of workspace for " + name +
                           ", which needs " + std::to_string(choice.kernel->workspaceBytes()) +
                           ": compile the model with the same kernels");
    if (step.workspaceOffset > plan.arenaBytes || step.workspaceBytes > plan.arenaBytes - step.workspaceOffset)
      return Status::error("the plan is damaged: the workspace of " + name + " ends beyond the arena");
    PreparedStep prepared{std::move(choice.kernel), {}};
    prepared.args.inputs = view(step.inputs);
    prepared.args.outputs = view(step.outputs);
    touch(step.workspaceBytes ? step.workspaceOffset + step.workspaceBytes : 0);
    prepared.args.workspace = {arena.data() + step.workspaceOffset, step.workspaceBytes};
    steps.push_back(std::move(prepared));
  }
  return Status::success();
}

Status Executor::Impl::prepareUpdates() {
  for (const Output &output : plan.outputs) {
    if (output.updates < 0 || output.updates == output.buffer)
      continue;
    const Buffer &source = plan.buffers[output.buffer], &target = plan.buffers[output.updates];
    if (source.type != target.type)
      return Status::error("output '" + output.name + "' is " + toString(source.type) +
                           ", but the state that it updates, '" + target.name + "', is " + toString(target.type));
    Update update{tensors[output.buffer].data, tensors[output.updates].data, source.type.bytes(), nullptr};
    if (source.place == Place::State) {
      Result<std::byte *> memory = allocate(update.bytes, "the new value of '" + target.name + "'");
      if (!memory)
        return memory.status();
      update.staging = *memory;
    }
    updates.push_back(update);
  }
  return Status::success();
}

void Executor::Impl::indexNames() {
  for (const Output &output : plan.outputs)
    names[output.name] = output.buffer;
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::Input || plan.buffers[i].place == Place::State)
      names[plan.buffers[i].name] = static_cast<int>(i);
}

} // namespace recast
