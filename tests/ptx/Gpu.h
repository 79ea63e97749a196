// NVIDIA's driver over the machine that executes PTX: what CudaDevice does on a GPU, it does here.
//
// Work waits in its stream until the host waits for it, and then runs in the order that events leave most freedom to:
// the last stream first, others when an event of theirs is waited for. A graph keeps the streams and events that it was
// captured from. What a kernel does wrong is an error of this and all later calls, as on a GPU; its text says what.
#pragma once
#include "runtime/device/cuda/Driver.h"
#include "tests/ptx/Machine.h"
#include <deque>
#include <functional>
#include <set>

namespace recast::ptx {

class Gpu {
public:
  using Handle = device::CudaHandle;

  /// One at a time: the functions of a driver are plain ones.
  Gpu();
  ~Gpu();
  /// Its functions work while it lives.
  static device::Driver driver();
  /// As a library's call: after what is in the stream.
  int enqueue(Handle stream, std::function<void()> action);

  int architecture = 90;
  std::map<std::string, int> launches; ///< Of each kernel.
  /// What has not been given back.
  size_t allocations() const { return deviceMemory.size() + hostMemory.size() + graphs.size(); }

private:
  friend struct Functions;
  struct Stream;
  /// One record of an event.
  struct Mark {
    bool isDone = false, isCaptured = false;
    Stream *stream = nullptr;
  };
  struct Command {
    std::function<Status()> run = {}; ///< Or one of these:
    std::shared_ptr<Mark> sets = {}, waits = {};
  };
  using Queue = std::deque<Command>;
  using Queues = std::map<Stream *, Queue>;
  struct Stream {
    bool isCapturing = false;
  };
  struct Event {
    std::shared_ptr<Mark> last;
  };
  struct Entry {
    const Module *module;
    const Function *function;
  };

  int add(Handle stream, Command command);
  int fail(int code, const std::string &what);
  /// Runs the first command of the stream, and before it what that waits for.
  void advance(Queues &queues, Stream *stream);
  void drain(Queues &queues);
  int synchronise();
  int launch(Handle function, int64_t blocks, int threads, Handle stream, void **args, void **extra);
  bool isJoined() const;
  bool isHost(const void *data) const;

  Memory memory;
  std::map<uintptr_t, size_t> deviceMemory, hostMemory; ///< Bytes at addresses.
  std::deque<Stream> streams;                           ///< The first is the default one, which no other waits for.
  std::deque<Event> events;
  std::deque<std::unique_ptr<Module>> modules;
  std::deque<Entry> entries;
  std::deque<Queues> captures;     ///< Graphs.
  std::set<const Queues *> graphs; ///< That can be launched.
  Queues queues, captured;
  Stream *origin = nullptr; ///< Where the capture began that goes on.
  int error = 0;
  std::string errorText;
};

} // namespace recast::ptx
