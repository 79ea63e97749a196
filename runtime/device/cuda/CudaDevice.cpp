#include "runtime/device/cuda/CudaDevice.h"
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/Ptx.h"
#include <cstring>

namespace recast::device {
namespace {

constexpr int kMajor = 75, kMinor = 76; // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
constexpr int kOldest = 80;             // What the PTX is made for.
constexpr unsigned kNonBlocking = 1;    // CU_STREAM_NON_BLOCKING
constexpr unsigned kNoTiming = 2;       // CU_EVENT_DISABLE_TIMING
constexpr unsigned kTiming = 0;         // CU_EVENT_DEFAULT
constexpr int kRelaxed = 2;             // CU_STREAM_CAPTURE_MODE_RELAXED: cuBLASLt may allocate while it is captured.
// CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE: what the next element of a launch's `extra` is.
constexpr int kErrorLog = 5, kErrorLogBytes = 6; // CU_JIT_ERROR_LOG_BUFFER and ..._SIZE_BYTES
constexpr uintptr_t kArgumentBufferIs = 1, kArgumentBytesIs = 2;

CudaPointer address(const void *pointer) { return reinterpret_cast<CudaPointer>(pointer); }

template <typename Args> Result<Args> argsOf(const Work &work) {
  Args args;
  if (work.args.size() != sizeof(Args))
    return Status::error(work.step + ": the arguments are those of another kernel than " + work.kernel);
  std::memcpy(&args, work.args.data(), sizeof(Args));
  return args;
}

} // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(int ordinal) {
  Result<Driver> driver = openDriver();
  if (!driver)
    return driver.status();
  return create(*driver, nullptr, nullptr, nullptr, ordinal);
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(const Driver &driver, const CublasLtFunctions *lt,
                                                       const CudnnFunctions *dnn, const NcclFunctions *nccl,
                                                       int ordinal) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver));
  if (lt)
    device->ltFunctions = *lt;
  if (dnn)
    device->dnnFunctions = *dnn;
  if (nccl)
    device->ncclFunctions = *nccl;
  if (Status status = device->begin(ordinal); !status.ok())
    return status;
  return std::move(device);
}

Result<int> CudaDevice::architectureOf(int ordinal) {
  Result<Driver> driver = openDriver();
  if (!driver)
    return driver.status();
  int device = 0;
  return architectureOf(*driver, ordinal, device);
}

Result<int> CudaDevice::architectureOf(const Driver &driver, int ordinal, int &device) {
  int count = 0, major = 0, minor = 0;
  if (Status status = driver.check(driver.init(0), "cuInit"); !status.ok())
    return status;
  if (Status status = driver.check(driver.deviceGetCount(&count), "cuDeviceGetCount"); !status.ok())
    return status;
  if (ordinal < 0 || ordinal >= count)
    return Status::error("--device=cuda:" + std::to_string(ordinal) + ": this machine has " + std::to_string(count) +
                         " CUDA devices, numbered from 0");
  for (Status status : {driver.check(driver.deviceGet(&device, ordinal), "cuDeviceGet"),
                        driver.check(driver.deviceGetAttribute(&major, kMajor, device), "cuDeviceGetAttribute"),
                        driver.check(driver.deviceGetAttribute(&minor, kMinor, device), "cuDeviceGetAttribute")})
    if (!status.ok())
      return status;
  return major * 10 + minor;
}

Status CudaDevice::begin(int ordinal) {
  int device = 0;
  CudaHandle context = nullptr;
  char name[256] = {};
  Result<int> found = architectureOf(driver, ordinal, device);
  if (!found)
    return found.status();
  architecture = *found;
  for (Status status : {driver.check(driver.deviceGetName(name, sizeof(name) - 1, device), "cuDeviceGetName"),
                        driver.check(driver.primaryContextRetain(&context, device), "cuDevicePrimaryCtxRetain"),
                        driver.check(driver.contextSetCurrent(context), "cuCtxSetCurrent")})
    if (!status.ok())
      return status;
  deviceName = std::string(name) + " (sm_" + std::to_string(architecture) + ")";
  return architecture < kOldest ? Status::error(deviceName + " is too old: sm_80 or later is needed")
                                : Status::success();
}

/// The driver compiles PTX for its own architecture, and keeps what it has compiled in a cache, if it has one.
Status CudaDevice::loadModule(const char *text, const std::string &name, CudaHandle &module) const {
  char log[2048] = {};
  int options[] = {kErrorLog, kErrorLogBytes};
  void *values[] = {log, reinterpret_cast<void *>(sizeof(log) - 1)};
  Status status =
      driver.check(driver.moduleLoadDataEx(&module, text, 2, options, values), "cuModuleLoadDataEx of " + name);
  return status.ok() || !*log ? status : Status::error(status.message() + ": " + log);
}

Status CudaDevice::load(std::span<const CodeObject> code) {
  for (const CodeObject &object : code)
    if (object.kind == CodeObject::Ptx) {
      CudaHandle module = nullptr;
      if (Status status = loadModule(object.bytes.c_str(), "the plan's generated kernels", module); !status.ok())
        return status;
      modules.push_back(module);
    }
  return Status::success();
}

/// Of this program's own modules, which take seconds to compile, only those are loaded that have a kernel in use.
Result<CudaHandle> CudaDevice::findKernel(const std::string &name) {
  if (auto found = kernels.find(name); found != kernels.end())
    return found->second;
  CudaHandle module = nullptr, function = nullptr;
  for (const cuda::PtxModule &own : cuda::ptxModules())
    if (std::strstr(own.text, (".entry " + name + "(").c_str())) {
      CudaHandle &loaded = ownModules[own.name];
      if (!loaded)
        if (Status status = loadModule(own.text, "kernels of " + std::string(own.name), loaded); !status.ok())
          return status;
      module = loaded;
    }
  for (CudaHandle candidate : module ? std::vector{module} : modules)
    if (!function && driver.moduleGetFunction(&function, candidate, name.c_str()) != 0)
      function = nullptr;
  if (!function)
    return Status::error("there is no kernel " + name);
  kernels.emplace(name, function);
  return function;
}

CudaDevice::~CudaDevice() {
  driver.contextSynchronize();
  dropGraphs();
  nccl.reset();
  for (CudaPointer allocation : allocations)
    driver.memFree(allocation);
  for (void *allocation : hostAllocations)
    driver.memFreeHost(allocation);
}

Result<std::byte *> CudaDevice::allocate(size_t bytes, const std::string &what) {
  CudaPointer pointer = 0; // cuMemAlloc aligns to 256 bytes, and takes no 0.
  if (Status status = driver.check(driver.memAlloc(&pointer, bytes ? bytes : 1),
                                   "cuMemAlloc of " + std::to_string(bytes) + " bytes for " + what);
      !status.ok())
    return status;
  allocations.push_back(pointer);
  return reinterpret_cast<std::byte *>(pointer);
}

Result<std::byte *> CudaDevice::allocateHost(size_t bytes, const std::string &what) {
  void *pointer = nullptr;
  if (Status status = driver.check(driver.memHostAlloc(&pointer, bytes ? bytes : 1, 0),
                                   "cuMemHostAlloc of " + std::to_string(bytes) + " bytes for " + what);
      !status.ok())
    return status;
  hostAllocations.push_back(pointer);
  return static_cast<std::byte *>(pointer);
}

Result<CudaHandle> CudaDevice::streamOf(int stream) {
  while (streams.size() <= static_cast<size_t>(stream)) {
    CudaHandle made = nullptr;
    if (Status status = driver.check(driver.streamCreate(&made, kNonBlocking), "cuStreamCreate"); !status.ok())
      return status;
    streams.push_back(made);
  }
  return streams[static_cast<size_t>(stream)];
}

Result<CudaHandle> CudaDevice::eventOf(int event) {
  while (events.size() <= static_cast<size_t>(event)) {
    CudaHandle made = nullptr;
    if (Status status = driver.check(driver.eventCreate(&made, kNoTiming), "cuEventCreate"); !status.ok())
      return status;
    events.push_back(made);
  }
  return events[static_cast<size_t>(event)];
}

Status CudaDevice::copyIn(const MemoryUse &to, const void *from, int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on || to.bytes == 0)
    return on.status();
  return driver.check(driver.copyToDevice(address(to.data), from, to.bytes, *on), "cuMemcpyHtoDAsync of " + to.name);
}

Status CudaDevice::copyOut(void *to, const MemoryUse &from, int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on || from.bytes == 0)
    return on.status();
  return driver.check(driver.copyToHost(to, address(from.data), from.bytes, *on), "cuMemcpyDtoHAsync of " + from.name);
}

Status CudaDevice::openDnn() {
  if (!dnnFunctions) {
    Result<CudnnFunctions> opened = openCudnn();
    if (!opened)
      return opened.status();
    dnnFunctions = *opened;
  }
  Result<std::unique_ptr<Cudnn>> made = Cudnn::create(*dnnFunctions);
  if (made)
    dnn = std::move(*made);
  return made.status();
}

Result<std::string> CudaDevice::prepare(const Work &work) {
  Result<cuda::ConvolutionCall> call = argsOf<cuda::ConvolutionCall>(work);
  if (!call || work.kernel != cuda::kConvolution)
    return call ? Status::error("no library has " + work.kernel) : call.status();
  if (std::string rule = cuda::brokenRule(*call); !rule.empty())
    return Status::error(rule);
  if (!dnn && dnnMissing.empty())
    if (Status status = openDnn(); !status.ok())
      dnnMissing = status.message();
  return dnn ? dnn->prepare(*call) : Status::error(dnnMissing);
}

Status CudaDevice::launch(const Work &work, int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on)
    return on.status();
  if (work.kernel == cuda::kMatmul)
    return launchMatmul(work, *on);
  if (work.kernel == cuda::kConvolution) {
    Result<cuda::ConvolutionCall> call = argsOf<cuda::ConvolutionCall>(work);
    if (!call || !dnn)
      return call ? Status::error(work.step + ": its convolution was not prepared") : call.status();
    return dnn->convolve(*call, work.step, *on);
  }
  if (work.kernel == cuda::kAllReduce) {
    Result<cuda::AllReduceArgs> args = argsOf<cuda::AllReduceArgs>(work);
    if (!args || !nccl)
      return args ? Status::error(work.step + ": this device has joined no ranks") : args.status();
    return nccl->allReduce(*args, work.step, *on);
  }
  if (work.kernel == kCopy) {
    Result<cuda::CopyArgs> args = argsOf<cuda::CopyArgs>(work);
    if (!args || args->bytes == 0)
      return args.status();
    return driver.check(driver.copy(address(args->dst), address(args->src), static_cast<size_t>(args->bytes), *on),
                        "cuMemcpyAsync for " + work.step);
  }
  if (work.kernel == kFill) {
    Result<FillBytesArgs> args = argsOf<FillBytesArgs>(work);
    if (!args || args->bytes == 0)
      return args.status();
    return driver.check(driver.fill(address(args->dst), args->value, static_cast<size_t>(args->bytes), *on),
                        "cuMemsetD8Async for " + work.step);
  }
  if (work.blocks < 1 || work.blocks > INT32_MAX)
    return Status::error(work.step + ": a grid of " + std::to_string(work.blocks) + " blocks");
  Result<CudaHandle> kernel = findKernel(work.kernel);
  if (!kernel)
    return Status::error(work.step + ": " + kernel.message());
  // As one buffer, which the driver copies: a kernel written by hand has one parameter, a generated one has many.
  size_t bytes = work.args.size();
  void *extra[] = {reinterpret_cast<void *>(kArgumentBufferIs), const_cast<std::byte *>(work.args.data()),
                   reinterpret_cast<void *>(kArgumentBytesIs), &bytes, nullptr};
  return driver.check(driver.launchKernel(*kernel, static_cast<unsigned>(work.blocks), 1, 1,
                                          static_cast<unsigned>(work.threads), 1, 1, 0, *on, nullptr, extra),
                      "cuLaunchKernel for " + work.step);
}

Status CudaDevice::launchMatmul(const Work &work, CudaHandle stream) {
  Result<cuda::MatmulArgs> args = argsOf<cuda::MatmulArgs>(work);
  if (!args)
    return args.status();
  if (std::string rule = cuda::brokenRule(*args, architecture); !rule.empty())
    return Status::error(work.step + ": " + rule + "; this is " + deviceName);
  if (!lt) {
    if (!ltFunctions) {
      Result<CublasLtFunctions> opened = openCublasLt();
      if (!opened)
        return opened.status();
      ltFunctions = *opened;
    }
    Result<std::unique_ptr<CublasLt>> made = CublasLt::create(*ltFunctions);
    if (!made)
      return made.status();
    lt = std::move(*made);
  }
  return lt->matmul(*args, work.step, stream);
}

Status CudaDevice::record(int event, int stream) {
  Result<CudaHandle> on = streamOf(stream), what = eventOf(event);
  if (!on || !what)
    return on ? what.status() : on.status();
  return driver.check(driver.eventRecord(*what, *on), "cuEventRecord");
}

Status CudaDevice::wait(int event, int stream) {
  Result<CudaHandle> on = streamOf(stream), what = eventOf(event);
  if (!on || !what)
    return on ? what.status() : on.status();
  return driver.check(driver.streamWaitEvent(*on, *what, 0), "cuStreamWaitEvent");
}

Status CudaDevice::waitOnHost(int event) {
  Result<CudaHandle> what = eventOf(event);
  return what ? driver.check(driver.eventSynchronize(*what), "cuEventSynchronize") : what.status();
}

Status CudaDevice::mark(int number, int stream) {
  Result<CudaHandle> on = streamOf(stream);
  while (on && marks.size() <= static_cast<size_t>(number)) {
    CudaHandle made = nullptr;
    if (Status status = driver.check(driver.eventCreate(&made, kTiming), "cuEventCreate"); !status.ok())
      return status;
    marks.push_back(made);
  }
  return on ? driver.check(driver.eventRecord(marks[static_cast<size_t>(number)], *on), "cuEventRecord") : on.status();
}

Result<double> CudaDevice::secondsBetween(int from, int to) {
  float milliseconds = 0;
  Status status = driver.check(
      driver.eventElapsedTime(&milliseconds, marks[static_cast<size_t>(from)], marks[static_cast<size_t>(to)]),
      "cuEventElapsedTime");
  return status.ok() ? Result<double>(static_cast<double>(milliseconds) * 1e-3) : status;
}

Status CudaDevice::beginCapture(int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on)
    return on.status();
  return driver.check(driver.streamBeginCapture(*on, kRelaxed), "cuStreamBeginCapture");
}

Result<int> CudaDevice::endCapture(int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on)
    return on.status();
  CudaHandle graph = nullptr, executable = nullptr;
  if (Status status = driver.check(driver.streamEndCapture(*on, &graph), "cuStreamEndCapture"); !status.ok())
    return status;
  Status status = driver.check(driver.graphInstantiate(&executable, graph, 0), "cuGraphInstantiate");
  driver.graphDestroy(graph);
  if (!status.ok())
    return status;
  graphs.push_back(executable);
  return static_cast<int>(graphs.size()) - 1;
}

Status CudaDevice::replay(int graph, int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on)
    return on.status();
  return driver.check(driver.graphLaunch(graphs[static_cast<size_t>(graph)], *on), "cuGraphLaunch");
}

Result<bool> CudaDevice::isDone(int stream) {
  Result<CudaHandle> on = streamOf(stream);
  if (!on)
    return on.status();
  int result = driver.streamQuery(*on);
  if (result == kNotReady && nccl)
    if (Status status = nccl->check(); !status.ok())
      return status;
  if (result != 0 && result != kNotReady)
    return driver.check(result, "cuStreamQuery");
  return result == 0;
}

Status CudaDevice::join(Communicator &ranks) {
  if (!ncclFunctions) {
    Result<NcclFunctions> opened = openNccl();
    if (!opened)
      return opened.status();
    ncclFunctions = *opened;
  }
  Result<std::unique_ptr<Nccl>> made = Nccl::create(*ncclFunctions, ranks);
  if (!made)
    return made.status();
  nccl = std::move(*made);
  return Status::success();
}

void CudaDevice::abandonRanks() {
  dropGraphs();
  if (nccl)
    nccl->abort();
}

/// Before NCCL's communicator ends, which waits until no graph holds a sum of it.
void CudaDevice::dropGraphs() {
  for (CudaHandle graph : graphs)
    driver.graphExecDestroy(graph);
  graphs.clear();
}

Status CudaDevice::synchronise() { return driver.check(driver.contextSynchronize(), "cuCtxSynchronize"); }

} // namespace recast::device
