// The driver that executes PTX refuses what NVIDIA's refuses, and what a device does wrong with it is seen.
#include "runtime/device/DeviceExecutor.h"
#include "tests/ptx/Gpu.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/device/StandIns.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using testing::HasSubstr;

Driver broken; ///< The functions that Faulty ones call.

class PtxDriver : public testing::Test {
protected:
  void SetUp() override {
    test::fake = &fake;
    fake.enqueue = [this](CudaHandle stream, std::function<void()> action) {
      return gpu.enqueue(stream, std::move(action));
    };
    broken = ptx::Gpu::driver();
    PipelineOptions options;
    options.clipNorm = 1;
    model.make("mlp", options, /*bindsSizes=*/true);
    CompileOptions compileOptions;
    compileOptions.device = "cuda";
    plan = model.compile(compileOptions);
    ASSERT_TRUE(plan);
  }

  /// The new state after a step by a device over these functions; or `said`, what went wrong.
  std::map<std::string, std::vector<std::byte>> run(const Driver &driver, bool graph, std::string &said) {
    std::map<std::string, std::vector<std::byte>> outputs;
    CublasLtFunctions lt = test::fakeLt();
    auto device = CudaDevice::create(driver, &lt, nullptr, nullptr, 0);
    EXPECT_TRUE(device);
    auto executor = DeviceExecutor::create(*plan, **device, {.streams = 3, .graph = graph});
    if (!executor)
      return said = executor.message(), outputs;
    for (int index : plan->inputs) {
      std::vector<std::byte> bytes(plan->buffers[static_cast<size_t>(index)].type.bytes());
      model.fill(*plan, index, 0, bytes.data());
      EXPECT_TRUE((*executor)->write(index, bytes.data()).ok());
    }
    if (Status status = (*executor)->run(); !status.ok())
      return said = status.message(), outputs;
    for (const Output &output : plan->outputs) {
      std::vector<std::byte> &bytes = outputs[output.name];
      bytes.resize(plan->buffers[static_cast<size_t>(output.buffer)].type.bytes());
      EXPECT_TRUE((*executor)->read(output.buffer, bytes.data()).ok());
    }
    return outputs;
  }

  recast::test::StepModel model;
  std::unique_ptr<Plan> plan;
  test::Fake fake;
  ptx::Gpu gpu;
};

/// A generated kernel has a parameter an operand: one pointer to a struct of all of them is not what it takes.
TEST_F(PtxDriver, ArgumentsMustBeTheParameters) {
  std::string said;
  Driver one = broken;
  one.launchKernel = [](CudaHandle function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                        unsigned, CudaHandle stream, void **, void **extra) {
    void *args[] = {extra[1]};
    return broken.launchKernel(function, x, 1, 1, threads, 1, 1, 0, stream, args, nullptr);
  };
  run(one, false, said);
  EXPECT_THAT(said, HasSubstr("parameters, and how many arguments there are cannot be seen"));
  Driver fewer = broken;
  fewer.launchKernel = [](CudaHandle function, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                          unsigned, CudaHandle stream, void **, void **extra) {
    size_t bytes = *static_cast<size_t *>(extra[3]) - sizeof(void *);
    void *less[] = {extra[0], extra[1], extra[2], &bytes, nullptr};
    return broken.launchKernel(function, x, 1, 1, threads, 1, 1, 0, stream, nullptr, less);
  };
  run(fewer, false, said);
  EXPECT_THAT(said, HasSubstr("bytes; its parameters have"));
  Driver more = broken;
  more.launchKernel = [](CudaHandle function, unsigned x, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         CudaHandle stream, void **args, void **extra) {
    return broken.launchKernel(function, x, 1, 1, 1024, 1, 1, 0, stream, args, extra);
  };
  run(more, false, said);
  EXPECT_THAT(said, HasSubstr("blocks of 1024 threads"));
}

/// What is left out of the events that order streams shows in the numbers, or ends the capture too early.
TEST_F(PtxDriver, MissingEventsAreSeen) {
  std::string said;
  std::map<std::string, std::vector<std::byte>> wanted = run(broken, false, said);
  EXPECT_EQ(said, "");
  EXPECT_EQ(run(broken, true, said), wanted) << said;
  Driver careless = broken;
  careless.streamWaitEvent = [](CudaHandle, CudaHandle, unsigned) { return 0; };
  EXPECT_TRUE(run(careless, false, said) != wanted || !said.empty());
}

TEST_F(PtxDriver, CapturesMustBeJoined) {
  Driver d = broken;
  CudaHandle first, second, event, graph;
  d.streamCreate(&first, 1), d.streamCreate(&second, 1), d.eventCreate(&event, 2);
  CudaPointer data;
  d.memAlloc(&data, 64);
  d.streamBeginCapture(first, 2);
  EXPECT_NE(d.contextSynchronize(), 0) << "the host waits";
  d.eventRecord(event, first);
  d.streamWaitEvent(second, event, 0);
  d.fill(data, 1, 64, second);
  EXPECT_EQ(d.streamEndCapture(first, &graph), 904) << "CUDA_ERROR_STREAM_CAPTURE_UNJOINED";
  d.streamBeginCapture(first, 2);
  d.eventRecord(event, first);
  d.streamWaitEvent(second, event, 0);
  d.fill(data, 1, 64, second);
  d.eventRecord(event, second);
  d.streamWaitEvent(first, event, 0);
  EXPECT_EQ(d.streamEndCapture(first, &graph), 0);
  CudaHandle executable;
  d.graphInstantiate(&executable, graph, 0);
  EXPECT_EQ(d.graphLaunch(executable, first), 0);
  EXPECT_EQ(*reinterpret_cast<unsigned char *>(data), 255) << "nothing runs before the host waits";
  EXPECT_EQ(d.contextSynchronize(), 0);
  EXPECT_EQ(*reinterpret_cast<unsigned char *>(data), 1);
  EXPECT_EQ(d.graphExecDestroy(executable), 0);
  EXPECT_EQ(d.memFree(data), 0);
  EXPECT_NE(d.memFree(data), 0);
}

/// What a kernel does wrong is an error of the calls after it.
TEST_F(PtxDriver, FaultsOfKernelsStay) {
  Driver d = broken;
  CudaHandle module, function, stream;
  const char *text = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u64 f_param_0)\n"
                     "{\n.reg .b64 %rd<2>;\nld.param.b64 %rd1, [f_param_0];\nst.global.b64 [%rd1+64], %rd1;\nret;\n}";
  ASSERT_EQ(d.moduleLoadDataEx(&module, text, 0, nullptr, nullptr), 0);
  ASSERT_EQ(d.moduleGetFunction(&function, module, "f"), 0);
  d.streamCreate(&stream, 1);
  CudaPointer data;
  d.memAlloc(&data, 64);
  void *args[] = {&data};
  EXPECT_EQ(d.launchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, args, nullptr), 0);
  Status status = d.check(d.contextSynchronize(), "cuCtxSynchronize");
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("f, line 8 of its PTX, block 0, thread 31: a write of 8 bytes"));
  EXPECT_NE(d.launchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, args, nullptr), 0);
  EXPECT_EQ(d.moduleLoadDataEx(&module, "nonsense", 0, nullptr, nullptr), 218) << "CUDA_ERROR_INVALID_PTX";
}

} // namespace
} // namespace recast::device
