// Blocks, threads, warps and shared memory on the host, for kernels that compile as host C++ (source/Cuda.h). Threads
// of a block are fibres; blocks run one after the other. Every access of memory is watched: kernels are compiled with
// -fsanitize-coverage=trace-loads,trace-stores, whose callbacks the emulation defines.
//
// A launch fails, with a sentence that names kernel, block and thread, on:
// - an access outside of the launch's ranges, shared memory and the thread's own stack, or a store into a range that is
//   only read; an address that is no multiple of the access's size; a read of shared memory that nobody has written;
// - two threads at one byte, one of them writing, with no barrier of the block (or, within a warp, of the warp:
// shuffles
//   and ballots order no memory) between them, and not both by atomic operations. Blocks are never in order;
// - a barrier or a warp operation that not all threads of the block or lanes of the warp reach.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace recast::cuda::emulation {

/// An entry point that compiles for the host.
struct Kernel {
  std::string_view name;
  int maxThreads;  ///< A block's threads at most.
  size_t argBytes; ///< Size of its argument struct.
  void (*run)(const void *args);
};

/// Memory that a launch may touch.
struct Range {
  std::string name; ///< As messages say it.
  const void *data = nullptr;
  size_t bytes = 0;
  bool isWritten = false, isRead = true;
};

/// Runs all blocks. `args` are the bytes of the kernel's argument struct. With `reversed` threads and blocks run from
/// the last to the first: results must not depend on it.
Status launch(const Kernel &kernel, int64_t blocks, int threads, std::span<const std::byte> args,
              std::span<const Range> ranges, bool reversed = false);

// What Cuda.h maps its names to.
int threadIndex();
int blockThreads();
int64_t blockIndex();
int64_t gridBlocks();
int lane();
void syncThreads(int line = __builtin_LINE());
void syncWarp();
uint32_t ballot(bool value);
/// The value of lane `from`, modulo 32.
uint32_t shuffle(uint32_t value, int from);
uint32_t atomicAdd(uint32_t *at, uint32_t value);
void atomicMax(uint32_t *at, uint32_t value);
void atomicOr(uint32_t *at, uint32_t value);
void atomicMin(uint64_t *at, uint64_t value);
/// The block's variable with this tag.
void *shared(const char *tag, size_t bytes, size_t alignment);

} // namespace recast::cuda::emulation
