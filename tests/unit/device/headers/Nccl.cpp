// What is declared of NCCL against nccl.h.
#include "runtime/device/cuda/Nccl.cpp"
#include "SameCall.h"
#include <nccl.h>

namespace recast::device {

RECAST_SAME_CALL(NcclFunctions, getUniqueId, ncclGetUniqueId)
RECAST_SAME_CALL(NcclFunctions, commInitRank, ncclCommInitRank)
RECAST_SAME_CALL(NcclFunctions, allReduce, ncclAllReduce)
RECAST_SAME_CALL(NcclFunctions, commGetAsyncError, ncclCommGetAsyncError)
RECAST_SAME_CALL(NcclFunctions, commAbort, ncclCommAbort)
RECAST_SAME_CALL(NcclFunctions, commDestroy, ncclCommDestroy)
RECAST_SAME_CALL(NcclFunctions, getErrorString, ncclGetErrorString)

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(kF32 == ncclFloat32 && kF64 == ncclFloat64 && kSum == ncclSum);

} // namespace recast::device
