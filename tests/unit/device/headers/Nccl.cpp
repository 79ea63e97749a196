// What is declared of NCCL against nccl.h.
#include "runtime/device/cuda/Nccl.cpp"
#include "SameCall.h"
#include <nccl.h>

namespace recast::device {

RECAST_NCCL_FUNCTIONS(RECAST_SAME_CALL, NcclFunctions)

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(kF32 == ncclFloat32 && kF64 == ncclFloat64 && kSum == ncclSum);

} // namespace recast::device
