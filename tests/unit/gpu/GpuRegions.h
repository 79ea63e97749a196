// Runs regions as generated CPU code, as emulated GPU kernels and as PTX.
#pragma once
#include "runtime/fusion/GpuCode.h"
#include "runtime/fusion/RegionBuilder.h"
#include <gtest/gtest.h>
#include <random>

namespace recast::fusion::test {

/// Memory aligned as a plan's.
struct Memory {
  explicit Memory(size_t bytes) : storage((bytes + 63) / 64 + 1), bytes(bytes) {}
  std::byte *data() { return reinterpret_cast<std::byte *>(storage.data()); }
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> storage;
  size_t bytes;
};

/// Element `i` as a number.
double numberAt(DType type, const std::byte *data, int64_t i);
void setNumber(DType type, std::byte *data, int64_t i, double value);

/// A region that is scheduled.
struct Scheduled {
  Region region;
  Program program;
};

/// The outputs of the CPU's code.
std::vector<Memory> runOnCpu(const Scheduled &s, std::vector<Memory> &inputs);
/// Those of the emulated kernels, or of their PTX; in the order of threads and blocks that `reversed` says.
enum class Form { Emulated, Ptx };
std::vector<Memory> runKernels(const Scheduled &s, std::vector<Memory> &inputs, Form form, bool reversed);

} // namespace recast::fusion::test
