// What is declared of NVIDIA's driver against cuda.h.
#include "SameCall.h"
#include "runtime/device/cuda/CudaDevice.cpp"
#include <cuda.h>

namespace recast::device {

RECAST_DRIVER_FUNCTIONS(RECAST_SAME_CALL, Driver)

static_assert(sameCall(decltype(Driver::eventElapsedTime)(nullptr), decltype (&cuEventElapsedTime)(nullptr)));
static_assert(kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(kNoTiming == CU_EVENT_DISABLE_TIMING && kTiming == CU_EVENT_DEFAULT);
static_assert(kErrorLog == CU_JIT_ERROR_LOG_BUFFER && kErrorLogBytes == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
static_assert(kArgumentBufferIs == CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT);
static_assert(kArgumentBytesIs == CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT);
static_assert(kRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

} // namespace recast::device
