// What is declared of NVIDIA's driver against cuda.h.
#include "SameCall.h"
#include "runtime/device/cuda/CudaDevice.cpp"
#include <cuda.h>

namespace recast::device {

RECAST_SAME_CALL(Driver, getErrorString, cuGetErrorString)
RECAST_SAME_CALL(Driver, init, cuInit)
RECAST_SAME_CALL(Driver, deviceGetCount, cuDeviceGetCount)
RECAST_SAME_CALL(Driver, deviceGet, cuDeviceGet)
RECAST_SAME_CALL(Driver, deviceGetName, cuDeviceGetName)
RECAST_SAME_CALL(Driver, deviceGetAttribute, cuDeviceGetAttribute)
RECAST_SAME_CALL(Driver, primaryContextRetain, cuDevicePrimaryCtxRetain)
RECAST_SAME_CALL(Driver, contextSetCurrent, cuCtxSetCurrent)
RECAST_SAME_CALL(Driver, contextSynchronize, cuCtxSynchronize)
RECAST_SAME_CALL(Driver, moduleLoadDataEx, cuModuleLoadDataEx)
RECAST_SAME_CALL(Driver, moduleGetFunction, cuModuleGetFunction)
RECAST_SAME_CALL(Driver, memAlloc, cuMemAlloc_v2)
RECAST_SAME_CALL(Driver, memFree, cuMemFree_v2)
RECAST_SAME_CALL(Driver, memHostAlloc, cuMemHostAlloc)
RECAST_SAME_CALL(Driver, memFreeHost, cuMemFreeHost)
RECAST_SAME_CALL(Driver, copyToDevice, cuMemcpyHtoDAsync_v2)
RECAST_SAME_CALL(Driver, copyToHost, cuMemcpyDtoHAsync_v2)
RECAST_SAME_CALL(Driver, copyOnDevice, cuMemcpyDtoDAsync_v2)
RECAST_SAME_CALL(Driver, fill, cuMemsetD8Async)
RECAST_SAME_CALL(Driver, streamCreate, cuStreamCreate)
RECAST_SAME_CALL(Driver, streamQuery, cuStreamQuery)
RECAST_SAME_CALL(Driver, streamWaitEvent, cuStreamWaitEvent)
RECAST_SAME_CALL(Driver, streamBeginCapture, cuStreamBeginCapture_v2)
RECAST_SAME_CALL(Driver, streamEndCapture, cuStreamEndCapture)
RECAST_SAME_CALL(Driver, eventCreate, cuEventCreate)
RECAST_SAME_CALL(Driver, eventSynchronize, cuEventSynchronize)
RECAST_SAME_CALL(Driver, eventRecord, cuEventRecord)
RECAST_SAME_CALL(Driver, launchKernel, cuLaunchKernel)
RECAST_SAME_CALL(Driver, graphInstantiate, cuGraphInstantiateWithFlags)
RECAST_SAME_CALL(Driver, graphLaunch, cuGraphLaunch)
RECAST_SAME_CALL(Driver, graphDestroy, cuGraphDestroy)

static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kNoTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

} // namespace recast::device
