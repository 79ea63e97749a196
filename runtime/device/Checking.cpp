#include "runtime/device/Checking.h"
#include "runtime/device/HostConvolution.h"
#include "runtime/device/HostMatmul.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include <algorithm>
#include <cstring>
#include <new>
#include <tuple>

namespace recast::device {
namespace {

constexpr std::align_val_t kAlignment{256};
/// The host as a stream, and the event by which what it issues comes after what it has done.
constexpr int kHost = 63, kIssue = -1;

std::byte *newMemory(size_t bytes) {
  auto *data = static_cast<std::byte *>(::operator new(bytes ? bytes : 1, kAlignment, std::nothrow));
  if (data)
    std::memset(data, 0xff, bytes); // NaN in every type: nothing may rely on what memory holds before it is written.
  return data;
}

bool isInside(const void *data, size_t bytes, std::span<const MemoryUse> uses) {
  auto *begin = static_cast<const std::byte *>(data);
  return std::ranges::any_of(uses, [&](const MemoryUse &use) {
    return begin >= use.data && static_cast<size_t>(begin - use.data) <= use.bytes &&
           bytes <= use.bytes - static_cast<size_t>(begin - use.data);
  });
}

/// What a product reaches beyond what the step gives it: a leading dimension or a stride that is too large, scales that
/// are fewer than their mode asks for.
std::string beyondUses(const cuda::MatmulArgs &args, std::span<const MemoryUse> uses) {
  auto check = [&](std::string_view which, const void *data, int64_t rows, int64_t columns, int64_t pitch,
                   int64_t stride, DType type) -> std::string {
    auto bytes = static_cast<size_t>((rows - 1) * pitch + columns + (args.batch - 1) * stride) * byteSize(type);
    return isInside(data, bytes, uses)
               ? ""
               : "operand " + std::string(which) + " of " + std::to_string(rows) + " rows with leading dimension " +
                     std::to_string(pitch) + " goes beyond its buffer";
  };
  auto checkScales = [&](std::string_view which, const void *data, cuda::ScaleMode mode, int64_t rows) -> std::string {
    size_t bytes = cuda::scaleBytes(mode, rows, args.k);
    return isInside(data, bytes, uses) ? ""
                                       : "the scales of " + std::string(which) + " have " + std::to_string(bytes) +
                                             " bytes in their mode and go beyond their buffer";
  };
  for (const std::string &fault : {check("a", args.a, args.transA ? args.k : args.m, args.transA ? args.m : args.k,
                                         args.pitchA, args.strideA, args.typeA),
                                   check("b", args.b, args.transB ? args.n : args.k, args.transB ? args.k : args.n,
                                         args.pitchB, args.strideB, args.typeB),
                                   check("d", args.d, args.m, args.n, args.pitchD, args.strideD, args.typeD)})
    if (!fault.empty())
      return fault;
  if (isFloat8(args.typeA))
    for (const std::string &fault : {checkScales("a", args.scaleA, args.scaleModeA, args.m),
                                     checkScales("b", args.scaleB, args.scaleModeB, args.n)})
      if (!fault.empty())
        return fault;
  return "";
}

/// What a convolution reaches beyond what the step gives it: dimensions that are not its tensors', a workspace that is
/// smaller than the library is told.
std::string beyondUses(const cuda::ConvolutionCall &call, std::span<const MemoryUse> uses) {
  cuda::ConvolutionDims dims = cuda::dimsOf(call);
  for (auto [which, data, bytes] : {std::tuple<const char *, const void *, size_t>{
                                        "its first operand", call.a, cuda::bytesOf(dims.a(call.of), call.type)},
                                    {"its second operand", call.b, cuda::bytesOf(dims.b(call.of), call.type)},
                                    {"its result", call.result, cuda::bytesOf(dims.result(call.of), call.type)},
                                    {"its workspace", call.workspace, call.workspaceBytes}})
    if (!isInside(data, bytes, uses))
      return std::string(which) + " of " + std::to_string(bytes) + " bytes goes beyond its buffer";
  return "";
}

template <typename Args> bool readArgs(const Work &work, Args &args) {
  if (work.args.size() != sizeof(Args))
    return false;
  std::memcpy(&args, work.args.data(), sizeof(Args));
  return true;
}

} // namespace

CheckingDevice::CheckingDevice(int architecture) : architecture(architecture) {}
CheckingDevice::~CheckingDevice() {
  for (const std::vector<Allocation> *all : {&allocations, &hostAllocations})
    for (const Allocation &allocation : *all)
      ::operator delete(allocation.data, kAlignment);
}

Status CheckingDevice::load(std::span<const CodeObject> code) {
  for (const CodeObject &object : code) {
    if (object.kind != CodeObject::SharedObject)
      continue;
    auto opened = cuda::emulation::GeneratedKernels::open(object.bytes);
    if (!opened)
      return opened.status();
    generated.push_back(std::move(*opened));
  }
  return Status::success();
}

/// What CUDA refuses, or what has no place in a graph.
Status CheckingDevice::checkNoCapture(const std::string &what) const {
  return isCapturing ? Status::error(what + " while a graph is captured") : Status::success();
}

Result<std::byte *> CheckingDevice::allocate(size_t bytes, const std::string &what) {
  if (Status status = checkNoCapture("memory for " + what); !status.ok())
    return status;
  std::byte *data = newMemory(bytes);
  if (!data)
    return Status::error("there is not enough memory for " + what + ": " + std::to_string(bytes) + " bytes");
  allocations.push_back({data, bytes});
  return data;
}

Result<std::byte *> CheckingDevice::allocateHost(size_t bytes, const std::string &what) {
  std::byte *data = newMemory(bytes);
  if (!data)
    return Status::error("there is not enough memory for " + what + ": " + std::to_string(bytes) + " bytes");
  hostAllocations.push_back({data, bytes});
  return data;
}

Status CheckingDevice::useOnHost(const MemoryUse &use) {
  std::string hazard = hazards.note("the host", {&use, 1}, kHost);
  return hazard.empty() ? Status::success() : Status::error(hazard);
}

Status CheckingDevice::checkUses(const std::string &step, std::span<const MemoryUse> uses, bool reachesHost) const {
  for (const MemoryUse &use : uses) {
    auto holds = [&](const Allocation &a) {
      return use.data >= a.data && use.data <= a.data + a.bytes &&
             use.bytes <= a.bytes - static_cast<size_t>(use.data - a.data);
    };
    if (!std::ranges::any_of(allocations, holds) && !(reachesHost && std::ranges::any_of(hostAllocations, holds)))
      return Status::error(step + ": " + use.name + " lies outside of the device's memory");
  }
  return Status::success();
}

Status CheckingDevice::copyIn(const MemoryUse &to, const void *from, int stream) {
  return copy(to, from, /*isIn=*/true, stream);
}
Status CheckingDevice::copyOut(void *to, const MemoryUse &from, int stream) {
  return copy(from, to, /*isIn=*/false, stream);
}

Status CheckingDevice::copy(const MemoryUse &onDevice, const void *onHost, bool isIn, int stream) {
  std::string step = isIn ? "a copy from the host" : "a copy to the host";
  if (Status status = checkNoCapture(step); !status.ok())
    return status;
  if (Status status = checkUses(step, {&onDevice, 1}); !status.ok())
    return status;
  std::vector<MemoryUse> uses = {onDevice};
  uses[0].isRead = !isIn, uses[0].isWritten = isIn;
  auto *host = static_cast<std::byte *>(const_cast<void *>(onHost));
  // Copies of other memory of the host end before the call does.
  if (std::ranges::any_of(hostAllocations,
                          [&](const Allocation &a) { return host >= a.data && host < a.data + a.bytes; }))
    uses.push_back({onDevice.name + " on the host", host, onDevice.bytes, isIn, !isIn, host});
  hazards.record(kIssue, kHost);
  hazards.wait(kIssue, stream);
  if (std::string hazard = hazards.note(step, uses, stream); !hazard.empty())
    return Status::error(hazard);
  if (onDevice.bytes)
    std::memcpy(isIn ? onDevice.data : host, isIn ? host : onDevice.data, onDevice.bytes);
  return Status::success();
}

Result<std::string> CheckingDevice::prepare(const Work &work) {
  cuda::ConvolutionCall call;
  if (work.kernel != cuda::kConvolution || !readArgs(work, call))
    return Status::error("no library has " + work.kernel);
  if (lacksCudnn)
    return Status::error("cuDNN is missing");
  std::string rule = cuda::brokenRule(call);
  return rule.empty() ? Result<std::string>("cuDNN's stand-in") : Status::error(rule);
}

Status CheckingDevice::launch(const Work &work, int stream) {
  if (!isCapturing)
    return perform(work, stream);
  if (!capturing.contains(stream))
    return Status::error(work.step + ": stream " + std::to_string(stream) + " takes no part in the capture");
  graphs.back().push_back([this, work, stream] { return perform(work, stream); });
  return Status::success();
}

Status CheckingDevice::perform(const Work &work, int stream) {
  ++launches;
  if (Status status = checkUses(work.step, work.uses, work.isTransfer && work.kernel == kCopy); !status.ok())
    return status;
  if (std::string hazard = hazards.note(work.step, work.uses, stream); !hazard.empty())
    return Status::error(hazard);
  reversed = !reversed;
  Status status = execute(work);
  return status.ok() ? status : Status::error(work.step + ": " + status.message());
}

Status CheckingDevice::execute(const Work &work) const {
  auto argsAs = [&](auto &args) { return readArgs(work, args); };
  if (work.kernel == kCopy) {
    cuda::CopyArgs args;
    if (!argsAs(args))
      return Status::error("the arguments are those of another kernel");
    std::memmove(args.dst, args.src, static_cast<size_t>(args.bytes));
    return Status::success();
  }
  if (work.kernel == kFill) {
    FillBytesArgs args;
    if (!argsAs(args))
      return Status::error("the arguments are those of another kernel");
    if (args.bytes) // An empty arena has no address.
      std::memset(args.dst, args.value, static_cast<size_t>(args.bytes));
    return Status::success();
  }
  if (work.kernel == cuda::kMatmul) {
    cuda::MatmulArgs args;
    if (!argsAs(args))
      return Status::error("the arguments are those of another kernel");
    if (std::string rule = cuda::brokenRule(args, architecture); !rule.empty())
      return Status::error("cuBLASLt refuses it: " + rule);
    if (std::string fault = beyondUses(args, work.uses); !fault.empty())
      return Status::error(fault);
    hostMatmul(args);
    return Status::success();
  }
  if (work.kernel == cuda::kConvolution) {
    cuda::ConvolutionCall call;
    if (!argsAs(call))
      return Status::error("the arguments are those of another kernel");
    if (std::string rule = cuda::brokenRule(call); !rule.empty())
      return Status::error("cuDNN refuses it: " + rule);
    if (std::string fault = beyondUses(call, work.uses); !fault.empty())
      return Status::error(fault);
    hostConvolution(call);
    return Status::success();
  }
  if (work.kernel == cuda::kAllReduce) {
    cuda::AllReduceArgs args;
    if (!argsAs(args))
      return Status::error("the arguments are those of another kernel");
    if (!ranks)
      return Status::error("a sum over ranks on a device that has joined none");
    auto count = static_cast<size_t>(args.count);
    return args.type == DType::F64 ? ranks->sum(static_cast<double *>(args.data), count)
                                   : ranks->sum(static_cast<float *>(args.data), count);
  }
  const cuda::emulation::Kernel *kernel = cuda::emulation::find(work.kernel);
  std::unique_ptr<cuda::emulation::Kernel> own;
  for (const auto &object : generated)
    if (!kernel) {
      own = object->find(work.kernel, work.args.size() / sizeof(void *), work.threads);
      kernel = own.get();
    }
  if (!kernel)
    return Status::error("there is no kernel " + work.kernel);
  std::vector<cuda::emulation::Range> ranges;
  for (const MemoryUse &use : work.uses)
    ranges.push_back({use.name, use.data, use.bytes, use.isWritten, use.isRead || use.isScratch});
  return cuda::emulation::launch(*kernel, work.blocks, work.threads, work.args, ranges, reversed);
}

Status CheckingDevice::record(int event, int stream) {
  if (std::ranges::find(lostEvents, event) != lostEvents.end())
    return Status::success();
  auto action = [this, event, stream] {
    hazards.record(event, stream);
    return Status::success();
  };
  if (!capturing.contains(stream))
    return action();
  captured.insert(event);
  graphs.back().push_back(action);
  return Status::success();
}

Status CheckingDevice::wait(int event, int stream) {
  if (std::ranges::find(lostEvents, event) != lostEvents.end())
    return Status::success();
  auto action = [this, event, stream] {
    return hazards.wait(event, stream) ? Status::success()
                                       : Status::error("stream " + std::to_string(stream) + " waits for event " +
                                                       std::to_string(event) + ", which nothing has recorded");
  };
  if (!isCapturing)
    return action();
  if (!captured.contains(event))
    return Status::error("stream " + std::to_string(stream) + " waits for event " + std::to_string(event) +
                         ", which was recorded before the capture");
  capturing.insert(stream);
  graphs.back().push_back(action);
  return Status::success();
}

Status CheckingDevice::mark(int number, int) {
  if (Status status = checkNoCapture("a mark is set"); !status.ok())
    return status;
  marks[number] = std::chrono::steady_clock::now();
  return Status::success();
}

Result<double> CheckingDevice::secondsBetween(int from, int to) {
  return std::chrono::duration<double>(marks.at(to) - marks.at(from)).count();
}

Status CheckingDevice::waitOnHost(int event) {
  if (Status status = checkNoCapture("the host waits"); !status.ok())
    return status;
  if (std::ranges::find(lostEvents, event) == lostEvents.end())
    hazards.wait(event, kHost);
  return Status::success();
}

Status CheckingDevice::beginCapture(int stream) {
  if (isCapturing)
    return Status::error("a graph is being captured already");
  isCapturing = true;
  capturing = {stream};
  captured.clear();
  graphs.emplace_back();
  return Status::success();
}

Result<int> CheckingDevice::endCapture(int stream) {
  if (!isCapturing)
    return Status::error("no graph is being captured");
  isCapturing = false;
  capturing.clear();
  return static_cast<int>(graphs.size()) - 1;
}

Status CheckingDevice::replay(int graph, int stream) {
  std::vector<uint64_t> start = hazards.ticks();
  for (const std::function<Status()> &action : graphs[static_cast<size_t>(graph)])
    if (Status status = action(); !status.ok())
      return status;
  // CUDA refuses a capture whose streams have not come together again (cudaErrorStreamCaptureUnjoined).
  if (!hazards.hasJoined(stream, start))
    return Status::error("work of the graph is on streams that stream " + std::to_string(stream) +
                         " does not wait for");
  return Status::success();
}

Status CheckingDevice::synchronise() {
  if (Status status = checkNoCapture("the host waits"); !status.ok())
    return status;
  hazards.synchronise();
  return Status::success();
}

} // namespace recast::device
