#include "runtime/exec/Executor.h"
#include "runtime/exec/AlignedBuffer.h"
#include "runtime/exec/Frame.h"
#include <cstring>
#include <optional>

namespace recast {

namespace {

/// A copy of an output into the state that it updates, where it does not lie there already. `staging` is set where the
/// source is itself state (two states that swap, say): all such sources are read before any state is written.
struct Update {
  const void *source;
  void *target;
  size_t bytes;
  std::byte *staging;
};

class CpuExecutor final : public Executor {
public:
  explicit CpuExecutor(const Plan &plan) : Executor(plan) { context.observer = &observer; }
  Status prepare(bool referenceOnly, Communicator *communicator, size_t bucketBytes);
  TensorRef tensor(int buffer) const override { return frame->tensor(buffer); }
  Status run() override;
  size_t arenaBytes() const override { return context.highWater; }
  size_t hostBytes() const override { return context.hostHighWater; }

private:
  Result<std::byte *> allocate(size_t bytes, const std::string &what);
  Status prepareFrame(bool referenceOnly);
  Status placeInputs();
  Status prepareUpdates();

  AlignedBuffer arena, host;
  GeneratedCode code; ///< Outlives the frame, whose kernels run it.
  FrameContext context;
  std::unique_ptr<Frame> frame;
  std::vector<AlignedBuffer> owned; ///< Inputs, state, staging.
  std::vector<Update> updates;
  std::optional<ReductionThread> reductions; ///< Ends before the buckets that it sums.
};

Status CpuExecutor::prepare(bool referenceOnly, Communicator *communicator, size_t bucketBytes) {
  context.communicator = communicator;
  context.bucketBytes = bucketBytes;
  if (communicator && communicator->worksOnThreads())
    context.reductions = &reductions.emplace(*communicator);
  if (Status status = prepareFrame(referenceOnly); !status.ok())
    return status;
  if (Status status = placeInputs(); !status.ok())
    return status;
  return prepareUpdates();
}

Status CpuExecutor::run() {
  if (Status status = frame->run(); !status.ok())
    return status;
  for (const Update &update : updates)
    if (update.staging && update.bytes)
      std::memcpy(update.staging, update.source, update.bytes);
  for (const Update &update : updates)
    if (update.bytes)
      std::memcpy(update.target, update.staging ? update.staging : update.source, update.bytes);
  return Status::success();
}

Result<std::byte *> CpuExecutor::allocate(size_t bytes, const std::string &what) {
  AlignedBuffer buffer(bytes);
  if (!buffer.data())
    return Status::error("there is not enough memory for " + what + ": " + std::to_string(bytes) + " bytes");
  owned.push_back(std::move(buffer));
  return owned.back().data();
}

Status CpuExecutor::prepareFrame(bool referenceOnly) {
  arena = AlignedBuffer(plan().arenaBytes);
  if (!arena.data())
    return Status::error("there is not enough memory for the arena: " + std::to_string(plan().arenaBytes) + " bytes");
  host = AlignedBuffer(plan().hostBytes);
  if (!host.data())
    return Status::error("there is not enough memory for what is offloaded: " + std::to_string(plan().hostBytes) +
                         " bytes");
  if (Status status = code.load(plan().code); !status.ok())
    return status;
  context.referenceOnly = referenceOnly;
  context.code = &code;
  context.arena = arena.data();
  context.host = host.data();
  Result<std::unique_ptr<Frame>> made = Frame::create(plan(), arena.data(), host.data(), context);
  if (!made)
    return made.status();
  frame = std::move(*made);
  return Status::success();
}

Status CpuExecutor::placeInputs() {
  for (size_t i = 0; i < plan().buffers.size(); ++i) {
    const Buffer &buffer = plan().buffers[i];
    if (buffer.place != Place::Input && buffer.place != Place::State)
      continue;
    auto data = plan().data.find(static_cast<int>(i));
    if (buffer.place == Place::State && data == plan().data.end())
      return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
    size_t bytes = buffer.type.bytes();
    Result<std::byte *> memory = allocate(bytes, "'" + buffer.name + "'");
    if (!memory)
      return memory.status();
    if (bytes && data != plan().data.end())
      std::memcpy(*memory, data->second.bytes, bytes);
    else if (bytes)
      std::memset(*memory, 0, bytes);
    frame->bind(static_cast<int>(i), *memory);
  }
  return Status::success();
}

Status CpuExecutor::prepareUpdates() {
  for (const Output &output : plan().outputs) {
    if (output.updates < 0 || plan().rootOf(output.buffer) == output.updates)
      continue;
    const Buffer &source = plan().buffers[output.buffer], &target = plan().buffers[output.updates];
    if (source.type != target.type)
      return Status::error("output '" + output.name + "' is " + toString(source.type) +
                           ", but the state that it updates, '" + target.name + "', is " + toString(target.type));
    Update update{frame->tensor(output.buffer).data, frame->tensor(output.updates).data, source.type.bytes(), nullptr};
    if (plan().buffers[static_cast<size_t>(plan().rootOf(output.buffer))].place == Place::State) {
      Result<std::byte *> memory = allocate(update.bytes, "the new value of '" + target.name + "'");
      if (!memory)
        return memory.status();
      update.staging = *memory;
    }
    updates.push_back(update);
  }
  return Status::success();
}

} // namespace

Executor::Executor(const Plan &plan) : source(plan) {
  for (const Output &output : plan.outputs)
    names[output.name] = output.buffer;
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].place == Place::Input || plan.buffers[i].place == Place::State)
      names[plan.buffers[i].name] = static_cast<int>(i);
}

int Executor::find(std::string_view name) const {
  auto it = names.find(name);
  return it == names.end() ? -1 : it->second;
}

Result<std::unique_ptr<Executor>> Executor::create(const Plan &plan, bool referenceOnly, Communicator *communicator,
                                                   size_t bucketBytes) {
  auto executor = std::make_unique<CpuExecutor>(plan);
  if (Status status = executor->prepare(referenceOnly, communicator, bucketBytes); !status.ok())
    return status;
  return std::unique_ptr<Executor>(std::move(executor));
}

} // namespace recast
