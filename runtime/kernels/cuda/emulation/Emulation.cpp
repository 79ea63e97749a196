#include "runtime/kernels/cuda/emulation/Emulation.h"
#include "runtime/kernels/cuda/emulation/Fibre.h"
#include "runtime/kernels/cuda/emulation/Shadow.h"
#include <algorithm>
#include <array>
#include <map>
#include <vector>

extern "C" const char __executable_start, _end; // The linker's: the program's own constants lie between.

namespace recast::cuda::emulation {
namespace {

constexpr int kWarpLanes = 32;
constexpr int kMostThreads = 1024;
constexpr size_t kSharedBytes = 48 << 10; ///< What every architecture gives a block without asking for more.

enum class State { Ready, AtBarrier, AtWarp, Done };
enum class WarpOperation { Sync, Ballot, Shuffle };

struct Thread {
  Fibre fibre;
  State state = State::Ready;
  int barrierLine = 0;
  WarpOperation operation = WarpOperation::Sync;
  uint32_t value = 0; ///< Into a warp operation, and out of it.
  int from = 0;
  uint32_t warpBarriers = 0;
};

struct SharedVariable {
  size_t offset, bytes;
};

/// One launch; the emulation runs one at a time.
class Machine {
public:
  Status run(const Kernel &kernel, int64_t blocks, int threads, std::span<const std::byte> args,
             std::span<const Range> ranges, bool reversed);

  // Called on the fibres.
  void syncThreads(int line);
  uint32_t warpOperation(WarpOperation operation, uint32_t value, int from);
  void *shared(const char *tag, size_t bytes, size_t alignment);
  void touch(uintptr_t address, size_t bytes, bool isWrite, bool isAtomic);

  int thread = 0, numThreads = 0;
  int64_t block = 0, numBlocks = 0;
  bool isRunning = false; ///< On a fibre.

private:
  void runBlock();
  bool step();
  bool resolveWarps();
  bool resolveBarrier();
  void fail(std::string what) {
    if (failure.empty())
      failure = "kernel " + std::string(kernel->name) + ", block " + std::to_string(block) + ", " + std::move(what);
  }
  /// Of a fibre: what it did is wrong, and it does not go on. Its stack is given up as it is: what `say` makes is gone
  /// by then, and callers hold nothing that has to be destroyed.
  template <typename Say> void stop(Say say) {
    isRunning = false;
    fail("thread " + std::to_string(thread) + ": " + say());
    threads[static_cast<size_t>(thread)].fibre.suspend();
  }
  void checkRace(uintptr_t address, size_t bytes, bool isWrite, bool isAtomic, std::string_view name);
  std::string nameOf(uintptr_t address, size_t &offset) const;

  const Kernel *kernel = nullptr;
  std::vector<std::byte> args;
  std::span<const Range> ranges;
  std::vector<bool> isTracked; ///< Of each range: whether the launch may write in it. Else nothing can race.
  bool reversed = false;
  std::vector<Thread> threads;
  std::string failure;
  uint64_t launches = 0, blocksSoFar = 0;
  uint32_t barriers = 0;
  alignas(128) std::array<std::byte, kSharedBytes> sharedMemory;
  size_t sharedBytes = 0;
  std::map<const char *, SharedVariable> sharedVariables;
  Shadow shadow;
  size_t lastRange[2] = {}; ///< Of a load, of a store: most go on where the last was.
};

Machine &machine() {
  static Machine machine;
  return machine;
}

Status Machine::run(const Kernel &kernel, int64_t blocks, int threadCount, std::span<const std::byte> bytes,
                    std::span<const Range> ranges, bool reversed) {
  auto error = [&](const std::string &what) {
    return Status::error("kernel " + std::string(kernel.name) + ": " + what);
  };
  if (bytes.size() != kernel.argBytes)
    return error("its arguments have " + std::to_string(kernel.argBytes) + " bytes, the launch gives " +
                 std::to_string(bytes.size()));
  if (threadCount < 1 || threadCount > std::min(kernel.maxThreads, kMostThreads) || threadCount % kWarpLanes)
    return error("a block of " + std::to_string(threadCount) + " threads is no multiple of " +
                 std::to_string(kWarpLanes) + " up to " + std::to_string(kernel.maxThreads));
  if (blocks < 1 || blocks > INT32_MAX)
    return error("a grid of " + std::to_string(blocks) + " blocks");
  this->kernel = &kernel;
  args.assign(bytes.begin(), bytes.end());
  this->ranges = ranges;
  isTracked.clear();
  for (const Range &range : ranges)
    isTracked.push_back(std::ranges::any_of(ranges, [&](const Range &other) {
      // As numbers: a range may be all of memory, which no pointer has the end of.
      auto begin = [](const Range &r) { return reinterpret_cast<uintptr_t>(r.data); };
      return other.isWritten && begin(range) < begin(other) + other.bytes && begin(other) < begin(range) + range.bytes;
    }));
  this->reversed = reversed;
  numThreads = threadCount;
  numBlocks = blocks;
  if (threads.empty())
    threads = std::vector<Thread>(kMostThreads); // Fibres stay where they are.
  failure.clear();
  lastRange[0] = lastRange[1] = 0;
  ++launches;
  for (int64_t i = 0; i < blocks && failure.empty(); ++i) {
    block = reversed ? blocks - 1 - i : i;
    runBlock();
  }
  return failure.empty() ? Status::success() : Status::error(failure);
}

void Machine::runBlock() {
  ++blocksSoFar;
  barriers = 0;
  sharedBytes = 0;
  sharedVariables.clear();
  for (int i = 0; i < numThreads; ++i) {
    Thread &t = threads[static_cast<size_t>(i)];
    t.state = State::Ready;
    t.warpBarriers = 0;
    t.fibre.start(
        [](void *self) { static_cast<Machine *>(self)->kernel->run(static_cast<Machine *>(self)->args.data()); }, this);
  }
  while (step() && failure.empty())
    ;
}

/// Runs every thread up to where it waits. False at the end of the block.
bool Machine::step() {
  for (int i = 0; i < numThreads && failure.empty(); ++i) {
    thread = reversed ? numThreads - 1 - i : i;
    Thread &t = threads[static_cast<size_t>(thread)];
    if (t.state != State::Ready)
      continue;
    isRunning = true;
    bool hasEnded = t.fibre.resume();
    isRunning = false;
    if (hasEnded)
      t.state = State::Done;
  }
  if (!failure.empty())
    return false;
  auto all = std::span(threads).first(static_cast<size_t>(numThreads));
  if (std::ranges::all_of(all, [](const Thread &t) { return t.state == State::Done; }))
    return false;
  return resolveWarps() || resolveBarrier();
}

/// Ends the warp operations that all lanes have reached. True where there was one, or where one can never end.
bool Machine::resolveWarps() {
  bool any = false;
  for (int first = 0; first < numThreads; first += kWarpLanes) {
    auto lanes = std::span(threads).subspan(static_cast<size_t>(first), kWarpLanes);
    auto waiting = std::ranges::find(lanes, State::AtWarp, &Thread::state);
    if (waiting == lanes.end())
      continue;
    for (const Thread &lane : lanes)
      if (lane.state != State::AtWarp || lane.operation != waiting->operation) {
        fail("thread " + std::to_string(first + (waiting - lanes.begin())) + " waits in a warp operation that thread " +
             std::to_string(first + (&lane - lanes.data())) +
             (lane.state == State::Done ? " never reaches: it has ended" : " does not reach"));
        return true;
      }
    std::array<uint32_t, kWarpLanes> values;
    uint32_t ballot = 0;
    for (size_t i = 0; i < kWarpLanes; ++i) {
      values[i] = lanes[i].value;
      ballot |= static_cast<uint32_t>(values[i] != 0) << i;
    }
    for (Thread &lane : lanes) {
      lane.value =
          lane.operation == WarpOperation::Shuffle ? values[static_cast<size_t>(lane.from % kWarpLanes)] : ballot;
      lane.state = State::Ready;
      lane.warpBarriers += lane.operation == WarpOperation::Sync;
    }
    any = true;
  }
  return any;
}

/// Everybody who can has come to a barrier.
bool Machine::resolveBarrier() {
  auto all = std::span(threads).first(static_cast<size_t>(numThreads));
  auto waiting = std::ranges::find(all, State::AtBarrier, &Thread::state);
  for (Thread &t : all)
    if (t.state != State::AtBarrier || t.barrierLine != waiting->barrierLine) {
      fail("thread " + std::to_string(waiting - all.begin()) + " waits at the barrier of line " +
           std::to_string(waiting->barrierLine) + " that thread " + std::to_string(&t - all.data()) +
           (t.state == State::Done ? " never reaches: it has ended" : " does not reach"));
      return true;
    }
  for (Thread &t : all)
    t.state = State::Ready;
  ++barriers;
  return true;
}

void Machine::syncThreads(int line) {
  Thread &t = threads[static_cast<size_t>(thread)];
  t.state = State::AtBarrier;
  t.barrierLine = line;
  t.fibre.suspend();
}

uint32_t Machine::warpOperation(WarpOperation operation, uint32_t value, int from) {
  Thread &t = threads[static_cast<size_t>(thread)];
  t.state = State::AtWarp;
  t.operation = operation;
  t.value = value;
  t.from = from;
  t.fibre.suspend();
  return t.value;
}

void *Machine::shared(const char *tag, size_t bytes, size_t alignment) {
  auto found = sharedVariables.find(tag);
  if (found == sharedVariables.end()) {
    size_t offset = (sharedBytes + alignment - 1) / alignment * alignment;
    if (offset + bytes > kSharedBytes)
      stop([] { return "more than " + std::to_string(kSharedBytes) + " bytes of shared memory"; });
    sharedBytes = offset + bytes;
    found = sharedVariables.emplace(tag, SharedVariable{offset, bytes}).first;
  }
  return sharedMemory.data() + found->second.offset;
}

void Machine::touch(uintptr_t address, size_t bytes, bool isWrite, bool isAtomic) {
  if (!isRunning)
    return;
  auto within = [&](const void *begin, size_t size) {
    auto start = reinterpret_cast<uintptr_t>(begin);
    return address >= start && address - start < size && bytes <= size - (address - start);
  };
  if (within(threads[static_cast<size_t>(thread)].fibre.stack(), Fibre::kStackBytes) ||
      (!isWrite && within(args.data(), args.size())))
    return;
  auto access = [&] { return (isWrite ? "a store of " : "a load of ") + std::to_string(bytes) + " bytes"; };
  if (within(sharedMemory.data(), sharedBytes)) {
    if (address % bytes)
      return stop([&] { return access() + " of shared memory is misaligned"; });
    return checkRace(address, bytes, isWrite, isAtomic, "");
  }
  for (size_t i = 0; i < ranges.size(); ++i) {
    size_t index = (lastRange[isWrite] + i) % ranges.size();
    const Range &range = ranges[index];
    if (!within(range.data, range.bytes) || (isWrite ? !range.isWritten : !range.isRead))
      continue;
    lastRange[isWrite] = index;
    if (address % bytes)
      return stop([&] {
        return access() + " at byte " + std::to_string(address - reinterpret_cast<uintptr_t>(range.data)) + " of " +
               range.name + " is misaligned";
      });
    if (isTracked[index])
      checkRace(address, bytes, isWrite, isAtomic, range.name);
    return;
  }
  if (!isWrite && address >= reinterpret_cast<uintptr_t>(&__executable_start) &&
      address < reinterpret_cast<uintptr_t>(&_end))
    return;
  stop([&] {
    size_t offset = 0;
    std::string name = nameOf(address, offset);
    if (name.empty())
      return access() + " outside of every buffer of the launch";
    return access() + " at byte " + std::to_string(offset) + " of " + name +
           (isWrite ? ", which is only read" : ", which is only written");
  });
}

/// The range that holds an address; "" where none does.
std::string Machine::nameOf(uintptr_t address, size_t &offset) const {
  for (const Range &range : ranges) {
    offset = address - reinterpret_cast<uintptr_t>(range.data);
    if (address >= reinterpret_cast<uintptr_t>(range.data) && offset < range.bytes)
      return range.name;
  }
  return "";
}

void Machine::checkRace(uintptr_t address, size_t bytes, bool isWrite, bool isAtomic, std::string_view name) {
  // Every block has shared memory of its own.
  uint64_t scope = name.empty() ? blocksSoFar : launches;
  Access access{scope, block, thread, barriers, threads[static_cast<size_t>(thread)].warpBarriers, isAtomic};
  for (size_t i = 0; i < bytes; ++i) {
    if (name.empty() && !isWrite && !shadow.isWritten(address + i, access))
      return stop([] { return "a load of shared memory that no thread has written"; });
    const Access *other = isWrite ? shadow.write(address + i, access) : shadow.read(address + i, access);
    if (other)
      return stop([&] {
        return "a race with thread " + std::to_string(other->thread) + " of block " + std::to_string(other->block) +
               " on " + (name.empty() ? "shared memory" : std::string(name)) + ": nothing orders the two accesses";
      });
  }
}

} // namespace

Status launch(const Kernel &kernel, int64_t blocks, int threads, std::span<const std::byte> args,
              std::span<const Range> ranges, bool reversed) {
  return machine().run(kernel, blocks, threads, args, ranges, reversed);
}

int threadIndex() { return machine().thread; }
int blockThreads() { return machine().numThreads; }
int64_t blockIndex() { return machine().block; }
int64_t gridBlocks() { return machine().numBlocks; }
int lane() { return machine().thread % kWarpLanes; }
void syncThreads(int line) { machine().syncThreads(line); }
void syncWarp() { machine().warpOperation(WarpOperation::Sync, 0, 0); }
uint32_t ballot(bool value) { return machine().warpOperation(WarpOperation::Ballot, value, 0); }
uint32_t shuffle(uint32_t value, int from) { return machine().warpOperation(WarpOperation::Shuffle, value, from); }

namespace {
void touchAtomic(void *at, size_t bytes) { machine().touch(reinterpret_cast<uintptr_t>(at), bytes, true, true); }
} // namespace

uint32_t atomicAdd(uint32_t *at, uint32_t value) {
  touchAtomic(at, sizeof(*at));
  uint32_t old = *at;
  *at += value;
  return old;
}
void atomicMax(uint32_t *at, uint32_t value) {
  touchAtomic(at, sizeof(*at));
  *at = std::max(*at, value);
}
void atomicOr(uint32_t *at, uint32_t value) {
  touchAtomic(at, sizeof(*at));
  *at |= value;
}
void atomicMin(uint64_t *at, uint64_t value) {
  touchAtomic(at, sizeof(*at));
  *at = std::min(*at, value);
}
void *shared(const char *tag, size_t bytes, size_t alignment) { return machine().shared(tag, bytes, alignment); }

} // namespace recast::cuda::emulation

// The callbacks of -fsanitize-coverage=trace-loads,trace-stores.
#define RECAST_CALLBACKS(Bytes)                                                                                        \
  void __sanitizer_cov_load##Bytes(const void *address) {                                                              \
    recast::cuda::emulation::machine().touch(reinterpret_cast<uintptr_t>(address), Bytes, false, false);               \
  }                                                                                                                    \
  void __sanitizer_cov_store##Bytes(const void *address) {                                                             \
    recast::cuda::emulation::machine().touch(reinterpret_cast<uintptr_t>(address), Bytes, true, false);                \
  }
extern "C" {
RECAST_CALLBACKS(1)
RECAST_CALLBACKS(2)
RECAST_CALLBACKS(4)
RECAST_CALLBACKS(8)
RECAST_CALLBACKS(16)
}
