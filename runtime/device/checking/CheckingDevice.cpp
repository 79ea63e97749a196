#include "runtime/device/checking/CheckingDevice.h"
#include "runtime/device/checking/Order.h"
#include "runtime/device/checking/Products.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include <cstdlib>
#include <cstring>
#include <optional>

namespace recast {

namespace emulation = cuda::emulation;

struct CheckingDevice::Impl {
  struct Free {
    void operator()(std::byte *memory) const { std::free(memory); }
  };
  struct Allocation {
    std::unique_ptr<std::byte, Free> data;
    size_t bytes;
    std::string what;
  };
  std::vector<Allocation> allocations;
  std::vector<std::unique_ptr<emulation::GeneratedKernels>> generated;
  checking::Order order;
  bool reversed = false;

  Status begin(Stream stream, const std::string &step, std::span<const Access> accesses);
  Status launch(const Command &command);
};

CheckingDevice::CheckingDevice() : impl(std::make_unique<Impl>()) {}
CheckingDevice::~CheckingDevice() = default;

Result<std::byte *> CheckingDevice::allocate(size_t bytes, const std::string &what) {
  size_t size = (std::max<size_t>(bytes, 1) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  auto *data = static_cast<std::byte *>(std::aligned_alloc(kDeviceAlignment, size));
  if (!data)
    return Status::error("there is not enough memory for " + what + ": " + std::to_string(bytes) + " bytes");
  // A number that shows: nothing may depend on it.
  std::memset(data, 0xcd, size);
  impl->allocations.push_back({std::unique_ptr<std::byte, Impl::Free>(data), bytes, what});
  return data;
}

Status CheckingDevice::load(std::span<const CodeObject> code) {
  for (const CodeObject &object : code) {
    if (object.kind != CodeObject::SharedObject || object.target != kEmulatedTarget)
      continue;
    auto opened = emulation::GeneratedKernels::open(object.bytes);
    if (!opened)
      return opened.status();
    impl->generated.push_back(std::move(*opened));
  }
  return Status::success();
}

/// Everything that a command touches lies in memory and comes after what it must come after.
Status CheckingDevice::Impl::begin(Stream stream, const std::string &step, std::span<const Access> accesses) {
  order.begin(stream, step);
  for (const Access &access : accesses) {
    bool isInside = false;
    for (const Allocation &allocation : allocations)
      isInside |= access.data >= allocation.data.get() &&
                  access.data + access.bytes <= allocation.data.get() + allocation.bytes;
    if (!isInside)
      return Status::error(step + ": it touches memory that was not allocated");
  }
  for (bool writes : {false, true})
    for (const Access &access : accesses) {
      if (!access.bytes || !(writes ? access.isWritten : access.isRead))
        continue;
      // What a command both reads and writes, it may write first: workspace.
      if (!writes && access.isWritten)
        continue;
      if (std::string problem = writes ? order.write(access) : order.read(access); !problem.empty())
        return Status::error(step + ": " + problem);
    }
  return Status::success();
}

Status CheckingDevice::Impl::launch(const Command &command) {
  std::unique_ptr<emulation::Kernel> own;
  const emulation::Kernel *kernel = emulation::find(command.kernel);
  for (const auto &object : generated)
    if (!kernel) {
      own = object->find(command.kernel, command.args.size() / sizeof(void *), command.threads);
      kernel = own.get();
    }
  if (!kernel)
    return Status::error(command.step + ": there is no kernel " + command.kernel);
  std::vector<emulation::Range> ranges;
  for (const Access &access : command.accesses)
    ranges.push_back({"a buffer of " + std::to_string(access.bytes) + " bytes", access.data, access.bytes,
                      access.isWritten, access.isRead});
  reversed = !reversed; // Results must not depend on the order of blocks and threads.
  Status status = emulation::launch(*kernel, command.blocks, command.threads, command.args, ranges, reversed);
  return status.ok() ? status : Status::error(command.step + ": " + status.message());
}

Status CheckingDevice::upload(Stream stream, const Access &to, const void *from) {
  Access access = to;
  access.isRead = false;
  access.isWritten = true;
  if (Status status = impl->begin(stream, "an upload", {&access, 1}); !status.ok())
    return status;
  std::memcpy(to.data, from, to.bytes);
  return Status::success();
}

Status CheckingDevice::download(Stream stream, void *to, const Access &from) {
  Access access = from;
  access.isRead = true;
  access.isWritten = false;
  if (Status status = impl->begin(stream, "a download", {&access, 1}); !status.ok())
    return status;
  std::memcpy(to, from.data, from.bytes);
  return Status::success();
}

Status CheckingDevice::issue(Stream stream, const Command &command) {
  if (Status status = impl->begin(stream, command.step, command.accesses); !status.ok())
    return status;
  switch (command.kind) {
  case Command::Kernel:
    return impl->launch(command);
  case Command::Product:
    if (std::string problem = checking::refuse(command.product, command.accesses); !problem.empty())
      return Status::error(command.step + ": " + problem);
    checking::run(command.product);
    return Status::success();
  case Command::Copy:
    std::memmove(command.accesses[1].data, command.accesses[0].data, command.accesses[0].bytes);
    return Status::success();
  case Command::Fill:
    std::memset(command.accesses[0].data, command.byte, command.accesses[0].bytes);
    return Status::success();
  }
  return Status::success();
}

Status CheckingDevice::record(Stream stream, int event) {
  impl->order.record(stream, event);
  return Status::success();
}

Status CheckingDevice::wait(Stream stream, int event) {
  if (!impl->order.wait(stream, event))
    return Status::error("a stream waits for event " + std::to_string(event) + ", which nobody has recorded");
  return Status::success();
}

Status CheckingDevice::synchronize() {
  impl->order.synchronize();
  return Status::success();
}

} // namespace recast
