#include "tests/unit/gpu/GpuRegions.h"
#include "runtime/kernels/cpu/Generated.h"
#include "runtime/kernels/cuda/emulation/Generated.h"
#include <cstring>

namespace recast::fusion::test {

namespace {

std::vector<Memory> outputsOf(const Region &region) {
  std::vector<Memory> outputs;
  for (int value : region.outputs) {
    const Expr &e = region.values[static_cast<size_t>(value)];
    outputs.emplace_back(static_cast<size_t>(e.elems()) * byteSize(e.type));
  }
  return outputs;
}

} // namespace

double numberAt(DType type, const std::byte *data, int64_t i) {
  return dispatchAny(type, [&]<typename T>() { return static_cast<double>(reinterpret_cast<const T *>(data)[i]); });
}

void setNumber(DType type, std::byte *data, int64_t i, double value) {
  dispatchAny(type, [&]<typename T>() { reinterpret_cast<T *>(data)[i] = static_cast<T>(value); });
}

std::vector<Memory> runOnCpu(const Scheduled &s, std::vector<Memory> &inputs) {
  std::string name = contentName(s.region, s.program);
  Kernel kernel{&s.region, &s.program, name};
  auto object = compileKernels({&kernel, 1});
  std::vector<Memory> outputs = outputsOf(s.region);
  if (!object) {
    ADD_FAILURE() << object.message();
    return outputs;
  }
  CodeObject code{CodeObject::SharedObject, hostTarget(), *object};
  GeneratedCode generated;
  Status status = generated.load({&code, 1});
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  std::vector<void *> buffers;
  for (Memory &memory : inputs)
    buffers.push_back(memory.data());
  for (Memory &memory : outputs)
    buffers.push_back(memory.data());
  Memory workspace(s.program.workspaceBytes);
  for (size_t p = 0; p < s.program.phases.size(); ++p)
    generated.find(entryName(name, p))(buffers.data(), workspace.data(), 0, s.program.phases[p].ranges());
  return outputs;
}

std::vector<Memory> runEmulated(const Scheduled &s, std::vector<Memory> &inputs, bool reversed) {
  namespace emulation = cuda::emulation;
  std::string name = contentName(s.region, s.program);
  Kernel kernel{&s.region, &s.program, name};
  auto object = compileEmulated({&kernel, 1});
  std::vector<Memory> outputs = outputsOf(s.region);
  if (!object) {
    ADD_FAILURE() << object.message();
    return outputs;
  }
  auto kernels = emulation::GeneratedKernels::open(*object);
  if (!kernels) {
    ADD_FAILURE() << kernels.message();
    return outputs;
  }
  Memory workspace(s.program.workspaceBytes);
  std::vector<void *> addresses;
  std::vector<emulation::Range> ranges;
  auto add = [&](const std::string &what, Memory &memory, bool isWritten, bool isRead) {
    addresses.push_back(memory.data());
    ranges.push_back({what, memory.data(), memory.bytes, isWritten, isRead});
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    add("input " + std::to_string(i), inputs[i], false, true);
  for (size_t i = 0; i < outputs.size(); ++i)
    add("output " + std::to_string(i), outputs[i], true, false);
  add("workspace", workspace, true, true);
  for (const GpuLaunch &launch : gpuLaunches(name, s.region, s.program)) {
    auto entry = (*kernels)->find(launch.kernel, addresses.size(), launch.threads);
    if (!entry) {
      ADD_FAILURE() << "no kernel " << launch.kernel;
      return outputs;
    }
    Status status =
        emulation::launch(*entry, launch.blocks, launch.threads, std::as_bytes(std::span(addresses)), ranges, reversed);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  }
  return outputs;
}

} // namespace recast::fusion::test
