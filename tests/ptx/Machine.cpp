#include "tests/ptx/Machine.h"
#include <cstring>

namespace recast::ptx {
namespace {

constexpr uint32_t kWarp = 32;
/// A thread that takes more steps without a barrier does not end.
constexpr uint64_t kMostSteps = uint64_t(1) << 32;

/// One function that a thread is in.
struct Frame {
  const Function *function = nullptr;
  std::vector<uint64_t> slots;
  std::vector<std::byte> params;
  size_t at = 0; ///< The next instruction.
};

struct Thread {
  enum State : uint8_t { Ready, Waits, Ended } state = Ready;
  uint32_t number = 0;
  size_t depth = 0; ///< Frames in use, less one.
  std::vector<Frame> frames;

  Frame &frame() { return frames[depth]; }
  /// Where it waits.
  const Instruction &waitsAt() { return frame().function->code[frame().at]; }
};

class Block {
public:
  Block(const Module &module, const Function &entry, const Grid &grid, std::span<const std::byte> args,
        const Memory &memory)
      : module(module), entry(entry), grid(grid), args(args), memory(memory), shared(module.sharedBytes),
        marks(module.sharedBytes), threads(static_cast<size_t>(grid.threads)) {
    for (size_t i = 0; i < threads.size(); ++i)
      threads[i].number = static_cast<uint32_t>(i);
  }

  /// False on an error, which `error` says.
  bool run(int64_t number) {
    block = number;
    std::memset(shared.data(), 0xff, shared.size()); // A NaN, where an error does not come first.
    std::fill(marks.begin(), marks.end(), Outside);
    for (const SharedVariable &variable : module.shared)
      std::fill_n(marks.begin() + variable.offset, variable.bytes, Unwritten);
    for (Thread &thread : threads)
      start(thread);
    for (;;) {
      size_t ended = 0;
      for (size_t i = 0; i < threads.size(); i += kWarp) {
        size_t first = grid.isReversed ? threads.size() - kWarp - i : i;
        if (!runWarp(std::span(threads).subspan(first, kWarp)))
          return false;
      }
      for (Thread &thread : threads)
        ended += thread.state == Thread::Ended;
      if (ended == threads.size())
        return true;
      if (!passBarrier())
        return false;
    }
  }

  std::string error;

private:
  enum Mark : uint8_t { Outside, Unwritten, Written };

  void start(Thread &thread) {
    thread.state = Thread::Ready;
    thread.depth = 0;
    if (thread.frames.empty())
      thread.frames.emplace_back();
    enter(thread, entry);
    std::memcpy(thread.frame().params.data(), args.data(), args.size());
  }

  void enter(Thread &thread, const Function &function) const {
    Frame &frame = thread.frame();
    frame.function = &function;
    frame.slots = function.slots;
    frame.slots[kThread] = thread.number;
    frame.slots[kThreads] = static_cast<uint64_t>(grid.threads);
    frame.slots[kBlock] = static_cast<uint64_t>(block);
    frame.slots[kBlocks] = static_cast<uint64_t>(grid.blocks);
    frame.slots[kLane] = thread.number % kWarp;
    frame.params.assign(function.paramBytes, std::byte(0xff));
    frame.at = 0;
  }

  bool fail(Thread &thread, const std::string &what) {
    error = entry.name + ", line " + std::to_string(thread.waitsAt().line) + " of its PTX, block " +
            std::to_string(block) + ", thread " + std::to_string(thread.number) + ": " + what;
    return false;
  }

  // Threads that wait for each other ---------------------------------------------------------------------------------

  /// Runs the lanes until all wait at a barrier of the block or have ended.
  bool runWarp(std::span<Thread> lanes) {
    for (;;) {
      for (size_t i = 0; i < lanes.size(); ++i)
        if (Thread &lane = lanes[grid.isReversed ? lanes.size() - 1 - i : i]; lane.state == Thread::Ready && !run(lane))
          return false;
      Thread *waiting = nullptr;
      bool isResolved = false;
      for (Thread &lane : lanes)
        if (lane.state == Thread::Waits && lane.waitsAt().kind != Kind::BlockBarrier) {
          waiting = &lane;
          if ((isResolved = haveAllArrived(lanes, lane))) {
            exchange(lanes, lane.waitsAt(), static_cast<uint32_t>(lane.frame().slots[lane.waitsAt().mask]));
            break;
          }
        }
      if (!waiting)
        return true;
      if (!isResolved)
        return fail(*waiting, "not all lanes of its mask come to this operation of the warp");
    }
  }

  static bool haveAllArrived(std::span<Thread> lanes, Thread &lane) {
    const Instruction &instruction = lane.waitsAt();
    auto mask = static_cast<uint32_t>(lane.frame().slots[instruction.mask]);
    if (!(mask >> lane.number % kWarp & 1))
      return false;
    for (uint32_t i = 0; i < lanes.size(); ++i)
      if (mask >> i & 1)
        if (lanes[i].state != Thread::Waits || &lanes[i].waitsAt() != &instruction ||
            static_cast<uint32_t>(lanes[i].frame().slots[instruction.mask]) != mask)
          return false;
    return true;
  }

  /// The lanes of the mask go on.
  static void exchange(std::span<Thread> lanes, const Instruction &instruction, uint32_t mask) {
    std::array<uint64_t, kWarp> results{};
    uint64_t ballot = 0;
    for (uint32_t i = 0; i < lanes.size(); ++i)
      if (mask >> i & 1 && instruction.kind == Kind::Ballot)
        ballot |= uint64_t(lanes[i].frame().slots[instruction.a] != 0) << i;
    for (uint32_t i = 0; i < lanes.size(); ++i)
      if (mask >> i & 1)
        results[i] = instruction.kind == Kind::Shuffle
                         ? lanes[sourceOf(instruction, lanes[i], i)].frame().slots[instruction.a]
                         : ballot;
    for (uint32_t i = 0; i < lanes.size(); ++i)
      if (mask >> i & 1) {
        if (instruction.to != kNone)
          lanes[i].frame().slots[instruction.to] = results[i] & instruction.keeps;
        ++lanes[i].frame().at;
        lanes[i].state = Thread::Ready;
      }
  }

  /// PTX ISA, shfl.sync: c has the clamp in bits 0 to 4 and the mask of segments in bits 8 to 12.
  static uint32_t sourceOf(const Instruction &instruction, Thread &thread, uint32_t lane) {
    uint64_t b = thread.frame().slots[instruction.b] & 31, c = thread.frame().slots[instruction.c];
    auto by = static_cast<uint32_t>(b), clamp = static_cast<uint32_t>(c & 31),
         segment = static_cast<uint32_t>(c >> 8 & 31);
    uint32_t most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    uint32_t from = instruction.exchange == Exchange::Index ? least | (by & ~segment) : lane ^ by;
    return from <= most ? from : lane;
  }

  /// All threads go on from the barrier; lanes of a warp from the same one.
  bool passBarrier() {
    Thread &first = threads[0];
    for (Thread &thread : threads) {
      if (thread.state == Thread::Ended || first.state == Thread::Ended)
        return fail(thread.state == Thread::Ended ? first : thread,
                    "a thread of the block has ended before this barrier");
      const Instruction &mine = thread.waitsAt(), &other = threads[thread.number / kWarp * kWarp].waitsAt();
      if (&mine != &other)
        return fail(thread, "lanes of a warp are at different barriers");
      if (thread.frame().slots[mine.a] != first.frame().slots[first.waitsAt().a])
        return fail(thread, "threads of the block are at barriers of different numbers");
    }
    for (Thread &thread : threads) {
      ++thread.frame().at;
      thread.state = Thread::Ready;
    }
    return true;
  }

  // One thread -------------------------------------------------------------------------------------------------------

  /// Until it waits or ends.
  bool run(Thread &thread) {
    for (uint64_t steps = 0; steps < kMostSteps; ++steps) {
      Frame &frame = thread.frame();
      const Instruction &i = frame.function->code[frame.at];
      uint64_t *slots = frame.slots.data();
      if (i.guard != kNone && (slots[i.guard] != 0) == i.isGuardNegated) {
        ++frame.at;
        continue;
      }
      switch (i.kind) {
      case Kind::Compute:
        slots[i.to] = i.compute(slots[i.a], slots[i.b], slots[i.c]) & i.keeps;
        break;
      case Kind::Pack:
        slots[i.to] = 0;
        for (uint32_t k = 0; k < i.elements; ++k)
          slots[i.to] |= (slots[i.list[k]] & lowBits(i.elementBytes)) << (8 * i.elementBytes * k);
        break;
      case Kind::Unpack: {
        uint64_t whole = slots[i.a];
        for (uint32_t k = 0; k < i.elements; ++k)
          if (i.list[k] != kNone)
            slots[i.list[k]] = whole >> (8 * i.elementBytes * k) & lowBits(i.elementBytes);
        break;
      }
      case Kind::Load:
      case Kind::Store:
      case Kind::Atomic:
        if (!access(thread, i, slots))
          return false;
        break;
      case Kind::Branch:
        frame.at = i.target;
        continue;
      case Kind::BranchTable:
        if (slots[i.a] >= i.targets.size())
          return fail(thread, "branch " + std::to_string(slots[i.a]) + " of " + std::to_string(i.targets.size()));
        frame.at = i.targets[slots[i.a]];
        continue;
      case Kind::Call:
        call(thread, i);
        continue;
      case Kind::Return:
        if (thread.depth == 0) {
          thread.state = Thread::Ended;
          return true;
        }
        giveBack(thread);
        break;
      case Kind::BlockBarrier:
      case Kind::WarpBarrier:
      case Kind::Shuffle:
      case Kind::Ballot:
        thread.state = Thread::Waits;
        return true;
      }
      ++thread.frame().at;
    }
    return fail(thread, "the thread does not end");
  }

  static uint64_t lowBits(uint32_t bytes) { return bytes >= 8 ? ~uint64_t(0) : (uint64_t(1) << (8 * bytes)) - 1; }

  void call(Thread &thread, const Instruction &i) {
    if (thread.frames.size() == thread.depth + 1)
      thread.frames.emplace_back();
    ++thread.depth;
    enter(thread, *i.callee);
    Frame &caller = thread.frames[thread.depth - 1], &callee = thread.frames[thread.depth];
    for (size_t k = 0; k < i.callee->parameters.size(); ++k)
      std::memcpy(callee.params.data() + i.callee->parameters[k].offset, caller.params.data() + i.arguments[k].offset,
                  i.arguments[k].size);
  }

  /// The result, to the caller, which is still at its call.
  static void giveBack(Thread &thread) {
    Frame &callee = thread.frames[thread.depth], &caller = thread.frames[thread.depth - 1];
    const Instruction &call = caller.function->code[caller.at];
    for (const Bytes &result : callee.function->results)
      std::memcpy(caller.params.data() + call.arguments.back().offset, callee.params.data() + result.offset,
                  result.size);
    --thread.depth;
  }

  bool access(Thread &thread, const Instruction &i, uint64_t *slots) {
    uint64_t address = slots[i.a] + static_cast<uint64_t>(i.offset);
    size_t bytes = size_t(i.elementBytes) * std::max<size_t>(i.elements, 1);
    bool isRead = i.kind != Kind::Store, isWritten = i.kind != Kind::Load;
    if (address % bytes)
      return fail(thread, "an access of " + std::to_string(bytes) + " bytes at an address that is no multiple of that");
    std::byte *at = locate(thread, i, address, bytes, isRead, isWritten);
    if (!at)
      return false;
    if (i.kind == Kind::Atomic) {
      uint64_t before = load(at, i);
      uint64_t after = i.compute(before, slots[i.b], 0);
      std::memcpy(at, &after, i.elementBytes);
      slots[i.to] = before & i.keeps;
      return true;
    }
    for (uint32_t k = 0; k < i.elements; ++k, at += i.elementBytes)
      if (i.kind == Kind::Store)
        std::memcpy(at, &slots[i.list[k]], i.elementBytes);
      else if (i.list[k] != kNone)
        slots[i.list[k]] = load(at, i) & i.keeps;
    return true;
  }

  static uint64_t load(const std::byte *at, const Instruction &i) {
    uint64_t value = 0;
    std::memcpy(&value, at, i.elementBytes);
    if (uint64_t sign = uint64_t(1) << (8 * i.elementBytes - 1); i.isSigned && value & sign)
      value |= ~lowBits(i.elementBytes);
    return value;
  }

  /// Where the bytes are on the host; null, with an error, where there are none.
  std::byte *locate(Thread &thread, const Instruction &i, uint64_t address, size_t bytes, bool isRead, bool isWritten) {
    auto wrong = [&](const char *what) {
      char text[160];
      std::snprintf(text, sizeof(text), "%s of %zu bytes at %#llx %s", isWritten ? "a write" : "a read", bytes,
                    static_cast<unsigned long long>(address), what);
      return fail(thread, text), nullptr;
    };
    if (i.space == Space::Param) {
      Frame &frame = thread.frame();
      if (address >= frame.params.size() || bytes > frame.params.size() - address)
        return wrong("is outside of the parameters");
      if (isWritten && address < frame.function->inputBytes)
        return wrong("is into the function's own parameters");
      return frame.params.data() + address;
    }
    if (i.space == Space::Shared) {
      if (address >= shared.size() || bytes > shared.size() - address)
        return wrong("is outside of shared memory");
      for (size_t k = address; k < address + bytes; ++k) {
        if (marks[k] == Outside)
          return wrong("is outside of the variables in shared memory");
        if (isRead && marks[k] == Unwritten)
          return wrong("is of shared memory that no thread has written");
        if (isWritten)
          marks[k] = Written;
      }
      return shared.data() + address;
    }
    // Global, or generic: no address of shared memory becomes a generic one (cvta.shared is not known).
    if (!last.allows(address, bytes, isWritten)) {
      std::swap(last, other);
      if (!last.allows(address, bytes, isWritten))
        last = memory.find(address, bytes, isWritten);
      if (last.end == 0)
        return wrong(memory.find(address, bytes, false).end ? "is into what is only to be read"
                                                            : "is outside of what has been allocated");
    }
    return reinterpret_cast<std::byte *>(address);
  }

  const Module &module;
  const Function &entry;
  const Grid &grid;
  std::span<const std::byte> args;
  const Memory &memory;
  Allocation last, other; ///< That accesses were in before.
  std::vector<std::byte> shared;
  std::vector<Mark> marks; ///< Of its bytes.
  std::vector<Thread> threads;
  int64_t block = 0;
};

} // namespace

Status launch(const Module &module, const Function &entry, const Grid &grid, std::span<const std::byte> args,
              const Memory &memory) {
  if (grid.threads < 1 || grid.threads % static_cast<int>(kWarp) || grid.blocks < 1 ||
      grid.threads > static_cast<int>(entry.maxThreads))
    return Status::error(entry.name + ": a grid of " + std::to_string(grid.blocks) + " blocks of " +
                         std::to_string(grid.threads) + " threads");
  Memory all = memory;
  for (const Module::Global &global : module.globals)
    all.add(global.data.get(), global.bytes, !global.isConstant);
  Block block(module, entry, grid, args, all);
  for (int64_t i = 0; i < grid.blocks; ++i)
    if (!block.run(grid.isReversed ? grid.blocks - 1 - i : i))
      return Status::error(block.error);
  return Status::success();
}

} // namespace recast::ptx
