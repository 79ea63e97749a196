// NVIDIA's driver API, as far as it is used. Declared here, so that a build needs no CUDA toolkit; names and signatures
// are those of the "CUDA Driver API" reference, section numbers of CUDA 13.
#pragma once
#include "runtime/plan/Status.h"
#include <cstddef>
#include <cstdint>
#include <string>

namespace recast::device {

using CudaPointer = unsigned long long; ///< CUdeviceptr.
using CudaHandle = struct CudaObject *; ///< CUcontext, CUstream, CUevent, CUmodule, CUfunction, CUgraph, CUgraphExec.

inline constexpr int kNotReady = 600; ///< CUDA_ERROR_NOT_READY

/// Functions return a CUresult: 0 is success.
struct Driver {
  // 6.2 Error handling, 6.3 initialization, 6.5 device and 6.7 primary context management.
  int (*getErrorString)(int error, const char **text);
  int (*init)(unsigned flags);
  int (*deviceGetCount)(int *count);
  int (*deviceGet)(int *device, int ordinal);
  int (*deviceGetName)(char *name, int length, int device);
  int (*deviceGetAttribute)(int *value, int attribute, int device);
  int (*primaryContextRetain)(CudaHandle *context, int device);
  int (*contextSetCurrent)(CudaHandle context);
  int (*contextSynchronize)();
  // 6.10 Module management.
  int (*moduleLoadDataEx)(CudaHandle *module, const void *image, unsigned options, int *names, void **values);
  int (*moduleGetFunction)(CudaHandle *function, CudaHandle module, const char *name);
  // 6.13 Memory management.
  int (*memAlloc)(CudaPointer *pointer, size_t bytes);
  int (*memFree)(CudaPointer pointer);
  int (*memHostAlloc)(void **pointer, size_t bytes, unsigned flags);
  int (*memFreeHost)(void *pointer);
  int (*copyToDevice)(CudaPointer to, const void *from, size_t bytes, CudaHandle stream);
  int (*copyToHost)(void *to, CudaPointer from, size_t bytes, CudaHandle stream);
  /// Between any two of the device's memory and page-locked memory of the host, which share one space of addresses.
  int (*copy)(CudaPointer to, CudaPointer from, size_t bytes, CudaHandle stream);
  int (*fill)(CudaPointer to, unsigned char value, size_t bytes, CudaHandle stream);
  // 6.18 Stream, 6.19 event, 6.22 execution and 6.24 graph management.
  int (*streamCreate)(CudaHandle *stream, unsigned flags);
  int (*streamQuery)(CudaHandle stream); ///< kNotReady while work is left.
  int (*streamWaitEvent)(CudaHandle stream, CudaHandle event, unsigned flags);
  int (*streamBeginCapture)(CudaHandle stream, int mode);
  int (*streamEndCapture)(CudaHandle stream, CudaHandle *graph);
  int (*eventCreate)(CudaHandle *event, unsigned flags);
  int (*eventSynchronize)(CudaHandle event);
  int (*eventRecord)(CudaHandle event, CudaHandle stream);
  /// cuEventElapsedTime, of which CUDA 12.8 has brought a second version: not in the table below.
  int (*eventElapsedTime)(float *milliseconds, CudaHandle from, CudaHandle to);
  int (*launchKernel)(CudaHandle function, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX,
                      unsigned blockY, unsigned blockZ, unsigned sharedBytes, CudaHandle stream, void **args,
                      void **extra);
  int (*graphInstantiate)(CudaHandle *executable, CudaHandle graph, unsigned long long flags);
  int (*graphLaunch)(CudaHandle executable, CudaHandle stream);
  int (*graphDestroy)(CudaHandle graph);
  int (*graphExecDestroy)(CudaHandle executable); ///< What runs of it still ends.

  /// "cuLaunchKernel for node 'x': an illegal memory access was encountered".
  Status check(int result, const std::string &call) const;
};

/// Members and the names that they are looked up by: Use(Table, member, name).
#define RECAST_DRIVER_FUNCTIONS(Use, Table)                                                                            \
  Use(Table, getErrorString, cuGetErrorString) Use(Table, init, cuInit) Use(Table, deviceGetCount, cuDeviceGetCount)   \
      Use(Table, deviceGet, cuDeviceGet) Use(Table, deviceGetName, cuDeviceGetName) Use(                               \
          Table, deviceGetAttribute, cuDeviceGetAttribute) Use(Table, primaryContextRetain, cuDevicePrimaryCtxRetain)  \
          Use(Table, contextSetCurrent, cuCtxSetCurrent) Use(Table, contextSynchronize, cuCtxSynchronize)              \
              Use(Table, moduleLoadDataEx, cuModuleLoadDataEx) Use(Table, moduleGetFunction, cuModuleGetFunction)      \
                  Use(Table, memAlloc, cuMemAlloc_v2) Use(Table, memFree, cuMemFree_v2)                                \
                      Use(Table, memHostAlloc, cuMemHostAlloc) Use(Table, memFreeHost, cuMemFreeHost)                  \
                          Use(Table, copyToDevice, cuMemcpyHtoDAsync_v2) Use(Table, copyToHost, cuMemcpyDtoHAsync_v2)  \
                              Use(Table, copy, cuMemcpyAsync) Use(Table, fill, cuMemsetD8Async)                        \
                                  Use(Table, streamCreate, cuStreamCreate) Use(Table, streamQuery, cuStreamQuery)      \
                                      Use(Table, streamWaitEvent, cuStreamWaitEvent)                                   \
                                          Use(Table, streamBeginCapture, cuStreamBeginCapture_v2)                      \
                                              Use(Table, streamEndCapture, cuStreamEndCapture)                         \
                                                  Use(Table, eventCreate, cuEventCreate) Use(Table, eventSynchronize,  \
                                                                                             cuEventSynchronize)       \
                                                      Use(Table, eventRecord, cuEventRecord) Use(Table, launchKernel,  \
                                                                                                 cuLaunchKernel)       \
                                                          Use(Table, graphInstantiate, cuGraphInstantiateWithFlags)    \
                                                              Use(Table, graphLaunch, cuGraphLaunch)                   \
                                                                  Use(Table, graphDestroy, cuGraphDestroy)             \
                                                                      Use(Table, graphExecDestroy, cuGraphExecDestroy)
/// Opens libcuda.so.1.
Result<Driver> openDriver();

} // namespace recast::device
