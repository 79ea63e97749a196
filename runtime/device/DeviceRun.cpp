// What a DeviceExecutor does at every step: batches go in, work is issued or replayed, numbers come out.
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include <algorithm>
#include <cstring>
#include <utility>

namespace recast::device {
Status DeviceExecutor::placeBatches() {
  batchStream = std::max(options.streams, 1);
  for (const Scheduled &item : scheduled)
    sent = std::max(sent, item.event);
  taken = ++sent + 1;
  for (int input : source.inputs) {
    const Buffer &buffer = source.buffers[static_cast<size_t>(input)];
    Result<std::byte *> host = device.allocateHost(buffer.type.bytes(), "'" + buffer.name + "'");
    if (!host)
      return host.status();
    Result<std::byte *> waiting = device.allocate(buffer.type.bytes(), "the next '" + buffer.name + "'");
    if (!waiting)
      return waiting.status();
    batches[input] = {*host, *waiting};
  }
  if (Status status = device.record(sent, batchStream); !status.ok())
    return status;
  return device.record(taken, 0);
}

std::byte *DeviceExecutor::batch(int buffer) const {
  auto found = batches.find(buffer);
  return found == batches.end() ? nullptr : found->second.host;
}

Status DeviceExecutor::beginBatch() {
  if (Status status = device.waitOnHost(sent); !status.ok())
    return status;
  for (const auto &[buffer, place] : batches) {
    const Buffer &b = source.buffers[static_cast<size_t>(buffer)];
    MemoryUse use{"'" + b.name + "' on the host", place.host, b.type.bytes(), false, true, place.host};
    if (Status status = device.useOnHost(use); !status.ok())
      return status;
  }
  return Status::success();
}

Status DeviceExecutor::sendBatch() {
  if (Status status = device.wait(taken, batchStream); !status.ok())
    return status;
  for (const auto &[buffer, place] : batches) {
    const Buffer &b = source.buffers[static_cast<size_t>(buffer)];
    MemoryUse to{"the next '" + b.name + "'", place.device, b.type.bytes(), false, true, place.device};
    if (Status status = device.copyIn(to, place.host, batchStream); !status.ok())
      return status;
  }
  isBatchSent = true;
  return device.record(sent, batchStream);
}

/// Puts the batch that was sent where the step reads it.
Status DeviceExecutor::takeBatch() {
  if (!isBatchSent)
    return Status::success();
  isBatchSent = false;
  if (Status status = device.wait(sent, 0); !status.ok())
    return status;
  for (const auto &[buffer, place] : batches) {
    const Buffer &b = source.buffers[static_cast<size_t>(buffer)];
    const Location &to = top[static_cast<size_t>(buffer)];
    if (Status status = device.launch(
            copyWork("the beginning of the step", "'" + b.name + "'", {place.device, place.device}, to, b.type.bytes()),
            0);
        !status.ok())
      return status;
  }
  return device.record(taken, 0);
}

int DeviceExecutor::find(std::string_view name) const {
  auto found = names.find(name);
  return found == names.end() ? -1 : found->second;
}

Status DeviceExecutor::write(int buffer, const void *bytes) {
  const Buffer &b = source.buffers[static_cast<size_t>(buffer)];
  const Location &at = top[static_cast<size_t>(buffer)];
  return device.copyIn({"'" + b.name + "'", at.data, b.type.bytes(), false, true, at.value}, bytes, 0);
}

Status DeviceExecutor::readLater(int buffer, void *bytes) {
  const Buffer &b = source.buffers[static_cast<size_t>(buffer)];
  const Location &at = top[static_cast<size_t>(buffer)];
  return device.copyOut(bytes, {"'" + b.name + "'", at.data, b.type.bytes(), true, false, at.value}, 0);
}

Status DeviceExecutor::read(int buffer, void *bytes) {
  Status status = readLater(buffer, bytes);
  return status.ok() ? device.synchronise() : status;
}

Status DeviceExecutor::issue() {
  int mark = 0; // Two around each piece.
  for (const Scheduled &item : scheduled) {
    for (int event : item.waits)
      if (Status status = device.wait(event, item.stream); !status.ok())
        return status;
    if (observer)
      if (Status status = device.mark(mark++, item.stream); !status.ok())
        return status;
    if (Status status = device.launch(item.work, item.stream); !status.ok())
      return status;
    if (observer)
      if (Status status = device.mark(mark++, item.stream); !status.ok())
        return status;
    if (item.event >= 0)
      if (Status status = device.record(item.event, item.stream); !status.ok())
        return status;
  }
  return Status::success();
}

Status DeviceExecutor::run() {
  Status status = start();
  return status.ok() ? finish() : status;
}

Status DeviceExecutor::start() {
  Status status = takeBatch();
  if (status.ok())
    status = replay();
  if (!status.ok() && options.ranks)
    device.abandonRanks();
  return status;
}

Status DeviceExecutor::finish() {
  Status status = options.ranks ? waitForRanks() : Status::success();
  if (status.ok())
    status = checkFaults();
  if (status.ok() && observer)
    status = report();
  if (!status.ok() && options.ranks)
    device.abandonRanks();
  return status;
}

/// The first step is issued as it is: libraries make handles and connections and choose algorithms, and the driver
/// loads kernels, when they are first used, which needs memory and waits that a capture does not allow.
Status DeviceExecutor::replay() {
  if (!options.graph || observer || !std::exchange(hasIssued, true))
    return issue();
  if (graph < 0) {
    if (Status status = device.beginCapture(0); !status.ok())
      return status;
    Status status = issue();
    Result<int> captured = device.endCapture(0);
    if (!status.ok())
      return status;
    if (!captured)
      return captured.status();
    graph = *captured;
  }
  return device.replay(graph, 0);
}

/// Tells the observer of a run that has ended.
Status DeviceExecutor::report() {
  int mark = 0;
  for (const Scheduled &item : scheduled) {
    Result<double> begin = device.secondsBetween(0, mark), end = device.secondsBetween(0, mark + 1);
    mark += 2;
    if (!begin || !end)
      return begin ? end.status() : begin.status();
    const Work &work = item.work;
    size_t bytes = 0;
    for (const MemoryUse &use : work.uses)
      if (!use.isScratch && (!work.source || use.value != work.source)) // That is the step's workspace.
        bytes += use.bytes * (static_cast<size_t>(use.isRead) + static_cast<size_t>(use.isWritten));
    cuda::MatmulArgs product{};
    if (work.kernel == cuda::kMatmul && work.args.size() == sizeof product)
      std::memcpy(&product, work.args.data(), sizeof product);
    double products = static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
    observer({work.source, work.kernel, item.stream, *begin, *end, bytes,
              2 * products * static_cast<double>(product.batch)});
  }
  return Status::success();
}

Status DeviceExecutor::checkFaults() {
  std::vector<uint64_t> words(faultSteps.size());
  if (words.empty())
    return device.synchronise();
  MemoryUse from{"what kernels report", faults, words.size() * sizeof(uint64_t), true, false, faults};
  if (Status status = device.copyOut(words.data(), from, 0); !status.ok())
    return status;
  if (Status status = device.synchronise(); !status.ok())
    return status;
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] != ~uint64_t(0))
      return Status::error(faultSteps[i] + ": the value at position " + std::to_string(words[i]) + " is out of range");
  return Status::success();
}

} // namespace recast::device
