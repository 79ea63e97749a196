#include "runtime/device/DeviceExecutor.h"
#include "runtime/device/CommandList.h"
#include "runtime/exec/AlignedBuffer.h"
#include <cstring>

namespace recast {

namespace {

enum Event : int { Uploaded, Computed };

/// A buffer that the host has a copy of.
struct Mirror {
  AlignedBuffer host;
  Access device;
  bool isState = false, isSmall = false;
  std::vector<std::byte> sent; ///< Of small state: what the device has.
};

class DeviceExecutor final : public Executor {
public:
  DeviceExecutor(const Plan &plan, std::unique_ptr<Device> device) : Executor(plan), device(std::move(device)) {}
  Status prepare();
  TensorRef tensor(int buffer) const override;
  Status pullState() override;
  Status pushState() override;
  Status run() override;
  size_t arenaBytes() const override { return plan().arenaBytes; }

private:
  Status placeConstants(const Plan &part);
  Status addMirror(int buffer);
  Status upload(Mirror &mirror);

  std::unique_ptr<Device> device;
  DeviceMemory memory;
  CommandList list;
  std::map<int, Mirror> mirrors; ///< Inputs, state and outputs.
  std::vector<std::byte> faults;
};

/// State of this size changes with every step's learning rate and is shown after it: it is always the newest.
constexpr size_t kSmallBytes = 8;

Status DeviceExecutor::prepare() {
  if (Status status = device->load(plan().code); !status.ok())
    return status;
  auto take = [&](size_t bytes, const std::string &what, std::byte *&to) {
    Result<std::byte *> made = device->allocate(bytes, what);
    if (made)
      to = *made;
    return made.status();
  };
  if (Status status = take(plan().arenaBytes, "the arena", memory.arena); !status.ok())
    return status;
  faults.resize(faultBytes(plan()));
  if (Status status = take(faults.size(), "reports of faults", memory.faults); !status.ok())
    return status;
  for (size_t i = 0; i < plan().buffers.size(); ++i)
    if (Place place = plan().buffers[i].place; place == Place::Input || place == Place::State) {
      const Buffer &buffer = plan().buffers[i];
      Status status = take(buffer.type.bytes(), "'" + buffer.name + "'", memory.fixed[{&plan(), static_cast<int>(i)}]);
      if (!status.ok())
        return status;
    }
  if (Status status = placeConstants(plan()); !status.ok())
    return status;
  Result<CommandList> made = listCommands(plan(), memory);
  if (!made)
    return made.status();
  list = std::move(*made);
  for (size_t i = 0; i < plan().buffers.size(); ++i)
    if (Place place = plan().buffers[i].place; place == Place::Input || place == Place::State)
      if (Status status = addMirror(static_cast<int>(i)); !status.ok())
        return status;
  for (const Output &output : plan().outputs)
    if (!mirrors.contains(plan().rootOf(output.buffer)))
      if (Status status = addMirror(output.buffer); !status.ok())
        return status;
  return pushState();
}

/// Constants of the plan and its bodies go to the device once.
Status DeviceExecutor::placeConstants(const Plan &part) {
  for (size_t i = 0; i < part.buffers.size(); ++i) {
    const Buffer &buffer = part.buffers[i];
    auto data = part.data.find(static_cast<int>(i));
    if (buffer.place != Place::Constant || data == part.data.end())
      continue;
    Result<std::byte *> made = device->allocate(buffer.type.bytes(), "'" + buffer.name + "'");
    if (!made)
      return made.status();
    memory.fixed[{&part, static_cast<int>(i)}] = *made;
    if (buffer.type.bytes())
      if (Status status = device->upload(Stream::Copy, {*made, buffer.type.bytes(), false, true, kAnyOwner},
                                         data->second.bytes);
          !status.ok())
        return status;
  }
  for (const Step &step : part.steps)
    for (const Plan &body : step.bodies)
      if (Status status = placeConstants(body); !status.ok())
        return status;
  return Status::success();
}

Status DeviceExecutor::addMirror(int index) {
  const Buffer &buffer = plan().buffers[static_cast<size_t>(index)];
  auto [it, isNew] = mirrors.try_emplace(index);
  if (!isNew)
    return Status::success();
  Mirror &mirror = it->second;
  mirror.device = list.buffers[static_cast<size_t>(index)];
  mirror.isState = buffer.place == Place::State;
  mirror.isSmall = mirror.isState && mirror.device.bytes <= kSmallBytes;
  mirror.host = AlignedBuffer(mirror.device.bytes);
  if (!mirror.host.data())
    return Status::error("there is not enough memory for '" + buffer.name + "'");
  auto data = plan().data.find(index);
  if (mirror.isState && data == plan().data.end())
    return Status::error("state input '" + buffer.name + "' has no initial value: give it an initializer");
  if (mirror.device.bytes && data != plan().data.end())
    std::memcpy(mirror.host.data(), data->second.bytes, mirror.device.bytes);
  else if (mirror.device.bytes)
    std::memset(mirror.host.data(), 0, mirror.device.bytes);
  return Status::success();
}

TensorRef DeviceExecutor::tensor(int buffer) const {
  const Buffer &b = plan().buffers[static_cast<size_t>(buffer)];
  auto mirror = mirrors.find(buffer);
  if (mirror == mirrors.end())
    mirror = mirrors.find(plan().rootOf(buffer));
  return {b.type.dtype, b.type.dims, mirror == mirrors.end() ? nullptr : mirror->second.host.data()};
}

Status DeviceExecutor::upload(Mirror &mirror) {
  if (!mirror.device.bytes)
    return Status::success();
  if (mirror.isSmall)
    mirror.sent.assign(mirror.host.data(), mirror.host.data() + mirror.device.bytes);
  return device->upload(Stream::Copy, mirror.device, mirror.host.data());
}

Status DeviceExecutor::pushState() {
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.isState)
      if (Status status = upload(mirror); !status.ok())
        return status;
  return device->synchronize();
}

Status DeviceExecutor::pullState() {
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.isState && mirror.device.bytes)
      if (Status status = device->download(Stream::Copy, mirror.host.data(), mirror.device); !status.ok())
        return status;
  return device->synchronize();
}

Status DeviceExecutor::run() {
  for (auto &[buffer, mirror] : mirrors) {
    bool isInput = plan().buffers[static_cast<size_t>(buffer)].place == Place::Input;
    bool hasChanged = mirror.isSmall && !std::equal(mirror.sent.begin(), mirror.sent.end(), mirror.host.data());
    if (isInput || hasChanged)
      if (Status status = upload(mirror); !status.ok())
        return status;
  }
  if (Status status = device->record(Stream::Copy, Uploaded); !status.ok())
    return status;
  if (Status status = device->wait(Stream::Compute, Uploaded); !status.ok())
    return status;
  for (const Command &command : list.commands)
    if (Status status = device->issue(Stream::Compute, command); !status.ok())
      return status;
  if (Status status = device->record(Stream::Compute, Computed); !status.ok())
    return status;
  if (Status status = device->wait(Stream::Copy, Computed); !status.ok())
    return status;
  for (auto &[buffer, mirror] : mirrors) {
    bool isInput = plan().buffers[static_cast<size_t>(buffer)].place == Place::Input;
    if (isInput || (mirror.isState && !mirror.isSmall) || !mirror.device.bytes)
      continue;
    if (Status status = device->download(Stream::Copy, mirror.host.data(), mirror.device); !status.ok())
      return status;
  }
  Access reports = list.commands.front().accesses[0];
  if (Status status = device->download(Stream::Copy, faults.data(), reports); !status.ok())
    return status;
  if (Status status = device->synchronize(); !status.ok())
    return status;
  for (auto &[buffer, mirror] : mirrors)
    if (mirror.isSmall)
      mirror.sent.assign(mirror.host.data(), mirror.host.data() + mirror.device.bytes);
  for (const FaultReport &report : list.faults) {
    uint64_t position;
    std::memcpy(&position, faults.data() + report.offset, sizeof(position));
    if (position != ~uint64_t(0))
      return Status::error(report.step + ": the value at position " + std::to_string(position) + " is out of range");
  }
  return Status::success();
}

} // namespace

Result<std::unique_ptr<Executor>> createDeviceExecutor(const Plan &plan, std::unique_ptr<Device> device) {
  auto executor = std::make_unique<DeviceExecutor>(plan, std::move(device));
  if (Status status = executor->prepare(); !status.ok())
    return status;
  return std::unique_ptr<Executor>(std::move(executor));
}

} // namespace recast
