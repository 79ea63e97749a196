// Whole training steps of the torch corpus as CUDA plans: nothing is refused, the checking device finds no fault, and
// the numbers are those of the CPU's reference kernels, which sum in double as the kernels of CUDA plans do.
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "tests/unit/StepModel.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

namespace recast::device {
namespace {

using test::modelNames;

/// `tolerance`: of a relative error in norm. In f32 the issue's; a 16-bit or 8-bit type has that of one rounding of its
/// own, which two orders of summation differ by, grown by the depth of the models: 2^-8, 2^-11 and 2^-4 times eight.
struct Recipe {
  const char *name;
  double tolerance;
  void (*set)(PipelineOptions &options);
  int architecture = 80; ///< The first that has all the products, 80 for sm_80.
};
/// In f32 and f16 the optimizer is SGD: Adam divides by the size of a gradient, and so makes of a rounding error in one
/// that is nearly zero (a bias before a normalisation, say) a change as large as the learning rate.
constexpr Recipe kRecipes[] = {
    {"f32", 1e-5, [](PipelineOptions &options) { options.clipNorm = 1, options.optimizer = "sgd"; }},
    {"tf32", 1e-3, [](PipelineOptions &options) { options.precision = "tf32", options.optimizer = "sgd"; }},
    {"bf16", 0x1p-5, [](PipelineOptions &options) { options.precision = "bf16", options.clipNorm = 1; }},
    {"f16", 0x1p-8, [](PipelineOptions &options) { options.precision = "f16", options.optimizer = "sgd"; }},
    {"accumulated", 1e-5,
     [](PipelineOptions &options) { options.accumulate = 2, options.clipNorm = 1, options.optimizer = "sgd"; }},
    {"f16_accumulated", 0x1p-8,
     [](PipelineOptions &options) { options.accumulate = 2, options.precision = "f16", options.optimizer = "sgd"; }},
    {"fp8_delayed", 0.5, [](PipelineOptions &options) { options.precision = "fp8-delayed", options.clipValue = 1; },
     89},
    {"fp8_current", 0.5, [](PipelineOptions &options) { options.precision = "fp8-current"; }, 89},
    {"fp8_row", 0.5, [](PipelineOptions &options) { options.precision = "fp8-row"; }, 90},
    {"fp8_block", 0.5, [](PipelineOptions &options) { options.precision = "fp8-block"; }, 90},
    {"mxfp8", 0.5, [](PipelineOptions &options) { options.precision = "mxfp8"; }, 100},
    {"fp8_accumulated", 0.5,
     [](PipelineOptions &options) {
       options.precision = "fp8-delayed", options.accumulate = 2, options.memoryBudget = "min";
     },
     89},
    {"budget", 1e-5,
     [](PipelineOptions &options) { options.memoryBudget = "min", options.clipNorm = 1, options.optimizer = "sgd"; }},
    {"offload", 1e-5,
     [](PipelineOptions &options) {
       options.memoryBudget = "min", options.offload = true, options.accumulate = 2, options.optimizer = "sgd";
     }},
};

class CudaPlan : public testing::TestWithParam<std::tuple<std::string, Recipe>> {
protected:
  void SetUp() override {
    auto [name, recipe] = GetParam();
    PipelineOptions options;
    recipe.set(options);
    model.make(name, options, /*bindsSizes=*/true);
  }
  std::unique_ptr<Plan> compile(const std::string &device) {
    CompileOptions options;
    options.device = device;
    options.emulates = device == "cuda";
    options.referenceOnly = device == "cpu";
    options.cudaArchitecture = std::get<1>(GetParam()).architecture;
    return model.compile(options);
  }
  std::vector<std::byte> batch(const Plan &plan, int index, int64_t step) {
    std::vector<std::byte> bytes(plan.buffers[static_cast<size_t>(index)].type.bytes());
    model.fill(plan, index, step, bytes.data());
    return bytes;
  }

  test::StepModel model;
};

bool isProduct(const Step &step) { return step.spec.op == "MatMul" || step.spec.op == "Gemm"; }

/// Steps of a plan and its bodies.
void forEachStep(const Plan &plan, const std::function<void(const Plan &, const Step &)> &visit) {
  for (const Step &step : plan.steps) {
    visit(plan, step);
    for (const Plan &body : step.bodies)
      forEachStep(body, visit);
  }
}

/// Products of a CPU plan both of whose operands were dequantised, and perhaps transposed since. `outer`: which inputs
/// of a body's step were.
size_t quantisedProducts(const Plan &plan, const std::vector<bool> &outer = {}) {
  size_t count = 0;
  std::set<int> dequantised; // Whole buffers, not views.
  auto isIn = [&](int buffer) {
    int root = plan.rootOf(buffer);
    const Buffer &b = plan.buffers[static_cast<size_t>(root)];
    return b.place == Place::Outer ? outer.at(b.offset) : dequantised.contains(root);
  };
  for (const Step &step : plan.steps) {
    bool isSource = step.spec.op == "DequantizeLinear" || step.spec.op == "dequantize_fp8";
    if (isSource || (step.spec.op == "Transpose" && isIn(step.inputs[0])))
      dequantised.insert(step.outputs[0]);
    else
      count += isProduct(step) && isIn(step.inputs[0]) && isIn(step.inputs[1]);
    std::vector<bool> inner;
    for (int input : step.inputs)
      inner.push_back(input >= 0 && isIn(input));
    for (const Plan &body : step.bodies)
      count += quantisedProducts(body, inner);
  }
  return count;
}

/// Outputs of one kind: ".exp_avg.next", say, after the parameter's name.
std::string kindOf(const std::string &name) {
  size_t last = name.rfind('.');
  size_t before = last == std::string::npos || last == 0 ? last : name.rfind('.', last - 1);
  return before == std::string::npos ? name : name.substr(before);
}

double squaresOf(const TensorRef &tensor) {
  double sum = 0;
  dispatchAny(tensor.dtype, [&]<typename T>() {
    for (int64_t i = 0; i < tensor.elems(); ++i)
      if (double value = static_cast<double>(tensor.as<T>()[i]); std::isfinite(value))
        sum += value * value;
  });
  return sum;
}

/// In norm. A gradient that is zero in exact arithmetic (a bias before a convolution and a batch normalisation) is the
/// rounding of those around it, and differs by as much as it is: `largest`, the sum of squares of the largest output of
/// its kind, gives the size, 2^-8 of it, below which a tensor may be such a one.
double relativeError(const TensorRef &got, const TensorRef &want, double largest) {
  double error = 0, size = 0;
  dispatchAny(got.dtype, [&]<typename T>() {
    for (int64_t i = 0; i < got.elems(); ++i) {
      double g = static_cast<double>(got.as<T>()[i]), w = static_cast<double>(want.as<T>()[i]);
      if (g == w || (g != g && w != w))
        continue;
      error += (g - w) * (g - w);
      size += w * w;
    }
  });
  return error == 0 ? 0 : std::sqrt(error / std::max({size, largest * 0x1p-16, 1e-12}));
}

TEST_P(CudaPlan, RunsAsOnTheCpu) {
  std::unique_ptr<Plan> plan = compile("cuda"), cpuPlan = compile("cpu");
  ASSERT_TRUE(plan && cpuPlan);
  for (const Step &step : plan->steps)
    EXPECT_TRUE(step.library == "cuda" || step.library == "cublaslt" || step.library == "cudnn" ||
                step.library == "generated" || !step.bodies.empty())
        << step.spec.op << " " << step.library;
  size_t float8Products = 0, dequantised = 0;
  forEachStep(*plan, [&](const Plan &, const Step &step) {
    if (step.spec.op.find("Conv") == 0 || step.spec.op.find("conv_grad") == 0) {
      EXPECT_EQ(step.library, "cudnn") << step.spec.name << ": all of these models pad both ends alike";
      EXPECT_EQ(step.spec.attrs.getInt(cuda::kTf32, 0), std::string_view(std::get<1>(GetParam()).name) == "tf32")
          << step.spec.name;
    }
    float8Products += step.spec.op == "fp8_product";
    dequantised += isProduct(step) && std::ranges::any_of(step.refusals, [](const std::string &refusal) {
                     return refusal.starts_with("fp8: ");
                   });
  });
  EXPECT_EQ(float8Products + dequantised, quantisedProducts(*cpuPlan)) << "a product that nobody has looked at";
  if (std::get<1>(GetParam()).architecture == 89) // One scale a tensor.
    EXPECT_EQ(dequantised, 0u);
  auto cpu = Executor::create(*cpuPlan, /*referenceOnly=*/true);
  ASSERT_TRUE(cpu) << cpu.message();
  // The emulation takes its time: only a small model shows that a second step, and one stream, work as well.
  bool isSmall = std::get<0>(GetParam()) == "mlp" || std::get<0>(GetParam()) == "nanogpt";
  int64_t steps = isSmall ? 2 : 1;
  for (int streams : isSmall ? std::vector{3, 1} : std::vector{3}) {
    CheckingDevice device(std::get<1>(GetParam()).architecture);
    DeviceOptions options{.streams = streams, .graph = streams > 1};
    options.onChoice = [](const std::string &step, const Result<std::string> &choice) {
      EXPECT_TRUE(choice) << step << ": " << (choice ? "" : choice.message());
    };
    auto executor = DeviceExecutor::create(*plan, device, options);
    ASSERT_TRUE(executor) << executor.message();
    for (int64_t step = 0; step < steps; ++step) {
      for (int index : plan->inputs) {
        Status status = (*executor)->write(index, batch(*plan, index, step).data());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      Status status = (*executor)->run();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    if (streams == 3)
      for (int64_t step = 0; step < steps; ++step) {
        for (int index : cpuPlan->inputs) {
          std::vector<std::byte> bytes = batch(*cpuPlan, index, step);
          std::memcpy((*cpu)->tensor(index).data, bytes.data(), bytes.size());
        }
        Status status = (*cpu)->run();
        ASSERT_TRUE(status.ok()) << status.message();
      }
    auto expected = [&](const Output &output) { return (*cpu)->tensor((*cpu)->find(output.name)); };
    std::map<std::string, double> largest;
    for (const Output &output : plan->outputs)
      largest[kindOf(output.name)] = std::max(largest[kindOf(output.name)], squaresOf(expected(output)));
    for (const Output &output : plan->outputs) {
      const TensorType &type = plan->buffers[static_cast<size_t>(output.buffer)].type;
      std::vector<std::byte> bytes(type.bytes());
      Status status = (*executor)->read(output.buffer, bytes.data());
      ASSERT_TRUE(status.ok()) << status.message();
      TensorRef got{type.dtype, type.dims, bytes.data()}, want = expected(output);
      ASSERT_EQ(got.bytes(), want.bytes());
      EXPECT_LE(relativeError(got, want, largest[kindOf(output.name)]), std::get<1>(GetParam()).tolerance)
          << output.name << ", streams " << streams;
    }
  }
}

/// What a device cannot multiply is dequantised, and the reason is in the plan.
TEST(Float8Plans, FollowTheArchitecture) {
  struct Case {
    const char *precision;
    int architecture;
    size_t products;
    const char *reason;
  };
  // 13 products with two gradients each, of which the first and the last stay in bf16 (docs/fp8.md).
  constexpr size_t kAll = 11 * 3;
  for (const Case &c : {Case{"fp8-delayed", 80, 0, "need sm_89"}, Case{"fp8-delayed", 89, kAll, ""},
                        Case{"fp8-delayed", 100, kAll, ""}, Case{"fp8-row", 89, 0, "one scale a row need sm_90"},
                        Case{"fp8-row", 90, kAll, ""}, Case{"fp8-row", 100, 0, "need sm_90"},
                        Case{"fp8-block", 90, kAll, ""}, Case{"mxfp8", 90, 0, "need sm_100 or later"},
                        // Attention's heads have 16 elements.
                        Case{"mxfp8", 100, kAll - 12, "no multiple of the 32 elements of a scale"}}) {
    SCOPED_TRACE(std::string(c.precision) + " sm_" + std::to_string(c.architecture));
    test::StepModel model;
    PipelineOptions options;
    options.precision = c.precision;
    model.make("gpt2_tiny", options, /*bindsSizes=*/true);
    CompileOptions compileOptions;
    compileOptions.device = "cuda";
    compileOptions.generateCode = false;
    compileOptions.cudaArchitecture = c.architecture;
    std::unique_ptr<Plan> plan = model.compile(compileOptions);
    ASSERT_TRUE(plan);
    size_t products = 0, refused = 0;
    forEachStep(*plan, [&](const Plan &, const Step &step) {
      products += step.spec.op == "fp8_product" && step.library == "cublaslt";
      for (const std::string &refusal : step.refusals)
        refused += isProduct(step) && refusal.starts_with("fp8: ") && refusal.find(c.reason) != std::string::npos;
    });
    EXPECT_EQ(products, c.products);
    EXPECT_EQ(refused, kAll - c.products);
  }
}

INSTANTIATE_TEST_SUITE_P(Torch, CudaPlan,
                         testing::Combine(testing::ValuesIn(modelNames()), testing::ValuesIn(kRecipes)),
                         [](const auto &info) { return std::get<0>(info.param) + "_" + std::get<1>(info.param).name; });

} // namespace
} // namespace recast::device
