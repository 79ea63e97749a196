// Calls of cuDNN over functions that stand in for it.
#include "runtime/device/cuda/Cudnn.h"
#include "tests/unit/device/ConvolutionExamples.h"
#include "tests/unit/device/FakeCudnn.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using cuda::ConvolutionCall;
using cuda::ConvolutionResult;
using test::ConvolutionExample;
using testing::ElementsAre;
using testing::HasSubstr;

/// The call of a step without its addresses.
ConvolutionCall callOf(const ConvolutionExample &example, bool tf32 = false) {
  StepSpec spec = example.spec();
  if (tf32)
    spec.attrs.set(std::string(cuda::kTf32), int64_t(1));
  cuda::Program program;
  std::string refusal;
  EXPECT_TRUE(cuda::compile(spec, program, refusal)) << refusal;
  ConvolutionCall call;
  EXPECT_EQ(program.launches[0].args.size(), sizeof(call));
  std::memcpy(&call, program.launches[0].args.data(), sizeof(call));
  return call;
}

class CudnnTest : public testing::Test {
protected:
  void SetUp() override {
    auto made = Cudnn::create(test::fakeCudnn(fake));
    ASSERT_TRUE(made) << made.message();
    dnn = std::move(*made);
  }
  test::FakeCudnn fake;
  std::unique_ptr<Cudnn> dnn;
};

TEST_F(CudnnTest, DescriptorsAreThoseOfTheStep) {
  for (DType type : {DType::F32, DType::F16, DType::BF16})
    for (const ConvolutionExample &example : test::convolutionExamples(type)) {
      if (example.inputs.size() > 2) // The bias is a kernel of its own.
        continue;
      SCOPED_TRACE(example.op.name + " " + toString(example.inputs[0].type) + " " + toString(example.inputs[1].type));
      ConvolutionCall call = callOf(example);
      test::Array result(example.output.dtype, example.output.dims);
      std::vector<std::byte> workspace(call.workspaceBytes);
      call.a = example.inputs[0].bytes.data(), call.b = example.inputs[1].bytes.data();
      call.result = result.bytes.data(), call.workspace = workspace.data();
      auto choice = dnn->prepare(call);
      ASSERT_TRUE(choice) << choice.message();
      Status status = dnn->convolve(call, "node 'step'", nullptr);
      ASSERT_TRUE(status.ok()) << status.message();
      test::expectConvolution(example, result);
    }
}

/// Of the suggestions the first that is deterministic, no transform, and fits; chosen once.
TEST_F(CudnnTest, AlgorithmsAreDeterministicAndFit) {
  std::vector<ConvolutionExample> examples = test::convolutionExamples(DType::F32);
  ConvolutionCall forward = callOf(examples[0]), input = callOf(examples[2]), weight = callOf(examples[3]);
  EXPECT_EQ(*dnn->prepare(forward), "cuDNN's IMPLICIT_PRECOMP_GEMM with 512 of 1048576 bytes of workspace");
  EXPECT_EQ(*dnn->prepare(input), "cuDNN's BWD_DATA_ALGO_1 with 256 of 1048576 bytes of workspace");
  EXPECT_EQ(*dnn->prepare(weight), "cuDNN's BWD_FILTER_ALGO_1 with 1024 of 1048576 bytes of workspace");
  EXPECT_EQ(fake.choices, 3);
  EXPECT_TRUE(dnn->prepare(forward));
  EXPECT_EQ(fake.choices, 3);
  forward.workspaceBytes = input.workspaceBytes = weight.workspaceBytes = 255;
  EXPECT_EQ(*dnn->prepare(forward), "cuDNN's IMPLICIT_GEMM with 0 of 255 bytes of workspace");
  EXPECT_EQ(dnn->prepare(input).message(), "cuDNN has no deterministic algorithm for it within 255 bytes of workspace");
  EXPECT_THAT(dnn->convolve(weight, "node 'w'", nullptr).message(), HasSubstr("node 'w': its convolution was not"));
  weight.workspaceBytes = 1024;
  for (ConvolutionAlgorithm &suggestion : fake.suggestions[2])
    suggestion.determinism = 0;
  EXPECT_THAT(dnn->prepare(weight).message(), HasSubstr("no deterministic algorithm"));
}

TEST_F(CudnnTest, SuggestionsAreTried) {
  ConvolutionExample example = test::convolutionExamples(DType::F32)[0];
  ConvolutionCall call = callOf(example);
  test::Array result(DType::F32, example.output.dims);
  std::vector<std::byte> workspace(call.workspaceBytes);
  call.a = example.inputs[0].bytes.data(), call.b = example.inputs[1].bytes.data();
  call.result = result.bytes.data(), call.workspace = workspace.data();
  fake.refused = {1};
  EXPECT_THAT(*dnn->prepare(call), HasSubstr("cuDNN's IMPLICIT_GEMM"));
  ++call.workspaceBytes; // Another call.
  fake.refused = {0, 1, 2};
  EXPECT_THAT(dnn->prepare(call).message(), HasSubstr("no deterministic algorithm"));
}

/// f32 is multiplied as f32 unless the plan says tf32, whatever the library suggests.
TEST_F(CudnnTest, MathFollowsThePlan) {
  constexpr int kTensorOps = 1, kFma = 3;
  std::vector<int> wanted;
  std::vector<std::byte> workspace(size_t(4) << 20);
  for (auto [type, tf32, math] : {std::tuple{DType::F32, false, kFma},
                                  {DType::F32, true, kTensorOps},
                                  {DType::F16, false, kTensorOps},
                                  {DType::BF16, false, kTensorOps}}) {
    ConvolutionExample example = test::convolutionExamples(type)[0];
    ConvolutionCall call = callOf(example, tf32);
    EXPECT_EQ(call.tf32, tf32);
    test::Array result(type, example.output.dims);
    call.a = example.inputs[0].bytes.data(), call.b = example.inputs[1].bytes.data();
    call.result = result.bytes.data(), call.workspace = workspace.data();
    ASSERT_TRUE(dnn->prepare(call));
    ASSERT_TRUE(dnn->convolve(call, "node 'step'", nullptr).ok());
    wanted.insert(wanted.end(), 2, math); // It was tried, and ran.
  }
  EXPECT_EQ(fake.maths, wanted);
}

/// Work goes to the stream of the call.
TEST_F(CudnnTest, StreamsAreThoseOfTheCall) {
  ConvolutionExample example = test::convolutionExamples(DType::F32)[0];
  ConvolutionCall call = callOf(example);
  ASSERT_TRUE(dnn->prepare(call));
  std::vector<uintptr_t> streams;
  fake.perform = [&](CudaHandle stream, const std::function<void()> &) {
    return streams.push_back(reinterpret_cast<uintptr_t>(stream)), 0;
  };
  std::vector<std::byte> workspace(call.workspaceBytes);
  call.workspace = workspace.data();
  for (uintptr_t stream : {16, 32})
    ASSERT_TRUE(dnn->convolve(call, "node 'step'", reinterpret_cast<CudaHandle>(stream)).ok());
  EXPECT_THAT(streams, ElementsAre(16, 32));
}

TEST_F(CudnnTest, ErrorsNameTheCall) {
  fake.isBroken = true;
  EXPECT_EQ(Cudnn::create(test::fakeCudnn(fake)).message(), "cudnnCreate: not initialised");
  ConvolutionExample example = test::convolutionExamples(DType::F32)[0];
  ConvolutionCall call = callOf(example);
  ASSERT_TRUE(dnn->prepare(call));
  std::vector<std::byte> workspace(call.workspaceBytes);
  call.workspace = workspace.data();
  fake.perform = [](CudaHandle, const std::function<void()> &) { return 3000; };
  EXPECT_EQ(dnn->convolve(call, "node 'step' (Conv)", nullptr).message(),
            "node 'step' (Conv): cuDNN's convolution: not supported");
}

} // namespace
} // namespace recast::device
