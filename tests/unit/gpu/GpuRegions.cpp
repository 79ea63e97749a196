#include "tests/unit/gpu/GpuRegions.h"
#include "runtime/kernels/cpu/Generated.h"
#include "runtime/kernels/cuda/emulation/Generated.h"
#include "tests/ptx/PtxProgram.h"
#include <cstring>
#include <functional>

namespace recast::fusion::test {

namespace {

namespace emulation = cuda::emulation;

std::vector<Memory> outputsOf(const Region &region) {
  std::vector<Memory> outputs;
  for (int value : region.outputs) {
    const Expr &e = region.values[static_cast<size_t>(value)];
    outputs.emplace_back(static_cast<size_t>(e.elems()) * byteSize(e.type));
  }
  return outputs;
}

/// Runs the kernel of that name.
using Run = std::function<Status(const std::string &name, const emulation::BoundLaunch &bound, bool reversed)>;

Result<Run> compile(const Kernel &kernel, Form form) {
  if (form == Form::Ptx) {
    Result<std::string> text = compilePtx({&kernel, 1});
    Result<std::unique_ptr<ptx::Module>> module = text ? ptx::Module::parse(*text) : text.status();
    if (!module)
      return module.status();
    return Run([module = std::shared_ptr(std::move(*module))](const std::string &name,
                                                              const emulation::BoundLaunch &bound, bool reversed) {
      return ptx::run(*module, name, bound, reversed);
    });
  }
  Result<std::string> object = compileEmulated({&kernel, 1});
  auto opened = object ? emulation::GeneratedKernels::open(*object) : object.status();
  if (!opened)
    return opened.status();
  return Run([kernels = std::shared_ptr(std::move(*opened))](const std::string &name,
                                                             const emulation::BoundLaunch &bound, bool reversed) {
    auto entry = kernels->find(name, bound.args.size() / sizeof(void *), bound.threads);
    return entry ? emulation::launch(*entry, bound.blocks, bound.threads, bound.args, bound.ranges, reversed)
                 : Status::error("no kernel " + name);
  });
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

std::vector<Memory> runKernels(const Scheduled &s, std::vector<Memory> &inputs, Form form, bool reversed) {
  std::string name = contentName(s.region, s.program);
  std::vector<Memory> outputs = outputsOf(s.region);
  Memory workspace(s.program.workspaceBytes);
  std::vector<void *> addresses;
  emulation::BoundLaunch bound;
  auto add = [&](const std::string &what, Memory &memory, bool isWritten, bool isRead) {
    addresses.push_back(memory.data());
    bound.ranges.push_back({what, memory.data(), memory.bytes, isWritten, isRead});
  };
  for (size_t i = 0; i < inputs.size(); ++i)
    add("input " + std::to_string(i), inputs[i], false, true);
  for (size_t i = 0; i < outputs.size(); ++i)
    add("output " + std::to_string(i), outputs[i], true, false);
  add("workspace", workspace, true, true);
  std::span<const std::byte> args = std::as_bytes(std::span(addresses));
  bound.args.assign(args.begin(), args.end());
  Result<Run> run = compile({&s.region, &s.program, name}, form);
  EXPECT_TRUE(run) << (run ? "" : run.message());
  for (const GpuLaunch &launch : gpuLaunches(name, s.region, s.program)) {
    bound.blocks = launch.blocks, bound.threads = launch.threads;
    Status status = run ? (*run)(launch.kernel, bound, reversed) : Status::success();
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  }
  return outputs;
}

} // namespace recast::fusion::test
