#include "tests/ptx/Gpu.h"
#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace recast::ptx {
namespace {

Gpu *gpu = nullptr;

// CUresult.
constexpr int kInvalidValue = 1, kOutOfMemory = 2, kInvalidPtx = 218, kInvalidHandle = 400, kNotFound = 500;
constexpr int kNotReady = 600, kLaunchFailed = 719, kUnsupportedInCapture = 900, kUnjoined = 904, kIsolation = 905;
/// What a device of every architecture has for the variables of a block.
constexpr uint32_t kMostShared = 48 << 10;
constexpr size_t kMostMemory = size_t(4) << 30;

template <typename T> T *at(device::CudaHandle handle) { return reinterpret_cast<T *>(handle); }
template <typename T> device::CudaHandle handleOf(T *object) { return reinterpret_cast<device::CudaHandle>(object); }
void *at(device::CudaPointer pointer) { return reinterpret_cast<void *>(pointer); }

} // namespace

Gpu::Gpu() : streams(1) { gpu = this; }
Gpu::~Gpu() {
  for (auto &[address, bytes] : deviceMemory)
    std::free(reinterpret_cast<void *>(address));
  for (auto &[address, bytes] : hostMemory)
    std::free(reinterpret_cast<void *>(address));
  gpu = nullptr;
}

int Gpu::fail(int code, const std::string &what) {
  errorText = what;
  return code;
}

int Gpu::enqueue(Handle stream, std::function<void()> action) {
  return add(stream, {.run = [action = std::move(action)] { return action(), Status::success(); }});
}

int Gpu::add(Handle handle, Command command) {
  if (error)
    return error;
  Stream *stream = handle ? at<Stream>(handle) : &streams[0];
  if (command.sets)
    command.sets->isCaptured = stream->isCapturing, command.sets->stream = stream;
  if (command.waits && command.waits->isCaptured && !stream->isCapturing) {
    if (!origin)
      return fail(kIsolation, "a wait for an event of a capture that is over");
    stream->isCapturing = true;
  }
  if (command.waits && !command.waits->isCaptured && stream->isCapturing)
    return fail(kIsolation, "captured work waits for work that is not captured");
  (stream->isCapturing ? captured : queues)[stream].push_back(std::move(command));
  return 0;
}

void Gpu::advance(Queues &all, Stream *stream) {
  Queue &queue = all[stream];
  Command command = std::move(queue.front());
  if (command.waits)
    while (!command.waits->isDone && !error)
      advance(all, command.waits->stream);
  queue.pop_front();
  if (command.sets)
    command.sets->isDone = true;
  if (!command.run || error)
    return;
  if (Status status = command.run(); !status.ok())
    error = fail(kLaunchFailed, status.message());
}

void Gpu::drain(Queues &all) {
  for (size_t i = streams.size(); i-- > 0;)
    while (!error && !all[&streams[i]].empty())
      advance(all, &streams[i]);
}

int Gpu::synchronise() {
  if (origin)
    return fail(kUnsupportedInCapture, "the host waits within a capture");
  drain(queues);
  return error;
}

/// Whether the end of the capture comes after all that is captured: by a stream's order and by its waits.
bool Gpu::isJoined() const {
  std::map<Stream *, size_t> reached; // Commands of each stream that come before.
  std::function<void(Stream *, size_t)> reach = [&](Stream *stream, size_t count) {
    for (size_t i = std::exchange(reached[stream], std::max(reached[stream], count)); i < count; ++i)
      if (const std::shared_ptr<Mark> &mark = captured.at(stream)[i].waits) {
        const Queue &other = captured.at(mark->stream);
        reach(mark->stream, static_cast<size_t>(std::ranges::find(other, mark, &Command::sets) - other.begin()) + 1);
      }
  };
  reach(origin, captured.contains(origin) ? captured.at(origin).size() : 0);
  return std::ranges::all_of(captured, [&](const auto &entry) { return reached[entry.first] == entry.second.size(); });
}

bool Gpu::isHost(const void *data) const {
  auto address = reinterpret_cast<uintptr_t>(data);
  auto after = hostMemory.upper_bound(address);
  return after != hostMemory.begin() && address - std::prev(after)->first < std::prev(after)->second;
}

/// CU_LAUNCH_PARAM_BUFFER_POINTER is 1, CU_LAUNCH_PARAM_BUFFER_SIZE is 2.
int Gpu::launch(Handle handle, int64_t blocks, int threads, Handle stream, void **args, void **extra) {
  auto *entry = at<Entry>(handle);
  const Function &function = *entry->function;
  auto wrong = [&](const std::string &what) { return fail(kInvalidValue, function.name + ": " + what); };
  if (blocks < 1 || blocks > INT32_MAX || threads < 1 || threads > static_cast<int>(function.maxThreads))
    return wrong("a grid of " + std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads");
  if ((args != nullptr) == (extra != nullptr))
    return wrong("its arguments come either one by one or in a buffer");
  std::vector<std::byte> bytes(function.inputBytes);
  if (args) {
    // A driver reads one pointer a parameter, and does not see where the caller's end.
    if (function.parameters.size() != 1)
      return wrong("it has " + std::to_string(function.parameters.size()) +
                   " parameters, and how many arguments there are cannot be seen");
    std::memcpy(bytes.data(), args[0], bytes.size());
  } else {
    const void *buffer = nullptr;
    size_t given = 0;
    for (; *extra; extra += 2)
      if (extra[0] == reinterpret_cast<void *>(1))
        buffer = extra[1];
      else if (extra[0] == reinterpret_cast<void *>(2))
        given = *static_cast<const size_t *>(extra[1]);
      else
        return wrong("an element of `extra` that is not known");
    if (!buffer || given != bytes.size())
      return wrong("arguments of " + std::to_string(given) + " bytes; its parameters have " +
                   std::to_string(bytes.size()));
    std::memcpy(bytes.data(), buffer, given);
  }
  return add(stream, {.run = [this, entry, blocks, threads, bytes = std::move(bytes)] {
               ++launches[entry->function->name];
               return ptx::launch(*entry->module, *entry->function, {blocks, threads, true}, bytes, memory);
             }});
}

/// The table's functions.
struct Functions {
  static int moduleLoad(Gpu::Handle *module, const void *image, unsigned options, int *names, void **values) {
    auto parsed = Module::parse(static_cast<const char *>(image));
    std::string wrong = parsed ? "" : parsed.message();
    if (parsed && (*parsed)->sharedBytes > kMostShared)
      wrong = "more than " + std::to_string(kMostShared) + " bytes of shared memory";
    if (!wrong.empty()) {
      for (unsigned i = 0; i + 1 < options; ++i) // CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
        if (names[i] == 5 && names[i + 1] == 6)
          std::strncpy(static_cast<char *>(values[i]), wrong.c_str(), reinterpret_cast<size_t>(values[i + 1]));
      return gpu->fail(kInvalidPtx, wrong);
    }
    gpu->modules.push_back(std::move(*parsed));
    return *module = handleOf(gpu->modules.back().get()), 0;
  }
  static int moduleGetFunction(Gpu::Handle *function, Gpu::Handle module, const char *name) {
    const Function *entry = at<Module>(module)->entry(name);
    if (!entry)
      return gpu->fail(kNotFound, "there is no kernel " + std::string(name));
    gpu->entries.push_back({at<Module>(module), entry});
    return *function = handleOf(&gpu->entries.back()), 0;
  }
  static int memAlloc(device::CudaPointer *pointer, size_t bytes) {
    if (bytes == 0 || bytes > kMostMemory)
      return gpu->fail(bytes ? kOutOfMemory : kInvalidValue, bytes ? "out of memory" : "no bytes");
    void *data = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    std::memset(data, 0xff, bytes); // A NaN of every type, and no index.
    gpu->memory.add(data, bytes);
    gpu->deviceMemory[reinterpret_cast<uintptr_t>(data)] = bytes;
    return *pointer = reinterpret_cast<device::CudaPointer>(data), 0;
  }
  static int memFree(device::CudaPointer pointer) {
    if (!gpu->deviceMemory.erase(pointer))
      return gpu->fail(kInvalidValue, "cuMemFree of what was not allocated");
    gpu->memory.remove(at(pointer));
    return std::free(at(pointer)), 0;
  }
  static int memHostAlloc(void **pointer, size_t bytes, unsigned) {
    *pointer = std::malloc(bytes);
    std::memset(*pointer, 0xff, bytes);
    return gpu->hostMemory[reinterpret_cast<uintptr_t>(*pointer)] = bytes, 0;
  }
  static int memFreeHost(void *pointer) {
    if (!gpu->hostMemory.erase(reinterpret_cast<uintptr_t>(pointer)))
      return gpu->fail(kInvalidValue, "cuMemFreeHost of what was not allocated");
    return std::free(pointer), 0;
  }
  static bool isDevice(device::CudaPointer pointer, size_t bytes, bool isWritten) {
    return gpu->memory.find(pointer, bytes, isWritten).end != 0;
  }
  /// From memory that is not page-locked the driver copies before it returns.
  static int copyToDevice(device::CudaPointer to, const void *from, size_t bytes, Gpu::Handle stream) {
    if (!isDevice(to, bytes, true))
      return gpu->fail(kInvalidValue, "a copy to what was not allocated");
    if (gpu->isHost(from))
      return gpu->enqueue(stream, [=] { std::memcpy(at(to), from, bytes); });
    std::vector<std::byte> staged(static_cast<const std::byte *>(from), static_cast<const std::byte *>(from) + bytes);
    return gpu->enqueue(stream,
                        [to, staged = std::move(staged)] { std::memcpy(at(to), staged.data(), staged.size()); });
  }
  /// To memory that is not page-locked the driver returns when it has copied.
  static int copyToHost(void *to, device::CudaPointer from, size_t bytes, Gpu::Handle stream) {
    if (!isDevice(from, bytes, false))
      return gpu->fail(kInvalidValue, "a copy of what was not allocated");
    int result = gpu->enqueue(stream, [=] { std::memcpy(to, at(from), bytes); });
    while (!result && !gpu->isHost(to) && !gpu->queues[at<Gpu::Stream>(stream)].empty()) {
      gpu->advance(gpu->queues, at<Gpu::Stream>(stream));
      result = gpu->error;
    }
    return result;
  }
  /// Each side is on the device or page-locked.
  static int copy(device::CudaPointer to, device::CudaPointer from, size_t bytes, Gpu::Handle stream) {
    if ((!isDevice(to, bytes, true) && !gpu->isHost(at(to))) ||
        (!isDevice(from, bytes, false) && !gpu->isHost(at(from))))
      return gpu->fail(kInvalidValue, "a copy of what was not allocated");
    return gpu->enqueue(stream, [=] { std::memmove(at(to), at(from), bytes); });
  }
  static int fill(device::CudaPointer to, unsigned char value, size_t bytes, Gpu::Handle stream) {
    if (!isDevice(to, bytes, true))
      return gpu->fail(kInvalidValue, "a fill of what was not allocated");
    return gpu->enqueue(stream, [=] { std::memset(at(to), value, bytes); });
  }
  /// Work that is asked for goes on meanwhile.
  static int streamQuery(Gpu::Handle stream) {
    if (gpu->queues[at<Gpu::Stream>(stream)].empty())
      return gpu->error;
    gpu->drain(gpu->queues);
    return gpu->error ? gpu->error : kNotReady;
  }
  static int streamWaitEvent(Gpu::Handle stream, Gpu::Handle event, unsigned) {
    const std::shared_ptr<Gpu::Mark> &mark = at<Gpu::Event>(event)->last;
    return mark ? gpu->add(stream, {.waits = mark}) : 0;
  }
  static int streamBeginCapture(Gpu::Handle stream, int) {
    if (gpu->origin)
      return gpu->fail(kUnsupportedInCapture, "a capture within a capture");
    gpu->origin = at<Gpu::Stream>(stream);
    return gpu->origin->isCapturing = true, 0;
  }
  static int streamEndCapture(Gpu::Handle stream, Gpu::Handle *graph) {
    if (gpu->origin != at<Gpu::Stream>(stream))
      return gpu->fail(kInvalidValue, "the capture began in another stream");
    bool isJoined = gpu->isJoined();
    for (Gpu::Stream &each : gpu->streams)
      each.isCapturing = false;
    gpu->origin = nullptr;
    gpu->captures.push_back(std::exchange(gpu->captured, {}));
    return isJoined ? (*graph = handleOf(&gpu->captures.back()), 0)
                    : gpu->fail(kUnjoined, "the capture ends before all that is captured");
  }
  static int eventSynchronize(Gpu::Handle event) {
    const std::shared_ptr<Gpu::Mark> &mark = at<Gpu::Event>(event)->last;
    if (gpu->origin)
      return gpu->fail(kUnsupportedInCapture, "the host waits within a capture");
    while (mark && !mark->isDone && !gpu->error)
      gpu->advance(gpu->queues, mark->stream);
    return gpu->error;
  }
  static int eventRecord(Gpu::Handle event, Gpu::Handle stream) {
    return gpu->add(stream, {.sets = at<Gpu::Event>(event)->last = std::make_shared<Gpu::Mark>()});
  }
  static int launchKernel(Gpu::Handle function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threadsY,
                          unsigned threadsZ, unsigned sharedBytes, Gpu::Handle stream, void **args, void **extra) {
    if (y != 1 || z != 1 || threadsY != 1 || threadsZ != 1 || sharedBytes)
      return gpu->fail(kInvalidValue, "grids have one dimension, and no shared memory that kernels do not declare");
    return gpu->launch(function, x, static_cast<int>(threads), stream, args, extra);
  }
  static int graphLaunch(Gpu::Handle executable, Gpu::Handle stream) {
    auto *graph = at<Gpu::Queues>(executable);
    if (!gpu->graphs.contains(graph))
      return gpu->fail(kInvalidHandle, "there is no such graph");
    return gpu->enqueue(stream, [graph] {
      Gpu::Queues all = *graph;
      for (auto &[each, queue] : all)
        for (Gpu::Command &command : queue)
          if (command.sets)
            command.sets->isDone = false;
      gpu->drain(all);
    });
  }
};

device::Driver Gpu::driver() {
  device::Driver d{};
  d.getErrorString = [](int, const char **text) { return *text = gpu->errorText.c_str(), 0; };
  d.init = [](unsigned) { return 0; };
  d.deviceGetCount = [](int *count) { return *count = 1, 0; };
  d.deviceGet = [](int *device, int ordinal) { return *device = ordinal, 0; };
  d.deviceGetName = [](char *name, int length, int) { return std::strncpy(name, "PTX", size_t(length)), 0; };
  d.deviceGetAttribute = [](int *value, int attribute, int) { // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR
    return *value = attribute == 75 ? gpu->architecture / 10 : gpu->architecture % 10, 0;
  };
  d.primaryContextRetain = [](Handle *context, int) { return *context = handleOf(gpu), 0; };
  d.contextSetCurrent = [](Handle) { return 0; };
  d.contextSynchronize = [] { return gpu->synchronise(); };
  d.moduleLoadDataEx = Functions::moduleLoad;
  d.moduleGetFunction = Functions::moduleGetFunction;
  d.memAlloc = Functions::memAlloc;
  d.memFree = Functions::memFree;
  d.memHostAlloc = Functions::memHostAlloc;
  d.memFreeHost = Functions::memFreeHost;
  d.copyToDevice = Functions::copyToDevice;
  d.copyToHost = Functions::copyToHost;
  d.copy = Functions::copy;
  d.fill = Functions::fill;
  d.streamCreate = [](Handle *stream, unsigned) { return *stream = handleOf(&gpu->streams.emplace_back()), 0; };
  d.streamQuery = Functions::streamQuery;
  d.streamWaitEvent = Functions::streamWaitEvent;
  d.streamBeginCapture = Functions::streamBeginCapture;
  d.streamEndCapture = Functions::streamEndCapture;
  d.eventCreate = [](Handle *event, unsigned) { return *event = handleOf(&gpu->events.emplace_back()), 0; };
  d.eventSynchronize = Functions::eventSynchronize;
  d.eventRecord = Functions::eventRecord;
  d.launchKernel = Functions::launchKernel;
  d.graphInstantiate = [](Handle *executable, Handle graph, unsigned long long) {
    return gpu->graphs.insert(at<Queues>(graph)), *executable = graph, 0;
  };
  d.graphLaunch = Functions::graphLaunch;
  d.graphDestroy = [](Handle) { return 0; }; // What is instantiated of it lives on.
  d.graphExecDestroy = [](Handle executable) {
    return gpu->graphs.erase(at<Queues>(executable)) ? 0 : gpu->fail(kInvalidHandle, "there is no such graph");
  };
  return d;
}

} // namespace recast::ptx
