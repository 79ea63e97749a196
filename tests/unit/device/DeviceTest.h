// What tests of devices share: work of an executor, to put faults into.
#pragma once
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include <algorithm>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>

namespace recast::device::test {

inline Scheduled &find(DeviceExecutor &executor, std::string_view kernel) {
  auto found = std::ranges::find_if(executor.scheduled,
                                    [&](const Scheduled &item) { return item.work.kernel.starts_with(kernel); });
  EXPECT_NE(found, executor.scheduled.end()) << kernel;
  return *found;
}

/// Changes the arguments of the first product.
inline void changeMatmul(DeviceExecutor &executor, const std::function<void(cuda::MatmulArgs &)> &change) {
  std::vector<std::byte> &bytes = find(executor, cuda::kMatmul).work.args;
  cuda::MatmulArgs args;
  std::memcpy(&args, bytes.data(), sizeof(args));
  change(args);
  std::memcpy(bytes.data(), &args, sizeof(args));
}

} // namespace recast::device::test
