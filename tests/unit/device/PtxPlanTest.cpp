// Whole training steps by the CUDA device over a GPU's driver that executes the kernels' PTX: the numbers are those of
// the checking device, which runs the host form of the same kernels.
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "tests/ptx/Gpu.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/device/FakeCudnn.h"
#include "tests/unit/device/StandIns.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using testing::HasSubstr;

struct Recipe {
  const char *name, *model;
  void (*set)(PipelineOptions &options);
  int architecture = 80;
};
constexpr Recipe kRecipes[] = {
    {"mlp_f32", "mlp", [](PipelineOptions &options) { options.clipNorm = 1; }},
    {"mlp_f16", "mlp", [](PipelineOptions &options) { options.precision = "f16"; }},
    {"nanogpt_bf16", "nanogpt", [](PipelineOptions &options) { options.precision = "bf16", options.clipNorm = 1; }},
    {"mlp_fp8_delayed", "mlp", [](PipelineOptions &options) { options.precision = "fp8-delayed"; }, 89},
    {"mlp_accumulated", "mlp", [](PipelineOptions &options) { options.accumulate = 2; }},
};

class PtxPlan : public testing::TestWithParam<Recipe> {
protected:
  void SetUp() override {
    PipelineOptions options;
    GetParam().set(options);
    model.make(GetParam().model, options, /*bindsSizes=*/true);
    CompileOptions compileOptions;
    compileOptions.device = "cuda";
    compileOptions.emulates = true; // The plan has both, PTX and host code.
    compileOptions.cudaArchitecture = GetParam().architecture;
    plan = model.compile(compileOptions);
    ASSERT_TRUE(plan);
    test::fake = &fake;
    fake.enqueue = [this](CudaHandle stream, std::function<void()> action) {
      return gpu.enqueue(stream, std::move(action));
    };
    gpu.architecture = GetParam().architecture;
  }

  /// The outputs after two steps.
  std::map<std::string, std::vector<std::byte>> run(Device &device, const DeviceOptions &options) {
    std::map<std::string, std::vector<std::byte>> outputs;
    auto executor = DeviceExecutor::create(*plan, device, options);
    EXPECT_TRUE(executor) << executor.message();
    for (int64_t step = 0; executor && step < 2; ++step) {
      for (int index : plan->inputs) {
        std::vector<std::byte> bytes(plan->buffers[static_cast<size_t>(index)].type.bytes());
        model.fill(*plan, index, step, bytes.data());
        EXPECT_TRUE((*executor)->write(index, bytes.data()).ok());
      }
      Status status = (*executor)->run();
      EXPECT_TRUE(status.ok()) << status.message();
    }
    for (const Output &output : plan->outputs) {
      std::vector<std::byte> &bytes = outputs[output.name];
      bytes.resize(plan->buffers[static_cast<size_t>(output.buffer)].type.bytes());
      EXPECT_TRUE(executor && (*executor)->read(output.buffer, bytes.data()).ok());
    }
    return outputs;
  }

  recast::test::StepModel model;
  std::unique_ptr<Plan> plan;
  test::Fake fake;
  ptx::Gpu gpu;
};

TEST_P(PtxPlan, RunsAsOnTheCheckingDevice) {
  CheckingDevice checking(GetParam().architecture);
  std::map<std::string, std::vector<std::byte>> wanted = run(checking, {});
  CublasLtFunctions lt = test::fakeLt();
  for (bool graph : {false, true})
    for (int streams : {1, 3}) {
      auto device = CudaDevice::create(ptx::Gpu::driver(), &lt, nullptr, nullptr, 0);
      ASSERT_TRUE(device) << device.message();
      for (const auto &[name, bytes] : run(**device, {.streams = streams, .graph = graph}))
        EXPECT_EQ(bytes, wanted[name]) << name << ", " << streams << " streams" << (graph ? " as a graph" : "");
    }
  EXPECT_EQ(gpu.allocations(), 0u) << "what is not given back";
}

INSTANTIATE_TEST_SUITE_P(Recipes, PtxPlan, testing::ValuesIn(kRecipes),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
} // namespace recast::device
