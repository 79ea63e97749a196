// What tests of devices share: work of an executor, to put faults into, and random work.
#pragma once
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include <algorithm>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <random>

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

inline std::vector<Work> randomWork(std::mt19937 &random, size_t count) {
  auto number = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  std::vector<Work> work;
  // All memory has been written before.
  work.push_back({"first", "", 1, 1, {}, {{"all", reinterpret_cast<std::byte *>(4096), 4096, false, true, nullptr}}});
  for (size_t i = 0; i < count; ++i) {
    Work item{"work " + std::to_string(i), "", 1, 1, {}, {}};
    for (int k = number(2); k >= 0; --k) {
      auto *data = reinterpret_cast<std::byte *>(4096 + 64 * number(31));
      int kind = number(2);
      item.uses.push_back({"memory", data, static_cast<size_t>(32 + 32 * number(6)), kind != 0, kind != 1});
    }
    work.push_back(std::move(item));
  }
  return work;
}

} // namespace recast::device::test
