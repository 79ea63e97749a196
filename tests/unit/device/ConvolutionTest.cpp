// Convolutions of CUDA plans on the checking device: by cuDNN's stand-in and by plain kernels, against the reference
// evaluator; what cuDNN cannot do; and faults, each of which the device has to name.
#include "runtime/device/Checking.h"
#include "tests/unit/device/ConvolutionExamples.h"
#include "tests/unit/device/DeviceTest.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using cuda::ConvolutionCall;
using test::attributes;
using test::ConvolutionExample;
using test::Dims;
using testing::AllOf;
using testing::HasSubstr;

constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16};

void changeCall(DeviceExecutor &executor, const std::function<void(ConvolutionCall &)> &change) {
  std::vector<std::byte> &bytes = test::find(executor, cuda::kConvolution).work.args;
  ConvolutionCall call;
  std::memcpy(&call, bytes.data(), sizeof(call));
  change(call);
  std::memcpy(bytes.data(), &call, sizeof(call));
}

ConvolutionExample example(Attributes attrs, Dims x, Dims w, Dims y, DType type = DType::F32) {
  return {{"Conv", 11, std::move(attrs)}, {test::quarters(type, x, 1), test::quarters(type, w, 2)}, {type, y}};
}
ConvolutionExample plainExample() { return example({}, {1, 2, 6, 6}, {4, 2, 3, 3}, {1, 4, 4, 4}); }

TEST(Convolution, EqualsTheReference) {
  for (DType type : kTypes)
    for (const ConvolutionExample &example : test::convolutionExamples(type))
      for (bool lacksCudnn : {false, true}) {
        SCOPED_TRACE(example.op.name + " " + toString(example.inputs[0].type) + " " + toString(example.inputs[1].type) +
                     (lacksCudnn ? ", plain" : ""));
        Plan plan = example.plan();
        EXPECT_EQ(plan.steps[0].library, "cudnn");
        CheckingDevice device;
        device.lacksCudnn = lacksCudnn;
        std::vector<std::string> choices;
        DeviceOptions options{.streams = 2};
        options.onChoice = [&](const std::string &step, const Result<std::string> &choice) {
          choices.push_back(step + ": " + (choice ? *choice : choice.message()));
        };
        auto executor = DeviceExecutor::create(plan, device, options);
        ASSERT_TRUE(executor) << executor.message();
        EXPECT_THAT(choices, testing::ElementsAre("node 'step' (" + example.op.name +
                                                  "): " + (lacksCudnn ? "cuDNN is missing" : "cuDNN's stand-in")));
        auto calls = std::ranges::count_if(
            (*executor)->scheduled, [](const Scheduled &item) { return item.work.kernel == cuda::kConvolution; });
        EXPECT_EQ(calls, lacksCudnn ? 0 : 1);
        test::Array got;
        Status status = example.run(**executor, got);
        ASSERT_TRUE(status.ok()) << status.message();
        test::expectConvolution(example, got);
      }
}

/// cuDNN pads both ends alike.
TEST(Convolution, AsymmetricPaddingIsPlain) {
  for (auto [attrs, y] :
       {std::pair<Attributes, Dims>{attributes({{"pads", Dims{0, 1, 1, 1}}}), {1, 4, 5, 6}},
        {attributes({{"auto_pad", "SAME_UPPER"}, {"dilations", Dims{1, 1}}, {"kernel_shape", Dims{2, 2}}}),
         {1, 4, 6, 6}}}) {
    bool isSame = y[2] == 6;
    ConvolutionExample e = example(attrs, {1, 2, 6, 6}, isSame ? Dims{4, 2, 2, 2} : Dims{4, 2, 3, 3}, y);
    Plan plan = e.plan();
    EXPECT_EQ(plan.steps[0].library, "cuda");
    cuda::Program program;
    std::string refusal;
    ASSERT_TRUE(cuda::compile(e.spec(), program, refusal));
    EXPECT_THAT(program.refusals, testing::ElementsAre(AllOf(HasSubstr("cudnn: "), HasSubstr("padded by 0"))));
    CheckingDevice device;
    auto executor = DeviceExecutor::create(plan, device, {});
    ASSERT_TRUE(executor) << executor.message();
    test::Array got;
    ASSERT_TRUE(e.run(**executor, got).ok());
    test::expectConvolution(e, got);
  }
}

TEST(Convolution, MisalignedTensorsArePlain) {
  ConvolutionExample e = plainExample();
  Plan plan = e.plan();
  plan.buffers.back().offset = 4;
  plan.steps[0].workspaceOffset += 64;
  plan.arenaBytes += 64;
  CheckingDevice device;
  std::string why;
  DeviceOptions options;
  options.onChoice = [&](const std::string &, const Result<std::string> &choice) {
    why = choice ? *choice : choice.message();
  };
  auto executor = DeviceExecutor::create(plan, device, options);
  ASSERT_TRUE(executor) << executor.message();
  EXPECT_EQ(why, "an operand is not aligned to 16 bytes");
  test::Array got;
  ASSERT_TRUE(e.run(**executor, got).ok());
  test::expectConvolution(e, got);
}

TEST(Convolution, FaultsAreNamed) {
  using Change = std::function<void(ConvolutionCall &)>;
  for (auto [change, says] : std::vector<std::pair<Change, const char *>>{
           {[](ConvolutionCall &) {}, ""},
           {[](ConvolutionCall &c) { c.workspaceBytes += 64; },
            "its workspace of 1048640 bytes goes beyond its buffer"},
           {[](ConvolutionCall &c) { c.workspace = static_cast<std::byte *>(c.workspace) + 8; },
            "the workspace is not aligned to 16 bytes"},
           {[](ConvolutionCall &c) { c.window.out[2] = 5; }, "have 4 outputs, and not 5"},
           {[](ConvolutionCall &c) { c.window.stride[1] = 2; }, "have 2 outputs, and not 4"},
           {[](ConvolutionCall &c) { c.window.dilation[1] = 0; }, "a stride or dilation is less than 1"},
           {[](ConvolutionCall &c) { c.window.padBegin[1] = -1; }, "padding is less than 0"},
           {[](ConvolutionCall &c) { c.n = 2; }, "its first operand of 576 bytes goes beyond its buffer"},
           {[](ConvolutionCall &c) { c.m = 8; }, "its second operand of 576 bytes goes beyond its buffer"},
           {[](ConvolutionCall &c) {
              c.window.in[2] = c.window.out[2] = 1, c.window.kernel[2] = 1;
              c.window.in[1] = 40;
              c.window.out[1] = 38;
            },
            "its first operand of 320 bytes goes beyond its buffer"},
           {[](ConvolutionCall &c) { c.group = 3; }, "3 groups do not divide 2 and 4 channels"},
           {[](ConvolutionCall &c) { c.c = 0; }, "a dimension is less than 1"},
           {[](ConvolutionCall &c) { c.n = int64_t(1) << 40; }, "more than 2^31 - 1 elements"},
           {[](ConvolutionCall &c) { c.type = DType::F64; }, "tensors of f64"},
           {[](ConvolutionCall &c) { c.type = DType::F16, c.tf32 = true; }, "tf32 products of f16"},
           {[](ConvolutionCall &c) { c.b = static_cast<const std::byte *>(c.b) + 4; }, "not aligned to 16 bytes"}}) {
    ConvolutionExample e = plainExample();
    Plan plan = e.plan();
    CheckingDevice device;
    auto executor = DeviceExecutor::create(plan, device, {});
    ASSERT_TRUE(executor) << executor.message();
    changeCall(**executor, change);
    test::Array got;
    Status status = e.run(**executor, got);
    if (std::string_view(says).empty())
      EXPECT_TRUE(status.ok()) << status.message();
    else if (status.ok())
      ADD_FAILURE() << "not found: " << says;
    else
      EXPECT_THAT(status.message(), AllOf(HasSubstr("node 'step' (Conv)"), HasSubstr(says)));
  }
}

/// A plan whose step has less workspace than the call is told of was made by another program.
TEST(Convolution, APlanWithoutWorkspaceIsRefused) {
  ConvolutionExample e = plainExample();
  Plan plan = e.plan();
  plan.steps[0].workspaceBytes -= 1;
  CheckingDevice device;
  auto executor = DeviceExecutor::create(plan, device, {});
  ASSERT_FALSE(executor);
  EXPECT_THAT(executor.message(), HasSubstr("the plan has too little workspace for node 'step' (Conv)"));
}

/// 1 MiB, 32 MiB from 2^24 products on; tensor cores have a copy of all tensors with channels a multiple of 8.
TEST(Convolution, WorkspaceFollowsFromTheShapes) {
  auto workspace = [](const ConvolutionExample &e, bool isTf32 = false) {
    StepSpec spec = e.spec();
    if (isTf32)
      spec.attrs.set(std::string(cuda::kTf32), int64_t(1));
    cuda::Program program;
    std::string refusal;
    EXPECT_TRUE(cuda::compile(spec, program, refusal)) << refusal;
    return program.workspaceBytes;
  };
  constexpr size_t kMiB = size_t(1) << 20;
  Dims x = {1, 2, 6, 6}, w = {4, 2, 3, 3}, y = {1, 4, 4, 4};
  constexpr size_t kCopies = 8 * 36 + 4 * 8 * 9 + 8 * 16;
  EXPECT_EQ(workspace(example({}, x, w, y)), kMiB);
  EXPECT_EQ(workspace(example({}, x, w, y), /*isTf32=*/true), kMiB + kCopies * 4);
  EXPECT_EQ(workspace(example({}, x, w, y, DType::BF16)), kMiB + kCopies * 2);
  EXPECT_EQ(workspace(example({}, {1, 64, 66, 66}, {64, 64, 3, 3}, {1, 64, 64, 64})), 32 * kMiB);
}

} // namespace
} // namespace recast::device
