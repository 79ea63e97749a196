// A region's phases as kernels of a GPU: the same module becomes PTX, and host code over the emulation
// (runtime/kernels/cuda/emulation). What differs between both are the functions of `gpu_names`.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "runtime/fusion/Schedule.h"

namespace recast::fusion {

/// What the kernels call: the device's registers and warp operations.
namespace gpu_names {
inline constexpr const char *kThread = "recast_gpu_thread";      ///< () -> i32: of the block.
inline constexpr const char *kBlock = "recast_gpu_block";        ///< () -> i64
inline constexpr const char *kBlocks = "recast_gpu_blocks";      ///< () -> i64: of the grid.
inline constexpr const char *kSyncThreads = "recast_gpu_sync";   ///< ()
inline constexpr const char *kSyncWarp = "recast_gpu_sync_warp"; ///< ()
inline constexpr const char *kShuffleXor = "recast_gpu_shuffle"; ///< (i32 value, i32 lanes) -> i32
inline constexpr const char *kShared = "recast_gpu_shared";      ///< () -> ptr: kSharedBytes bytes of the block.
inline constexpr const char *kWidePrefix = "recast_gpu_wide_";   ///< C's function of f64 values after it.
} // namespace gpu_names

inline constexpr int kGpuThreads = 256; ///< Of a block.
/// One value of 8 bytes a warp.
inline constexpr int64_t kGpuSharedBytes = kGpuThreads / 32 * 8;

/// How a phase is launched. Its arguments are the addresses of the region's inputs, then its outputs, then the
/// workspace.
struct GpuLaunch {
  std::string kernel;
  int64_t blocks = 1;
  int threads = kGpuThreads;
  /// What the phase loads and stores: inputs, then outputs numbered after them.
  std::vector<int64_t> operands;
};
/// One launch a phase, in their order.
std::vector<GpuLaunch> gpuLaunches(const std::string &name, const Region &region, const Program &program);
/// Outputs that may take over the memory of inputs where threads run in any order: fewer than inPlaceOf says.
std::vector<InPlace> gpuInPlace(const Region &region, const Program &program);

/// Adds a function for each phase, which takes those addresses.
void emitGpu(mlir::ModuleOp module, const std::string &name, const Region &region, const Program &program);

} // namespace recast::fusion
