// The CUDA device over functions that stand in for NVIDIA's: memory is the host's, kernels run by the emulation, and
// products are computed from cuBLASLt's column-major descriptors, so that the way there from row-major ones is tested.
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "runtime/kernels/cuda/emulation/EmulatedProgram.h"
#include "runtime/kernels/cuda/source/Copy.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include "runtime/kernels/cuda/table/Ptx.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/device/ConvolutionExamples.h"
#include "tests/unit/device/FakeCudnn.h"
#include "tests/unit/device/StandIns.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using namespace test;
using testing::HasSubstr;

class CudaDeviceTest : public testing::Test {
protected:
  void SetUp() override { fake = &state; }
  std::unique_ptr<CudaDevice> make() {
    CublasLtFunctions lt = fakeLt();
    NcclFunctions nccl = fakeNccl();
    CudnnFunctions dnn = test::fakeCudnn(cudnn);
    cudnn.perform = perform;
    auto device = CudaDevice::create(fakeDriver(), &lt, &dnn, &nccl, 0);
    EXPECT_TRUE(device) << device.message();
    return device ? std::move(*device) : nullptr;
  }
  Fake state;
  test::FakeCudnn cudnn;
};

/// y[4,5] = xᵀ[4,6] · w[6,5] + bias; z = transpose(y); p[2,3,5] = q[2,3,6] · w as a batch.
TEST_F(CudaDeviceTest, RunsAPlan) {
  for (bool graph : {false, true})
    for (int streams : {1, 3}) {
      state.captured.clear();
      std::unique_ptr<CudaDevice> device = make();
      ASSERT_TRUE(device);
      Plan plan;
      plan.device = "cuda";
      auto type = [](std::vector<int64_t> dims) { return TensorType{DType::F32, std::move(dims)}; };
      plan.buffers = {{"x", type({6, 4}), Place::Input, 0},   {"w", type({2, 6, 5}), Place::Input, 0},
                      {"b", type({5}), Place::Input, 0},      {"q", type({2, 3, 6}), Place::Input, 0},
                      {"v", type({6, 5}), Place::Input, 0},   {"y", type({4, 5}), Place::Arena, 0},
                      {"z", type({5, 4}), Place::Arena, 128}, {"p", type({2, 3, 5}), Place::Arena, 256}};
      plan.arenaBytes = 512;
      plan.inputs = {0, 1, 2, 3, 4};
      auto add = [&](const char *op, Attributes attrs, std::vector<int> inputs, int output) {
        Step step;
        step.spec = {op, "", op, 13, std::move(attrs), {}, {plan.buffers[static_cast<size_t>(output)].type}, {}};
        for (int i : inputs)
          step.spec.inputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
        step.spec.constants.resize(inputs.size());
        step.library = std::string_view(op) == "MatMul" || std::string_view(op) == "Gemm" ? "cublaslt" : "cuda";
        step.inputs = std::move(inputs), step.outputs = {output};
        plan.steps.push_back(std::move(step));
      };
      Attributes transA, tf32;
      transA.set("transA", int64_t(1));
      tf32.set(std::string(cuda::kTf32), int64_t(1));
      add("Gemm", transA, {0, 4, 2}, 5);
      add("Transpose", {}, {5}, 6);
      add("MatMul", tf32, {3, 1}, 7);
      plan.outputs = {{"z", 6, -1}, {"p", 7, -1}};
      auto executor = DeviceExecutor::create(plan, *device, {.streams = streams, .graph = graph});
      ASSERT_TRUE(executor) << executor.message();
      std::vector<std::vector<float>> inputs;
      for (int index : plan.inputs) {
        inputs.emplace_back(static_cast<size_t>(plan.buffers[static_cast<size_t>(index)].type.elems()));
        for (size_t i = 0; i < inputs.back().size(); ++i)
          inputs.back()[i] = static_cast<float>((i * 5 + static_cast<size_t>(index)) % 11) - 5;
        ASSERT_TRUE((*executor)->write(index, inputs.back().data()).ok());
      }
      for (int round = 0; round < 2; ++round) {
        Status status = (*executor)->run();
        ASSERT_TRUE(status.ok()) << status.message();
      }
      std::map<std::string, WorkEvent> observed;
      (*executor)->observer = [&](const WorkEvent &event) {
        EXPECT_LT(event.begin, event.end);
        EXPECT_EQ(event.step == nullptr, event.kernel == kFill);
        observed.insert_or_assign(event.step ? event.step->spec.op : "", event);
      };
      Status status = (*executor)->run();
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(observed.size(), 4u);
      EXPECT_EQ(observed.at("MatMul").flops, 2 * 2 * 3 * 5 * 6);
      EXPECT_EQ(observed.at("MatMul").bytes, 4 * (2 * 3 * 6 + 2 * 6 * 5 + 2 * 3 * 5));
      EXPECT_EQ(observed.at("Transpose").bytes, 4 * 2 * 20);
      EXPECT_EQ(observed.at("Transpose").flops, 0);
      std::vector<float> z(20), p(30);
      ASSERT_TRUE((*executor)->read(6, z.data()).ok());
      ASSERT_TRUE((*executor)->read(7, p.data()).ok());
      for (size_t i = 0; i < 4; ++i)
        for (size_t j = 0; j < 5; ++j) {
          float sum = inputs[2][j];
          for (size_t k = 0; k < 6; ++k)
            sum += inputs[0][k * 4 + i] * inputs[4][k * 5 + j];
          EXPECT_EQ(z[j * 4 + i], sum);
        }
      for (size_t n = 0; n < 2; ++n)
        for (size_t i = 0; i < 3; ++i)
          for (size_t j = 0; j < 5; ++j) {
            float sum = 0;
            for (size_t k = 0; k < 6; ++k)
              sum += inputs[3][(n * 3 + i) * 6 + k] * inputs[1][(n * 6 + k) * 5 + j];
            EXPECT_EQ(p[(n * 3 + i) * 5 + j], sum);
          }
      EXPECT_THAT(state.launched, testing::Contains("copy_transposed_4"));
      EXPECT_THAT(state.computeTypes, testing::ElementsAre(68, 77)) << "CUBLAS_COMPUTE_32F and ..._FAST_TF32";
    }
  EXPECT_TRUE(state.memory.empty() && state.hostMemory.empty() && state.graphs.empty()) << "what is not given back";
}

/// Generated kernels have a parameter an operand, those written by hand one struct: all are launched as their PTX
/// declares them, and give what the checking device gives.
TEST_F(CudaDeviceTest, LaunchesGeneratedKernels) {
  recast::test::StepModel model;
  PipelineOptions options;
  options.clipNorm = 1;
  model.make("mlp", options, /*bindsSizes=*/true);
  CompileOptions compileOptions;
  compileOptions.device = "cuda";
  compileOptions.emulates = true; // The plan has both, PTX and host code.
  std::unique_ptr<Plan> plan = model.compile(compileOptions);
  ASSERT_TRUE(plan);
  for (const CodeObject &object : plan->code) {
    if (object.kind != CodeObject::SharedObject)
      continue;
    auto opened = cuda::emulation::GeneratedKernels::open(object.bytes);
    ASSERT_TRUE(opened) << opened.message();
    state.generated.push_back(std::move(*opened));
  }
  CheckingDevice checking;
  std::unique_ptr<CudaDevice> device = make();
  std::map<std::string, std::vector<std::byte>> wanted;
  for (Device *on : {static_cast<Device *>(&checking), static_cast<Device *>(device.get())}) {
    auto executor = DeviceExecutor::create(*plan, *on, {});
    ASSERT_TRUE(executor) << executor.message();
    for (int64_t step = 0; step < 3; ++step) {
      for (int index : plan->inputs) {
        std::vector<std::byte> bytes(plan->buffers[static_cast<size_t>(index)].type.bytes());
        model.fill(*plan, index, step, bytes.data());
        ASSERT_TRUE((*executor)->write(index, bytes.data()).ok());
      }
      Status status = (*executor)->run();
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (const Output &output : plan->outputs) {
      std::vector<std::byte> bytes(plan->buffers[static_cast<size_t>(output.buffer)].type.bytes());
      ASSERT_TRUE((*executor)->read(output.buffer, bytes.data()).ok());
      if (on == &checking)
        wanted[output.name] = bytes;
      else
        EXPECT_EQ(bytes, wanted[output.name]) << output.name;
    }
  }
  size_t most = 0;
  for (const FakeFunction &function : state.functions)
    most = std::max(most, function.params);
  EXPECT_GT(most, 2u) << "no generated kernel was launched";
}

/// Row-major operands of 8 bits and their scales, as column-major ones.
TEST_F(CudaDeviceTest, RunsProductsOf8Bits) {
  for (cuda::ScaleMode mode : {cuda::ScaleMode::Scalar, cuda::ScaleMode::OuterVector}) {
    std::unique_ptr<CudaDevice> device = make();
    ASSERT_TRUE(device);
    constexpr int64_t m = 32, n = 16, k = 48;
    std::vector<Float8E4M3FN> a;
    std::vector<Float8E5M2> b;
    std::vector<float> scaleA, scaleB, d(m * n);
    for (int64_t i = 0; i < m * k; ++i)
      a.push_back(Float8E4M3FN::round(static_cast<float>(i % 13) - 6, true));
    for (int64_t i = 0; i < n * k; ++i)
      b.push_back(Float8E5M2::round(static_cast<float>(i % 5) - 2, true));
    for (int64_t i = 0; i < m; ++i)
      scaleA.push_back(static_cast<float>(1 << i % 3));
    for (int64_t i = 0; i < n; ++i)
      scaleB.push_back(static_cast<float>(1 << i % 4) / 4);
    cuda::MatmulArgs args{};
    args.m = m, args.n = n, args.k = k, args.batch = 1, args.alpha = 1;
    args.pitchA = args.pitchB = k, args.pitchD = n, args.transB = true;
    args.typeA = DType::F8E4M3FN, args.typeB = DType::F8E5M2, args.typeD = DType::F32;
    args.scaleModeA = args.scaleModeB = mode;
    std::vector<std::byte *> memory;
    for (auto [data, bytes] : {std::pair<const void *, size_t>{a.data(), a.size()},
                               {b.data(), b.size()},
                               {scaleA.data(), scaleA.size() * 4},
                               {scaleB.data(), scaleB.size() * 4},
                               {d.data(), d.size() * 4}}) {
      auto place = device->allocate(bytes, "an operand");
      ASSERT_TRUE(place);
      memory.push_back(*place);
      ASSERT_TRUE(device->copyIn({"an operand", *place, bytes}, data, 0).ok());
    }
    args.a = memory[0], args.b = memory[1], args.scaleA = memory[2], args.scaleB = memory[3], args.d = memory[4];
    std::vector<std::byte> bytes(sizeof(args));
    std::memcpy(bytes.data(), &args, sizeof(args));
    Status status = device->launch({"node 'x' (fp8_product)", std::string(cuda::kMatmul), 1, 1, bytes, {}}, 0);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(device->copyOut(d.data(), {"d", memory[4], d.size() * 4}, 0).ok());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {
        float sum = 0;
        for (int64_t l = 0; l < k; ++l)
          sum += static_cast<float>(a[static_cast<size_t>(i * k + l)]) *
                 static_cast<float>(b[static_cast<size_t>(j * k + l)]);
        bool isVector = mode == cuda::ScaleMode::OuterVector;
        EXPECT_EQ(d[static_cast<size_t>(i * n + j)],
                  sum * scaleA[isVector ? static_cast<size_t>(i) : 0] * scaleB[isVector ? static_cast<size_t>(j) : 0]);
      }
  }
  state.major = 8;
  std::unique_ptr<CudaDevice> old = make();
  cuda::MatmulArgs args{};
  args.m = args.n = args.k = args.pitchA = args.pitchB = args.pitchD = 16, args.batch = 1, args.transB = true;
  args.typeA = args.typeB = DType::F8E4M3FN, args.typeD = DType::F32;
  std::vector<std::byte> bytes(sizeof(args));
  std::memcpy(bytes.data(), &args, sizeof(args));
  Status status = old->launch({"node 'x' (fp8_product)", std::string(cuda::kMatmul), 1, 1, bytes, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (fp8_product): 8-bit products need sm_89 or later; this is Stand-in (sm_80)");
  state.major = 9, state.hasNoAlgorithm = true;
  args.scaleA = args.scaleB = &args; // Nobody reads them.
  std::memcpy(bytes.data(), &args, sizeof(args));
  std::unique_ptr<CudaDevice> device = make();
  status = device->launch({"node 'x' (fp8_product)", std::string(cuda::kMatmul), 1, 1, bytes, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (fp8_product): cuBLASLt has no algorithm for the product of 8-bit floats; a "
                              "plan for --cuda-arch=sm_80 does without");
}

/// By cuDNN, and by the plain kernel where that does not start.
TEST_F(CudaDeviceTest, RunsConvolutions) {
  for (bool isBroken : {false, true})
    for (DType type : {DType::F32, DType::BF16})
      for (const test::ConvolutionExample &example : test::convolutionExamples(type)) {
        SCOPED_TRACE(example.op.name + " " + toString(example.inputs[0].type));
        state.captured.clear(), state.launched.clear();
        cudnn.isBroken = isBroken, cudnn.algorithms.clear();
        std::unique_ptr<CudaDevice> device = make();
        Plan plan = example.plan();
        DeviceOptions options;
        std::string choice;
        options.onChoice = [&](const std::string &, const Result<std::string> &made) {
          choice = made ? *made : made.message();
        };
        auto executor = DeviceExecutor::create(plan, *device, options);
        ASSERT_TRUE(executor) << executor.message();
        EXPECT_THAT(choice, HasSubstr(isBroken ? "cudnnCreate: not initialised" : "cuDNN's "));
        test::Array got;
        Status status = example.run(**executor, got);
        ASSERT_TRUE(status.ok()) << status.message();
        test::expectConvolution(example, got);
        EXPECT_EQ(cudnn.algorithms.size(), isBroken ? 0u : 2u) << "it is tried before it runs";
        EXPECT_EQ(state.launched.size(), isBroken || example.inputs.size() > 2 ? 1u : 0u);
      }
}

/// sum[3,5] and bf16[4] are summed, largest[2] is the maximum; the rank is this one's.
struct RanksPlan {
  Plan plan;
  std::vector<std::vector<float>> values = {std::vector<float>(15), {0.5f, -1, 2, 4}, {3, -7}};

  RanksPlan() {
    for (size_t i = 0; i < values[0].size(); ++i)
      values[0][i] = static_cast<float>(i) - 4;
    plan.device = "cuda";
    std::vector<TensorType> types = {{DType::F32, {3, 5}}, {DType::BF16, {4}}, {DType::F32, {2}}};
    Step step;
    step.spec = {"reduce", "recast", "all_reduce", 1, {}, types, types, {}};
    step.spec.attrs.set("maxima", int64_t(2));
    step.spec.constants.resize(3);
    step.library = "cuda";
    for (int i = 0; i < 3; ++i) {
      plan.buffers.push_back({"x" + std::to_string(i), types[static_cast<size_t>(i)], Place::Input, 0});
      plan.inputs.push_back(i);
    }
    for (int i = 0; i < 3; ++i) {
      plan.buffers.push_back({"y" + std::to_string(i), types[static_cast<size_t>(i)], Place::Arena, size_t(i) * 64});
      step.inputs.push_back(i);
      step.outputs.push_back(3 + i);
      plan.outputs.push_back({"y" + std::to_string(i), 3 + i, -1});
    }
    plan.buffers.push_back({"rank", {DType::I64, {}}, Place::Arena, 192});
    plan.outputs.push_back({"rank", 6, -1});
    plan.arenaBytes = 256;
    plan.steps.push_back(std::move(step));
    Step rank;
    rank.spec = {"rank", "recast", "rank", 1, {}, {}, {{DType::I64, {}}}, {}};
    rank.library = "cuda";
    rank.outputs = {6};
    plan.steps.push_back(std::move(rank));
  }
  Status write(DeviceExecutor &executor) const {
    std::vector<BFloat16> low;
    for (float value : values[1])
      low.push_back(BFloat16(value));
    for (auto [buffer, data] :
         {std::pair<int, const void *>{0, values[0].data()}, {1, low.data()}, {2, values[2].data()}})
      if (Status status = executor.write(buffer, data); !status.ok())
        return status;
    return Status::success();
  }
};

TEST_F(CudaDeviceTest, RanksReduceInBuckets) {
  for (size_t bucketBytes : {kBucketBytes, size_t(28)})
    for (bool isChecking : {false, true}) {
      state.captured.clear();
      state.isDestroyed = false;
      RanksPlan example;
      OtherRank ranks;
      std::unique_ptr<Device> device = make();
      if (isChecking) // Its sums go through `ranks`, which doubles them, too.
        device = std::make_unique<CheckingDevice>();
      auto executor =
          DeviceExecutor::create(example.plan, *device, {.streams = 2, .ranks = &ranks, .bucketBytes = bucketBytes});
      ASSERT_TRUE(executor) << executor.message();
      for (int round = 1; round <= 2; ++round) {
        ASSERT_TRUE(example.write(**executor).ok());
        Status status = (*executor)->run();
        ASSERT_TRUE(status.ok()) << status.message();
        // 19 elements of sums, 2 places of 2 maxima: 23 floats, or 7 + 7 + 5 and 4.
        EXPECT_EQ(ranks.traffic.reductions, round);
        EXPECT_EQ(ranks.traffic.buckets, round * (bucketBytes == 28 ? 4 : 1));
        EXPECT_EQ(ranks.traffic.bytes, round * 23 * 4);
      }
      std::vector<float> sums(15), largest(2);
      std::vector<BFloat16> low(4);
      int64_t rank = -1;
      ASSERT_TRUE((*executor)->read(3, sums.data()).ok());
      ASSERT_TRUE((*executor)->read(4, low.data()).ok());
      ASSERT_TRUE((*executor)->read(5, largest.data()).ok());
      ASSERT_TRUE((*executor)->read(6, &rank).ok());
      for (size_t i = 0; i < sums.size(); ++i)
        EXPECT_EQ(sums[i], 2 * example.values[0][i]);
      for (size_t i = 0; i < low.size(); ++i)
        EXPECT_EQ(static_cast<float>(low[i]), 2 * example.values[1][i]);
      // The other's place holds nothing but what doubling makes of 0: 0 is larger than -7.
      EXPECT_EQ(largest, (std::vector<float>{6, 0}));
      EXPECT_EQ(rank, 0);
      executor->reset();
      device.reset();
      EXPECT_EQ(state.isDestroyed, !isChecking);
      EXPECT_FALSE(state.isAborted);
    }
}

/// A rank that is gone ends the others, although their devices wait for it.
TEST_F(CudaDeviceTest, LostRanksEndTheRun) {
  RanksPlan example;
  OtherRank ranks(3); // The id comes through, and two steps, then nothing.
  std::unique_ptr<CudaDevice> device = make();
  auto executor = DeviceExecutor::create(example.plan, *device, {.ranks = &ranks});
  ASSERT_TRUE(executor) << executor.message();
  ASSERT_TRUE(example.write(**executor).ok());
  for (int step = 0; step < 2; ++step)
    ASSERT_TRUE((*executor)->run().ok());
  EXPECT_FALSE(state.graphs.empty());
  state.isBusy = true;
  EXPECT_EQ((*executor)->run().message(), "a rank is lost");
  EXPECT_TRUE(state.isAborted && state.graphs.empty());

  OtherRank others;
  std::unique_ptr<CudaDevice> second = make();
  auto again = DeviceExecutor::create(example.plan, *second, {.graph = false, .ranks = &others});
  ASSERT_TRUE(again) << again.message();
  state.isBusy = true, state.asyncError = 6;
  EXPECT_EQ((*again)->run().message(), "ncclAllReduce: remote error");

  OtherRank gone(0);
  EXPECT_EQ(DeviceExecutor::create(example.plan, *make(), {.ranks = &gone}).message(), "a rank is lost");
}

TEST_F(CudaDeviceTest, SaysWhatIsWrong) {
  state.devices = 0;
  auto none = CudaDevice::create(fakeDriver(), nullptr, nullptr, nullptr, 0);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.message(), HasSubstr("this machine has 0 CUDA devices"));
  state.devices = 1, state.major = 7;
  auto old = CudaDevice::create(fakeDriver(), nullptr, nullptr, nullptr, 0);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.message(), "Stand-in (sm_70) is too old: sm_80 or later is needed");
  state.major = 9;
  std::unique_ptr<CudaDevice> device = make();
  EXPECT_EQ(device->name(), "Stand-in (sm_90)");
  auto tooMuch = device->allocate(size_t(1) << 40, "the arena");
  ASSERT_FALSE(tooMuch);
  EXPECT_EQ(tooMuch.message(), "cuMemAlloc of 1099511627776 bytes for the arena: out of memory");
  Status status = device->launch({"node 'x' (Nothing)", "nothing", 1, 32, {}, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (Nothing): there is no kernel nothing");
  status = device->launch({"node 'x' (Fill)", "fill_zero", int64_t(1) << 32, 32, {}, {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (Fill): a grid of 4294967296 blocks");
  EXPECT_TRUE(state.ptx.empty()) << "modules that nothing is launched of";
  state.isPtxForeign = true;
  status = device->launch({"node 'x' (Fill)", "fill_zero", 1, 32, bytesOf(cuda::FillArgs{}), {}}, 0);
  EXPECT_EQ(status.message(), "node 'x' (Fill): cuModuleLoadDataEx of kernels of Copy: wrong: ptxas fatal");
}

/// Every kernel that programs may launch is in the PTX, and in the emulation, with the same arguments.
TEST_F(CudaDeviceTest, PtxHoldsEveryKernel) {
  std::string ptx;
  for (const cuda::PtxModule &module : cuda::ptxModules())
    ptx += module.text;
  EXPECT_GT(cuda::emulation::kernels().size(), 100u);
  for (const cuda::emulation::Kernel &kernel : cuda::emulation::kernels()) {
    size_t entry = ptx.find(".entry " + std::string(kernel.name) + "(");
    ASSERT_NE(entry, std::string::npos) << kernel.name;
    EXPECT_EQ(functionOf(ptx, std::string(kernel.name), entry).argBytes, kernel.argBytes)
        << kernel.name << ": the struct of arguments is another one on the device";
  }
}

} // namespace
} // namespace recast::device
