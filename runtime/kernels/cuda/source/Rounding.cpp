#include "runtime/kernels/cuda/source/Rounding.h"

namespace recast::cuda {
RECAST_DEVICE_BEGIN
namespace {

constexpr int kThreads = 256;

void roundTf32(const RoundArgs &a) {
  constexpr uint32_t kDropped = 13, kInfinity = 0x7f800000;
  for (int64_t i = gridThread(); i < a.count; i += gridThreads()) {
    uint32_t bits = std::bit_cast<uint32_t>(a.x[i]);
    bool isFinite = (bits & kInfinity) != kInfinity;
    uint32_t rounded = (bits + (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1)) >> kDropped << kDropped;
    a.y[i] = std::bit_cast<float>(isFinite ? rounded : bits);
  }
}

} // namespace
RECAST_DEVICE_END

// clang-format off
RECAST_KERNELS(roundingKernels,
  RECAST_KERNEL(round_tf32, kThreads, RoundArgs, roundTf32))
// clang-format on

} // namespace recast::cuda
