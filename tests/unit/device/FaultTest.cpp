// Faults that are put into a plan or into what runs it, each of which the checking device has to name.
#include "runtime/device/Checking.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "tests/unit/device/DeviceTest.h"
#include <gmock/gmock.h>

namespace recast::device {
namespace {

using test::changeMatmul;
using test::find;
using testing::AllOf;
using testing::HasSubstr;

/// x[16,16] -> left = transpose(x), right = pad(x); y = left · right; z = concat(left, right, y).
struct Example {
  Plan plan;
  std::vector<float> x;

  Example() : x(256) {
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(i % 7) - 3;
    plan.device = "cuda";
    TensorType square{DType::F32, {16, 16}};
    plan.buffers = {{"x", square, Place::Input, 0},
                    {"left", square, Place::Arena, 0},
                    {"right", square, Place::Arena, 1024},
                    {"y", square, Place::Arena, 2048},
                    {"z", {DType::F32, {48, 16}}, Place::Arena, 3072}};
    plan.inputs = {0};
    plan.arenaBytes = 3072 + 3072;
    Attributes none, axis;
    axis.set("axis", int64_t(0));
    add("turn", "Transpose", none, {0}, {1});
    add("same", "Identity", none, {0}, {2});
    add("product", "MatMul", none, {1, 2}, {3});
    add("join", "Concat", axis, {1, 2, 3}, {4});
    plan.outputs = {{"z", 4, -1}};
  }

  void add(const char *name, const char *op, const Attributes &attrs, std::vector<int> inputs,
           std::vector<int> outputs) {
    Step step;
    step.spec = {name, "", op, 13, attrs, {}, {}, {}};
    for (int i : inputs)
      step.spec.inputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
    for (int i : outputs)
      step.spec.outputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
    step.spec.constants.resize(inputs.size());
    step.library = std::string_view(op) == "MatMul" ? "cublaslt" : "cuda";
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    plan.steps.push_back(std::move(step));
  }

  /// "" where all goes well. `change` may put in a fault.
  std::string run(
      CheckingDevice &device, int streams,
      const std::function<void(DeviceExecutor &)> &change = [](DeviceExecutor &) {}) {
    auto executor = DeviceExecutor::create(plan, device, {.streams = streams, .graph = true});
    if (!executor)
      return executor.message();
    change(**executor);
    if (Status status = (*executor)->write(0, x.data()); !status.ok())
      return status.message();
    for (int step = 0; step < 2; ++step) // As it is, and as a graph.
      if (Status status = (*executor)->run(); !status.ok())
        return status.message();
    std::vector<float> z(48 * 16);
    if (Status status = (*executor)->read(4, z.data()); !status.ok())
      return status.message();
    for (size_t i = 0; i < 16; ++i)
      for (size_t j = 0; j < 16; ++j) {
        float product = 0;
        for (size_t k = 0; k < 16; ++k)
          product += x[k * 16 + i] * x[k * 16 + j];
        EXPECT_EQ(z[i * 16 + j], x[j * 16 + i]);
        EXPECT_EQ(z[256 + i * 16 + j], x[i * 16 + j]);
        EXPECT_EQ(z[512 + i * 16 + j], product);
      }
    return "";
  }
};

TEST(CheckingDevice, RightPlansRun) {
  for (int streams : {1, 2, 3}) {
    Example example;
    CheckingDevice device;
    EXPECT_EQ(example.run(device, streams), "") << streams;
  }
}

TEST(CheckingDevice, EveryMissingEventIsNamed) {
  int events = 0;
  for (int event = 0;; ++event) {
    Example example;
    CheckingDevice device;
    device.lostEvents = {event};
    bool exists = false;
    std::string fault = example.run(device, 3, [&](DeviceExecutor &executor) {
      exists = std::ranges::any_of(executor.scheduled, [&](const Scheduled &item) { return item.event == event; });
    });
    if (!exists)
      break;
    ++events;
    EXPECT_THAT(fault,
                testing::AnyOf(AllOf(HasSubstr("node '"), HasSubstr("no event")), HasSubstr("does not wait for")))
        << event;
  }
  EXPECT_GE(events, 3);
}

TEST(CheckingDevice, OverlappingBuffers) {
  Example example;
  example.plan.buffers[2].offset = example.plan.buffers[1].offset + 512;
  CheckingDevice device;
  EXPECT_THAT(example.run(device, 1), AllOf(HasSubstr("node 'product' (MatMul) reads 'left'"),
                                            HasSubstr("node 'same' (Identity) has written over as 'right'")));
}

TEST(CheckingDevice, ReadsBeforeWrites) {
  Example example;
  std::swap(example.plan.steps[0], example.plan.steps[2]);
  CheckingDevice device;
  EXPECT_THAT(example.run(device, 1), HasSubstr("node 'product' (MatMul) reads 'left', which nothing has written"));
}

TEST(CheckingDevice, LeadingDimensions) {
  for (auto [pitch, says] : {std::pair<int64_t, const char *>{17, "operand a of 16 rows with leading dimension 17 goes "
                                                                  "beyond its buffer"},
                             {15, "the leading dimension of a is 15, its rows have 16 elements"}}) {
    Example example;
    CheckingDevice device;
    std::string fault = example.run(device, 1, [&](DeviceExecutor &executor) {
      changeMatmul(executor, [&](cuda::MatmulArgs &args) { args.pitchA = pitch; });
    });
    EXPECT_THAT(fault, AllOf(HasSubstr("node 'product' (MatMul)"), HasSubstr(says)));
  }
}

TEST(CheckingDevice, MisalignedPointers) {
  Example example;
  CheckingDevice device;
  std::string fault = example.run(device, 1, [&](DeviceExecutor &executor) {
    changeMatmul(executor, [&](cuda::MatmulArgs &args) { args.b = static_cast<const char *>(args.b) + 2; });
  });
  EXPECT_THAT(fault, AllOf(HasSubstr("node 'product' (MatMul)"), HasSubstr("not aligned to its elements")));

  example.plan.buffers[1].offset += 2; // What is turned are elements of 4 bytes.
  example.plan.buffers[2].offset += 64;
  example.plan.buffers[3].offset = 5184;
  example.plan.buffers[4].offset = 2048 + 64;
  example.plan.arenaBytes = 6144 + 128;
  CheckingDevice other;
  EXPECT_THAT(example.run(other, 1), AllOf(HasSubstr("node 'turn' (Transpose)"), HasSubstr("misaligned")));
}

/// Copies take memory as it lies: a micro-batch begins where the one before ends.
TEST(CheckingDevice, CopiesOfAnyAlignment) {
  for (size_t shift : {4, 8}) {
    Example example;
    example.plan.buffers[2].offset += shift;
    example.plan.buffers[3].offset = 5184;
    example.plan.buffers[4].offset = 2048 + 64;
    example.plan.arenaBytes = 6144 + 128;
    CheckingDevice device;
    EXPECT_EQ(example.run(device, 1), "") << shift;
  }
}

TEST(CheckingDevice, KernelsStayInTheirBuffers) {
  Example example;
  CheckingDevice device;
  std::string fault = example.run(
      device, 1, [&](DeviceExecutor &executor) { find(executor, "copy_transposed").work.uses[1].bytes -= 4; });
  EXPECT_THAT(fault, AllOf(HasSubstr("node 'turn' (Transpose)"), HasSubstr("outside of every buffer")));
  CheckingDevice other;
  fault = example.run(other, 1, [&](DeviceExecutor &executor) {
    Work &work = find(executor, "copy_transposed").work;
    work.uses[1].data += example.plan.arenaBytes;
  });
  EXPECT_THAT(fault, AllOf(HasSubstr("node 'turn' (Transpose)"), HasSubstr("outside of the device's memory")));
}

/// Batches go to the device while steps run: each is the one that its step reads. A lost event is a race: of the next
/// batch with the one that waits, or of the host with the copy.
TEST(CheckingDevice, BatchesAreSentAhead) {
  auto run = [](CheckingDevice &device, DeviceExecutor &executor, std::vector<float> &firsts) {
    auto fill = [&](float value) {
      if (Status status = executor.beginBatch(); !status.ok())
        return status;
      std::fill_n(reinterpret_cast<float *>(executor.batch(0)), 256, value);
      return executor.sendBatch();
    };
    if (Status status = fill(1); !status.ok())
      return status.message();
    for (int step = 1; step <= 3; ++step) {
      if (Status status = executor.start(); !status.ok())
        return status.message();
      float first = 0;
      std::vector<float> z(48 * 16);
      if (Status status = executor.readLater(4, z.data()); !status.ok())
        return status.message();
      if (Status status = fill(static_cast<float>(step + 1)); !status.ok())
        return status.message();
      if (Status status = executor.finish(); !status.ok())
        return status.message();
      first = z[0];
      firsts.push_back(first);
    }
    return std::string();
  };
  for (int streams : {1, 3})
    for (bool graph : {false, true}) {
      Example example;
      CheckingDevice device;
      auto executor = DeviceExecutor::create(example.plan, device, {.streams = streams, .graph = graph});
      ASSERT_TRUE(executor) << executor.message();
      std::vector<float> firsts;
      EXPECT_EQ(run(device, **executor, firsts), "");
      EXPECT_EQ(firsts, (std::vector<float>{1, 2, 3}));
      int last = -1; // The events of batches come after those of the step.
      for (const Scheduled &item : (*executor)->scheduled)
        last = std::max(last, item.event);
      for (int event : {last + 1, last + 2}) {
        CheckingDevice losing;
        auto again = DeviceExecutor::create(example.plan, losing, {.streams = streams, .graph = graph});
        ASSERT_TRUE(again) << again.message();
        losing.lostEvents = {event};
        EXPECT_THAT(run(losing, **again, firsts), AllOf(HasSubstr("'x'"), HasSubstr("no event"))) << event;
      }
    }
}

/// Two calls where a batch has more matrices than one takes.
TEST(CheckingDevice, BatchesOfAnyNumber) {
  constexpr int64_t kPairs = 35000;
  Example example;
  TensorType a{DType::F32, {kPairs, 2, 1, 2}}, b{DType::F32, {kPairs, 2, 2, 1}}, y{DType::F32, {kPairs, 2, 1, 1}};
  example.plan = Plan();
  example.plan.device = "cuda";
  example.plan.buffers = {{"a", a, Place::Input, 0}, {"b", b, Place::Input, 0}, {"y", y, Place::Arena, 0}};
  example.plan.inputs = {0, 1};
  example.plan.arenaBytes = y.bytes();
  example.add("products", "MatMul", {}, {0, 1}, {2});
  example.plan.outputs = {{"y", 2, -1}};
  CheckingDevice device;
  auto executor = DeviceExecutor::create(example.plan, device, {});
  ASSERT_TRUE(executor) << executor.message();
  std::vector<float> left(static_cast<size_t>(a.elems())), right(static_cast<size_t>(b.elems()));
  for (size_t i = 0; i < left.size(); ++i)
    left[i] = static_cast<float>(i % 13), right[i] = static_cast<float>(i % 7);
  ASSERT_TRUE((*executor)->write(0, left.data()).ok() && (*executor)->write(1, right.data()).ok());
  Status status = (*executor)->run();
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<float> result(static_cast<size_t>(y.elems()));
  ASSERT_TRUE((*executor)->read(2, result.data()).ok());
  for (size_t i = 0; i < result.size(); ++i)
    ASSERT_EQ(result[i], left[2 * i] * right[2 * i] + left[2 * i + 1] * right[2 * i + 1]) << i;
  auto isProduct = [](const Scheduled &item) { return item.work.kernel == cuda::kMatmul; };
  EXPECT_EQ(std::ranges::count_if((*executor)->scheduled, isProduct), 2);
  changeMatmul(**executor, [](cuda::MatmulArgs &args) { args.batch *= 2; });
  EXPECT_THAT((*executor)->run().message(), HasSubstr("a batch of 70000 products, more than 65535"));
}

/// What CUDA does not allow while a stream is captured.
TEST(CheckingDevice, CapturesHaveRules) {
  Example example;
  CheckingDevice device;
  auto memory = device.allocate(64, "a");
  ASSERT_TRUE(memory);
  MemoryUse use{"a", *memory, 64, false, true, *memory};
  Work fill{"the fill", std::string(kFill), 1, 1, bytesOf(FillBytesArgs{*memory, 64, 0}), {use}};
  ASSERT_TRUE(device.record(0, 0).ok());
  ASSERT_TRUE(device.beginCapture(1).ok());
  EXPECT_EQ(device.launch(fill, 0).message(), "the fill: stream 0 takes no part in the capture");
  EXPECT_EQ(device.wait(0, 1).message(), "stream 1 waits for event 0, which was recorded before the capture");
  EXPECT_EQ(device.allocate(64, "b").message(), "memory for b while a graph is captured");
  EXPECT_EQ(device.synchronise().message(), "the host waits while a graph is captured");
  EXPECT_EQ(device.waitOnHost(0).message(), "the host waits while a graph is captured");
  EXPECT_EQ(device.copyIn(use, &use, 1).message(), "a copy from the host while a graph is captured");
  ASSERT_TRUE(device.launch(fill, 1).ok() && device.record(0, 1).ok() && device.wait(0, 0).ok());
  EXPECT_TRUE(device.launch(fill, 0).ok()) << "an event of the capture takes it along";
}

TEST(CheckingDevice, AForeignPlanIsRefused) {
  Example example;
  example.plan.steps[0].library = "generated";
  CheckingDevice device;
  EXPECT_THAT(example.run(device, 1), HasSubstr("the plan is damaged: node 'turn' (Transpose) has no launches"));
  example.plan.steps[0].library = "cublaslt";
  EXPECT_THAT(example.run(device, 1), HasSubstr("the plan has cublaslt for node 'turn' (Transpose)"));
}

} // namespace
} // namespace recast::device
