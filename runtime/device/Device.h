// What a plan needs of a device with streams: memory, copies, launches, events, graphs. cuda/ implements it over
// NVIDIA's driver; Checking.h runs everything on the host and checks it.
#pragma once
#include "runtime/exec/Communicator.h"
#include "runtime/plan/Plan.h"
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace recast::device {

/// Memory that work touches.
struct MemoryUse {
  std::string name; ///< As messages say it.
  std::byte *data = nullptr;
  size_t bytes = 0;
  bool isRead = false, isWritten = false;
  /// Which value is read or written there: the same address for all uses of one. What is read must have been written
  /// as that value last.
  const void *value = nullptr;
  bool isScratch = false; ///< It is read, too, where this work or what comes before it in its step has written.
};

// Work of a device that is no kernel.
inline constexpr std::string_view kCopy = "device.copy"; ///< kernels/cuda's CopyArgs.
inline constexpr std::string_view kFill = "device.fill"; ///< FillBytesArgs.
struct FillBytesArgs {
  void *dst;
  int64_t bytes;
  uint8_t value;
};

/// One launch of a kernel, or one call of a library.
struct Work {
  std::string step; ///< "node 'fc1' (Gather)".
  std::string kernel;
  int64_t blocks = 1;
  int threads = 1;
  std::vector<std::byte> args; ///< The kernel's arguments, addresses filled in.
  std::vector<MemoryUse> uses;
  /// Packs what ranks reduce, or reduces it: beside other work, in the same order on all ranks.
  bool isForRanks = false;
  bool isTransfer = false; ///< A copy (kCopy) from or to page-locked memory of the host, which goes on beside the rest.
  const Step *source = nullptr; ///< The plan's step, where it is of one.
};

/// The bytes of an argument struct.
template <typename Args> std::vector<std::byte> bytesOf(const Args &args) {
  std::vector<std::byte> bytes(sizeof(Args));
  std::memcpy(bytes.data(), &args, sizeof(Args));
  return bytes;
}

/// Streams are numbered from 0, events too; both exist once they are used. Calls return before the work is done; errors
/// of the work may come with a later call.
class Device {
public:
  virtual ~Device() = default;
  /// Makes the kernels of a plan known.
  virtual Status load(std::span<const CodeObject> code) = 0;
  /// Memory for the device's life, aligned to 256 bytes.
  virtual Result<std::byte *> allocate(size_t bytes, const std::string &what) = 0;
  /// Page-locked memory of the host, for the device's life: copies from and to it go on beside the host's work.
  virtual Result<std::byte *> allocateHost(size_t bytes, const std::string &what) = 0;
  /// Says that the host is about to read or write page-locked memory.
  virtual Status useOnHost(const MemoryUse &use) = 0;
  virtual Status copyIn(const MemoryUse &to, const void *from, int stream) = 0;
  /// `to` holds the bytes after synchronise().
  virtual Status copyOut(void *to, const MemoryUse &from, int stream) = 0;
  /// Makes ready a call of a library that a plan can do without, and tells what was chosen for it; an error where this
  /// device does not run it.
  virtual Result<std::string> prepare(const Work &work) = 0;
  virtual Status launch(const Work &work, int stream) = 0;
  virtual Status record(int event, int stream) = 0;
  virtual Status wait(int event, int stream) = 0;
  /// Notes the time, under a number from 0, when the stream has come so far. Not within a capture.
  virtual Status mark(int number, int stream) = 0;
  /// Between two marks that are passed.
  virtual Result<double> secondsBetween(int from, int to) = 0;
  /// The host waits.
  virtual Status waitOnHost(int event) = 0;
  /// From here on to endCapture() work is not done but noted, on this stream and those that wait for its events.
  virtual Status beginCapture(int stream) = 0;
  /// The number of the graph. All streams that take part have been waited for by `stream`.
  virtual Result<int> endCapture(int stream) = 0;
  virtual Status replay(int graph, int stream) = 0;
  virtual Status synchronise() = 0;
  /// False while work of the stream is not done.
  virtual Result<bool> isDone(int stream) = 0;
  /// Joins the devices of all ranks, which call it together; from then on launches may be cuda::kAllReduce. `ranks`
  /// outlives the device.
  virtual Status join(Communicator &ranks) = 0;
  /// Ends what waits for other ranks, which will not come: for a rank that cannot go on. Nothing follows.
  virtual void abandonRanks() = 0;
};

} // namespace recast::device
