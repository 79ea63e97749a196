// The CUDA C++ that kernels are written in. The same source compiles to PTX (clang -x cuda, no toolkit: the names here
// are clang's NVVM builtins) and to host code over an emulation of blocks, warps and shared memory.
//
// Rules that both sides share: a block has a multiple of 32 threads and one dimension; a warp operation names all 32
// lanes; results never depend on the order of blocks.
#pragma once
#if defined(__CUDA__)
// Before <cmath>, so that std has them on the device too: what is shared with the CPU asks for them.
__attribute__((device)) inline double fabs(double x) { return __builtin_fabs(x); }
__attribute__((device)) inline double ceil(double x) { return __builtin_ceil(x); }
#endif
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string_view>
#include <type_traits>

#if defined(__CUDA__)
// Functions between these are compiled for the device.
#define RECAST_DEVICE_BEGIN _Pragma("clang force_cuda_host_device begin")
#define RECAST_DEVICE_END _Pragma("clang force_cuda_host_device end")
/// A variable of the block. `Type` has no commas and no constructor.
#define RECAST_SHARED(Type, Name) __attribute__((shared)) Type Name
#define RECAST_KERNELS(Table, ...) __VA_ARGS__
/// An entry point: calls `Body(args)` in every thread; blocks have at most `Threads` threads.
#define RECAST_KERNEL(Name, Threads, Args, ...)                                                                        \
  extern "C" __attribute__((global, launch_bounds(Threads, 1))) void Name(__attribute__((grid_constant))               \
                                                                          const Args args) {                           \
    (__VA_ARGS__)(args);                                                                                               \
  }
#else
#include "runtime/kernels/cuda/emulation/Emulation.h"
#define RECAST_DEVICE_BEGIN
#define RECAST_DEVICE_END
#define RECAST_SHARED(Type, Name)                                                                                      \
  static const char Name##Tag = 0;                                                                                     \
  Type &Name = *static_cast<Type *>(::recast::cuda::emulation::shared(&Name##Tag, sizeof(Type), alignof(Type)))
/// The kernels of a file, as a table that launches find them in: `std::span<const emulation::Kernel> Table()`.
#define RECAST_KERNELS(Table, ...)                                                                                     \
  std::span<const ::recast::cuda::emulation::Kernel> Table() {                                                         \
    static constexpr ::recast::cuda::emulation::Kernel kernels[] = {__VA_ARGS__};                                      \
    return kernels;                                                                                                    \
  }
#define RECAST_KERNEL(Name, Threads, Args, ...)                                                                        \
  {#Name, Threads, sizeof(Args), [](const void *args) { (__VA_ARGS__)(*static_cast<const Args *>(args)); }},
#endif

/// Entry points Name_1, Name_2, Name_4 and Name_8, which move elements of so many bytes.
#define RECAST_KERNEL_BY_SIZE(Name, Threads, Args, Function)                                                           \
  RECAST_KERNEL(Name##_1, Threads, Args, Function<uint8_t>)                                                            \
  RECAST_KERNEL(Name##_2, Threads, Args, Function<uint16_t>)                                                           \
  RECAST_KERNEL(Name##_4, Threads, Args, Function<uint32_t>)                                                           \
  RECAST_KERNEL(Name##_8, Threads, Args, Function<uint64_t>)

namespace recast::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

RECAST_DEVICE_BEGIN
#if defined(__CUDA__)

inline int threadIndex() { return __nvvm_read_ptx_sreg_tid_x(); }
inline int blockThreads() { return __nvvm_read_ptx_sreg_ntid_x(); }
inline int64_t blockIndex() { return __nvvm_read_ptx_sreg_ctaid_x(); }
inline int64_t gridBlocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }
inline void syncThreads() { __syncthreads(); }
inline void syncWarp() { __nvvm_bar_warp_sync(kAllLanes); }
inline uint32_t ballot(bool value) { return __nvvm_vote_ballot_sync(kAllLanes, value); }
namespace detail {
inline uint32_t shuffleXorBits(uint32_t v, int lanes) {
  return static_cast<uint32_t>(__nvvm_shfl_sync_bfly_i32(kAllLanes, static_cast<int>(v), lanes, 31));
}
inline uint32_t shuffleFromBits(uint32_t v, int lane) {
  return static_cast<uint32_t>(__nvvm_shfl_sync_idx_i32(kAllLanes, static_cast<int>(v), lane, 31));
}
} // namespace detail
inline uint32_t atomicAdd(uint32_t *at, uint32_t v) {
  return __scoped_atomic_fetch_add(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
inline void atomicMax(uint32_t *at, uint32_t v) {
  __scoped_atomic_fetch_max(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
inline void atomicOr(uint32_t *at, uint32_t v) {
  __scoped_atomic_fetch_or(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}
inline void atomicMin(uint64_t *at, uint64_t v) {
  __scoped_atomic_fetch_min(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

#else

using emulation::atomicAdd;
using emulation::atomicMax;
using emulation::atomicMin;
using emulation::atomicOr;
using emulation::ballot;
using emulation::blockIndex;
using emulation::blockThreads;
using emulation::gridBlocks;
using emulation::syncThreads;
using emulation::syncWarp;
using emulation::threadIndex;
namespace detail {
inline uint32_t shuffleXorBits(uint32_t v, int lanes) { return emulation::shuffle(v, emulation::lane() ^ lanes); }
inline uint32_t shuffleFromBits(uint32_t v, int lane) { return emulation::shuffle(v, lane); }
} // namespace detail

#endif

inline int lane() { return threadIndex() % kWarp; }
inline int warp() { return threadIndex() / kWarp; }
/// The first element of the thread in a loop over all elements of the grid, and the step of that loop.
inline int64_t gridThread() { return blockIndex() * blockThreads() + threadIndex(); }
inline int64_t gridThreads() { return gridBlocks() * blockThreads(); }

namespace detail {
/// T has 4 or 8 bytes, or fewer.
template <typename T, typename Move> T moved(T value, Move move) {
  if constexpr (sizeof(T) == 8) {
    uint64_t bits = std::bit_cast<uint64_t>(value);
    uint64_t low = move(static_cast<uint32_t>(bits)), high = move(static_cast<uint32_t>(bits >> 32));
    return std::bit_cast<T>(low | high << 32);
  } else {
    static_assert(sizeof(T) == 4);
    return std::bit_cast<T>(move(std::bit_cast<uint32_t>(value)));
  }
}
} // namespace detail

/// The value of the lane whose number differs in the bits of `lanes`.
template <typename T> T shuffleXor(T value, int lanes) {
  return detail::moved(value, [lanes](uint32_t v) { return detail::shuffleXorBits(v, lanes); });
}
/// The value of a lane.
template <typename T> T shuffleFrom(T value, int lane) {
  return detail::moved(value, [lane](uint32_t v) { return detail::shuffleFromBits(v, lane); });
}

/// A plain array, for shared memory and arguments.
template <typename T, int N> struct Array {
  T values[N];
  T &operator[](int64_t i) { return values[i]; }
  const T &operator[](int64_t i) const { return values[i]; }
};

/// The offset of element `i` of a view. Loops come from the outermost to the innermost.
template <int N>
int64_t offsetOf(int64_t i, int rank, const Array<int64_t, N> &sizes, const Array<int64_t, N> &strides) {
  int64_t offset = 0;
  for (int d = rank; d-- > 0; i /= sizes[d])
    offset += i % sizes[d] * strides[d];
  return offset;
}

/// 16 bytes that are read and written at once; their address is a multiple of 16.
using Bytes16 = uint32_t __attribute__((vector_size(16)));

/// Where a kernel reports a value that it cannot work with: the least position of one, ~0 where there is none.
struct Fault {
  uint64_t position;
};
inline void report(Fault *fault, int64_t position) { atomicMin(&fault->position, static_cast<uint64_t>(position)); }

RECAST_DEVICE_END
} // namespace recast::cuda
