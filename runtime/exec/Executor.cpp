#include "runtime/exec/Executor.h"
#include "runtime/exec/AlignedBuffer.h"
#include "runtime/exec/Frame.h"
#include <cstring>

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

} // namespace

struct Executor::Impl {
  const Plan &plan;
  AlignedBuffer arena;
  GeneratedCode code; ///< Outlives the frame, whose kernels run it.
  FrameContext context;
  std::unique_ptr<Frame> frame;
  std::vector<AlignedBuffer> owned; ///< Inputs, state, staging.
  std::vector<Update> updates;
  std::map<std::string, int, std::less<>> names;

  explicit Impl(const Plan &plan) : plan(plan) {}
  Result<std::byte *> allocate(size_t bytes, const std::string &what);
  Status prepareFrame(bool referenceOnly);
  Status placeInputs();
  Status prepareUpdates();
  void indexNames();
};

Executor::Executor(std::unique_ptr<Impl> impl) : impl(std::move(impl)) { this->impl->context.observer = &observer; }
Executor::~Executor() = default;

Result<std::unique_ptr<Executor>> Executor::create(const Plan &plan, bool referenceOnly, Communicator *communicator) {
  auto impl = std::make_unique<Impl>(plan);
  impl->context.communicator = communicator;
  if (Status status = impl->prepareFrame(referenceOnly); !status.ok())
    return status;
  if (Status status = impl->placeInputs(); !status.ok())
    return status;
  if (Status status = impl->prepareUpdates(); !status.ok())
    return status;
  impl->indexNames();
  return std::unique_ptr<Executor>(new Executor(std::move(impl)));
}

const Plan &Executor::plan() const { return impl->plan; }
TensorRef Executor::tensor(int buffer) const { return impl->frame->tensor(buffer); }
size_t Executor::arenaBytes() const { return impl->context.highWater; }

int Executor::find(std::string_view name) const {
  auto it = impl->names.find(name);
  return it == impl->names.end() ? -1 : it->second;
}

Status Executor::run() {
  if (Status status = impl->frame->run(); !status.ok())
    return status;
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

Status Executor::Impl::prepareFrame(bool referenceOnly) {
  arena = AlignedBuffer(plan.arenaBytes);
  if (!arena.data())
    return Status::error("there is not enough memory for the arena: " + std::to_string(plan.arenaBytes) + " bytes");
  if (Status status = code.load(plan.code); !status.ok())
    return status;
  context.referenceOnly = referenceOnly;
  context.code = &code;
  context.arena = arena.data();
  Result<std::unique_ptr<Frame>> made = Frame::create(plan, arena.data(), context);
  if (!made)
    return made.status();
  frame = std::move(*made);
  return Status::success();
}

Status Executor::Impl::placeInputs() {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer &buffer = plan.buffers[i];
    if (buffer.place != Place::Input && buffer.place != Place::State)
      continue;
    auto data = plan.data.find(static_cast<int>(i));
    if (buffer.place == Place::State && data == plan.data.end())
      return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
    size_t bytes = buffer.type.bytes();
    Result<std::byte *> memory = allocate(bytes, "'" + buffer.name + "'");
    if (!memory)
      return memory.status();
    if (bytes && data != plan.data.end())
      std::memcpy(*memory, data->second.bytes, bytes);
    else if (bytes)
      std::memset(*memory, 0, bytes);
    frame->bind(static_cast<int>(i), *memory);
  }
  return Status::success();
}

Status Executor::Impl::prepareUpdates() {
  for (const Output &output : plan.outputs) {
    if (output.updates < 0 || plan.rootOf(output.buffer) == output.updates)
      continue;
    const Buffer &source = plan.buffers[output.buffer], &target = plan.buffers[output.updates];
    if (source.type != target.type)
      return Status::error("output '" + output.name + "' is " + toString(source.type) +
                           ", but the state that it updates, '" + target.name + "', is " + toString(target.type));
    Update update{frame->tensor(output.buffer).data, frame->tensor(output.updates).data, source.type.bytes(), nullptr};
    if (plan.buffers[static_cast<size_t>(plan.rootOf(output.buffer))].place == Place::State) {
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
