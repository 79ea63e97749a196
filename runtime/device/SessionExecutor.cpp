#include "runtime/device/SessionExecutor.h"
#include "runtime/exec/AlignedBuffer.h"
#include <algorithm>
#include <cstring>

namespace recast::device {
namespace {

/// State of this size changes with every step's learning rate and is shown after it: its copy is always the newest.
constexpr size_t kSmallBytes = 8;

/// A buffer that the host has a copy of. Inputs and outputs are page-locked.
struct Mirror {
  AlignedBuffer own; ///< Of state.
  std::byte *host = nullptr;
  size_t bytes = 0;
  Place place = Place::Absent;
  std::vector<std::byte> sent; ///< Of small state: what the device has.
  bool isSmall() const { return place == Place::State && bytes <= kSmallBytes; }
};

class SessionExecutor final : public Executor {
public:
  SessionExecutor(const Plan &plan, std::unique_ptr<Device> device) : Executor(plan), device(std::move(device)) {}
  Status prepare(const DeviceOptions &options);
  TensorRef tensor(int buffer) const override;
  Status pullState() override;
  Status pushState() override;
  Status run() override {
    return runAhead([] { return false; });
  }
  Status runAhead(const std::function<bool()> &fillNext) override;
  size_t arenaBytes() const override { return plan().arenaBytes; }
  size_t hostBytes() const override { return plan().hostBytes; }

private:
  Status addMirror(int buffer);
  Status send(int buffer, Mirror &mirror);
  Status fetch(int buffer, Mirror &mirror);

  std::unique_ptr<Device> device;
  std::unique_ptr<DeviceExecutor> executor;
  std::map<int, Mirror> mirrors; ///< Inputs, state and outputs.
  bool isNextSent = false;       ///< The batch of the next run.
};

Status SessionExecutor::prepare(const DeviceOptions &options) {
  auto made = DeviceExecutor::create(plan(), *device, options);
  if (!made)
    return made.status();
  executor = std::move(*made);
  for (size_t i = 0; i < plan().buffers.size(); ++i)
    if (Place place = plan().buffers[i].place; place == Place::Input || place == Place::State)
      if (Status status = addMirror(static_cast<int>(i)); !status.ok())
        return status;
  // What is read of an input is that of the run, not of the next one.
  for (const Output &output : plan().outputs)
    if (auto root = mirrors.find(plan().rootOf(output.buffer));
        root == mirrors.end() || root->second.place == Place::Input)
      if (Status status = addMirror(output.buffer); !status.ok())
        return status;
  return pushState();
}

Status SessionExecutor::addMirror(int index) {
  auto [it, isNew] = mirrors.try_emplace(index);
  if (!isNew)
    return Status::success();
  const Buffer &buffer = plan().buffers[static_cast<size_t>(index)];
  Mirror &mirror = it->second;
  mirror.place = buffer.place;
  mirror.bytes = buffer.type.bytes();
  if (mirror.place == Place::State) {
    mirror.own = AlignedBuffer(mirror.bytes);
    mirror.host = mirror.own.data();
    if (!mirror.host)
      return Status::error("there is not enough memory for '" + buffer.name + "'");
  } else if (mirror.place == Place::Input) {
    mirror.host = executor->batch(index);
  } else {
    Result<std::byte *> host = device->allocateHost(mirror.bytes, "'" + buffer.name + "'");
    if (!host)
      return host.status();
    mirror.host = *host;
  }
  auto data = plan().data.find(index);
  if (mirror.place == Place::State && data == plan().data.end())
    return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
  if (mirror.bytes && data != plan().data.end())
    std::memcpy(mirror.host, data->second.bytes, mirror.bytes);
  else if (mirror.bytes)
    std::memset(mirror.host, 0, mirror.bytes);
  return Status::success();
}

TensorRef SessionExecutor::tensor(int buffer) const {
  const Buffer &b = plan().buffers[static_cast<size_t>(buffer)];
  auto mirror = mirrors.find(buffer);
  if (mirror == mirrors.end())
    mirror = mirrors.find(plan().rootOf(buffer));
  return {b.type.dtype, b.type.dims, mirror == mirrors.end() ? nullptr : mirror->second.host};
}

Status SessionExecutor::send(int buffer, Mirror &mirror) {
  if (mirror.isSmall())
    mirror.sent.assign(mirror.host, mirror.host + mirror.bytes);
  return mirror.bytes ? executor->write(buffer, mirror.host) : Status::success();
}

Status SessionExecutor::fetch(int buffer, Mirror &mirror) {
  if (mirror.bytes)
    if (Status status = executor->read(buffer, mirror.host); !status.ok())
      return status;
  if (mirror.isSmall())
    mirror.sent.assign(mirror.host, mirror.host + mirror.bytes);
  return Status::success();
}

Status SessionExecutor::pushState() {
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.place == Place::State)
      if (Status status = send(buffer, mirror); !status.ok())
        return status;
  return device->synchronise();
}

Status SessionExecutor::pullState() {
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.place == Place::State)
      if (Status status = fetch(buffer, mirror); !status.ok())
        return status;
  return Status::success();
}

Status SessionExecutor::runAhead(const std::function<bool()> &fillNext) {
  if (!isNextSent) { // The caller has written a batch.
    if (Status status = executor->beginBatch(); !status.ok())
      return status;
    if (Status status = executor->sendBatch(); !status.ok())
      return status;
  }
  isNextSent = false;
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.isSmall() && !std::equal(mirror.sent.begin(), mirror.sent.end(), mirror.host))
      if (Status status = send(buffer, mirror); !status.ok())
        return status;
  executor->observer = workObserver;
  if (Status status = executor->start(); !status.ok())
    return status;
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.bytes && mirror.place != Place::Input && (mirror.place != Place::State || mirror.isSmall()))
      if (Status status = executor->readLater(buffer, mirror.host); !status.ok())
        return status;
  if (Status status = executor->beginBatch(); !status.ok())
    return status;
  if (fillNext()) {
    if (Status status = executor->sendBatch(); !status.ok())
      return status;
    isNextSent = true;
  }
  if (Status status = executor->finish(); !status.ok())
    return status;
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.isSmall())
      mirror.sent.assign(mirror.host, mirror.host + mirror.bytes);
  return Status::success();
}

} // namespace

Result<std::unique_ptr<Executor>> createSessionExecutor(const Plan &plan, std::unique_ptr<Device> device,
                                                        const DeviceOptions &options) {
  auto executor = std::make_unique<SessionExecutor>(plan, std::move(device));
  if (Status status = executor->prepare(options); !status.ok())
    return status;
  return std::unique_ptr<Executor>(std::move(executor));
}

} // namespace recast::device
