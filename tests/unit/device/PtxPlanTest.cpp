// Whole training steps by the CUDA device over a GPU's driver that executes the kernels' PTX: the numbers are those of
// the checking device, which runs the host form of the same kernels.
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "tests/ptx/Gpu.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/device/FakeCudnn.h"
#include "tests/unit/device/StandIns.h"

namespace recast::device {
namespace {

struct Recipe {
  const char *name, *model;
  void (*set)(PipelineOptions &options);
  int architecture = 80;
};
constexpr Recipe kRecipes[] = {
    {"mlp_f32", "mlp", [](PipelineOptions &options) { options.clipNorm = 1; }},
    {"mlp_f16", "mlp", [](PipelineOptions &options) { options.precision = "f16"; }},
    {"mlp_accumulated", "mlp", [](PipelineOptions &options) { options.accumulate = 2; }},
    {"nanogpt_bf16", "nanogpt", [](PipelineOptions &options) { options.precision = "bf16", options.clipNorm = 1; }},
    {"lenet_f32", "lenet", [](PipelineOptions &options) {}},
    {"gpt2_tiny_fp8_delayed", "gpt2_tiny", [](PipelineOptions &options) { options.precision = "fp8-delayed"; }, 89},
    {"gpt2_tiny_fp8_row", "gpt2_tiny", [](PipelineOptions &options) { options.precision = "fp8-row"; }, 90},
};

class PtxPlan : public testing::TestWithParam<Recipe> {
protected:
  void SetUp() override {
    PipelineOptions options;
    const Recipe &recipe = GetParam();
    recipe.set(options);
    model.make(recipe.model, options, /*bindsSizes=*/true);
    CompileOptions compileOptions;
    compileOptions.device = "cuda";
    compileOptions.emulates = true; // The plan has both, PTX and host code.
    compileOptions.cudaArchitecture = recipe.architecture;
    plan = model.compile(compileOptions);
    ASSERT_TRUE(plan);
    test::fake = &fake;
    fake.enqueue = [this](CudaHandle stream, std::function<void()> action) {
      return gpu.enqueue(stream, std::move(action));
    };
    cudnn.perform = test::perform;
    gpu.architecture = recipe.architecture;
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
  test::FakeCudnn cudnn;
  ptx::Gpu gpu;
};

TEST_P(PtxPlan, RunsAsOnTheCheckingDevice) {
  CheckingDevice checking(GetParam().architecture);
  std::map<std::string, std::vector<std::byte>> wanted = run(checking, {});
  CublasLtFunctions lt = test::fakeLt();
  CudnnFunctions dnn = test::fakeCudnn(cudnn);
  for (DeviceOptions options : {DeviceOptions{.streams = 1}, DeviceOptions{.streams = 3, .graph = true}}) {
    gpu.launches.clear();
    auto device = CudaDevice::create(ptx::Gpu::driver(), &lt, &dnn, nullptr, 0);
    ASSERT_TRUE(device) << device.message();
    for (const auto &[name, bytes] : run(**device, options))
      EXPECT_EQ(bytes, wanted[name]) << name << ", " << options.streams << " streams";
    size_t generated = 0;
    for (const Step &step : plan->steps)
      generated += step.library == "generated";
    EXPECT_GT(generated, 0u);
    EXPECT_GT(std::ranges::count_if(
                  gpu.launches,
                  [](const auto &launch) { return !cuda::emulation::find(launch.first) && launch.second == 2; }),
              0)
        << "generated kernels run once a step";
  }
  EXPECT_EQ(gpu.allocations(), 0u) << "what is not given back";
}

INSTANTIATE_TEST_SUITE_P(Recipes, PtxPlan, testing::ValuesIn(kRecipes),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
} // namespace recast::device
