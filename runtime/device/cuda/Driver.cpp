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
  RECAST_DRIVER_FUNCTIONS(RECAST_FIND, driver)
  for (const char *name : {"cuEventElapsedTime", "cuEventElapsedTime_v2"})
    if (void *function = library.find(name))
      driver.eventElapsedTime = reinterpret_cast<decltype(driver.eventElapsedTime)>(function);
  if (!driver.eventElapsedTime)
    return Status::error(library.name() + " has no function cuEventElapsedTime: a newer one is needed");
  return driver;
}

} // namespace recast::device
