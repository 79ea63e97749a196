#include "runtime/device/cuda/Driver.h"
#include "runtime/device/cuda/Library.h"

namespace recast::device {

Status Driver::check(int result, const std::string &call) const {
  if (result == 0)
    return Status::success();
  const char *text = nullptr;
  getErrorString(result, &text);
  return Status::error(call + ": " + (text ? text : "error " + std::to_string(result)));
}

Result<Driver> openDriver() {
  Result<Library> opened = Library::open({"libcuda.so.1", "libcuda.so"}, "NVIDIA's driver");
  if (!opened)
    return Status::error(opened.message() + ": this machine has no CUDA device; run with --device=cpu");
  const Library &library = *opened;
  Driver driver{};
  RECAST_FIND(driver, getErrorString, "cuGetErrorString")
  RECAST_FIND(driver, init, "cuInit")
  RECAST_FIND(driver, deviceGetCount, "cuDeviceGetCount")
  RECAST_FIND(driver, deviceGet, "cuDeviceGet")
  RECAST_FIND(driver, deviceGetName, "cuDeviceGetName")
  RECAST_FIND(driver, deviceGetAttribute, "cuDeviceGetAttribute")
  RECAST_FIND(driver, primaryContextRetain, "cuDevicePrimaryCtxRetain")
  RECAST_FIND(driver, contextSetCurrent, "cuCtxSetCurrent")
  RECAST_FIND(driver, contextSynchronize, "cuCtxSynchronize")
  RECAST_FIND(driver, moduleLoadDataEx, "cuModuleLoadDataEx")
  RECAST_FIND(driver, moduleGetFunction, "cuModuleGetFunction")
  RECAST_FIND(driver, memAlloc, "cuMemAlloc_v2")
  RECAST_FIND(driver, memFree, "cuMemFree_v2")
  RECAST_FIND(driver, memHostAlloc, "cuMemHostAlloc")
  RECAST_FIND(driver, memFreeHost, "cuMemFreeHost")
  RECAST_FIND(driver, copyToDevice, "cuMemcpyHtoDAsync_v2")
  RECAST_FIND(driver, copyToHost, "cuMemcpyDtoHAsync_v2")
  RECAST_FIND(driver, copyOnDevice, "cuMemcpyDtoDAsync_v2")
  RECAST_FIND(driver, fill, "cuMemsetD8Async")
  RECAST_FIND(driver, streamCreate, "cuStreamCreate")
  RECAST_FIND(driver, streamQuery, "cuStreamQuery")
  RECAST_FIND(driver, streamWaitEvent, "cuStreamWaitEvent")
  RECAST_FIND(driver, streamBeginCapture, "cuStreamBeginCapture_v2")
  RECAST_FIND(driver, streamEndCapture, "cuStreamEndCapture")
  RECAST_FIND(driver, eventCreate, "cuEventCreate")
  RECAST_FIND(driver, eventSynchronize, "cuEventSynchronize")
  RECAST_FIND(driver, eventRecord, "cuEventRecord")
  RECAST_FIND(driver, launchKernel, "cuLaunchKernel")
  RECAST_FIND(driver, graphInstantiate, "cuGraphInstantiateWithFlags")
  RECAST_FIND(driver, graphLaunch, "cuGraphLaunch")
  RECAST_FIND(driver, graphDestroy, "cuGraphDestroy")
  return driver;
}

} // namespace recast::device
