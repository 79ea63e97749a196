// Ranks reduce the first gradients while the backward goes on: where their work stands, what it waits for, and that the
// numbers are the CPU's.
#include "runtime/device/Overlap.h"
#include "runtime/device/Checking.h"
#include "runtime/device/DeviceExecutor.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/ThreadRanks.h"
#include <cmath>
#include <gmock/gmock.h>
#include <thread>

namespace recast::device {
namespace {

using test::Meeting;
using test::ThreadCommunicator;
constexpr int kRanks = 2;

bool isReduction(const Scheduled &item) { return item.work.kernel == cuda::kAllReduce; }

/// For each piece the pieces that come before it, on its stream or by events.
std::vector<std::vector<bool>> before(const std::vector<Scheduled> &scheduled) {
  std::vector<std::vector<bool>> result;
  std::map<int, size_t> lastOn, recorded;
  for (const Scheduled &item : scheduled) {
    std::vector<bool> all(scheduled.size());
    auto add = [&](size_t piece) {
      all[piece] = true;
      for (size_t i = 0; i < piece; ++i)
        all[i] = all[i] || result[piece][i];
    };
    if (auto last = lastOn.find(item.stream); last != lastOn.end())
      add(last->second);
    for (int event : item.waits)
      add(recorded.at(event));
    lastOn[item.stream] = result.size();
    if (item.event >= 0)
      recorded[item.event] = result.size();
    result.push_back(std::move(all));
  }
  return result;
}

struct Example {
  test::StepModel model;
  std::unique_ptr<Plan> plan, cpuPlan;

  Example(const std::string &name, PipelineOptions options) {
    options.dataParallel = true;
    model.make(name, options, /*bindsSizes=*/true);
    CompileOptions compile;
    compile.device = "cuda";
    compile.emulates = true;
    plan = model.compile(compile);
    CompileOptions onCpu;
    onCpu.referenceOnly = true;
    cpuPlan = model.compile(onCpu);
  }

  /// Small enough for `count` buckets and a rest.
  size_t bucketBytes(size_t count) const {
    size_t bytes = 0;
    for (const Step &step : plan->steps)
      if (step.spec.op == "all_reduce")
        for (const TensorType &type : step.spec.inputs)
          bytes += static_cast<size_t>(type.elems()) * sizeof(float);
    return bytes / count;
  }

  /// Outputs of one step of each rank, each with a batch of its own.
  std::vector<std::vector<std::vector<std::byte>>> run(const std::function<void(int, ThreadCommunicator &, std::vector<std::vector<std::byte>> &)> &body) {
    Meeting meeting(kRanks);
    std::vector<std::vector<std::vector<std::byte>>> outputs(kRanks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        ThreadCommunicator ranks(meeting, rank, /*takesTurns=*/true); // The emulation is one for all threads.
        body(rank, ranks, outputs[static_cast<size_t>(rank)]);
      });
    threads.clear();
    return outputs;
  }
};

TEST(Overlap, Prints) {
  for (const char *name : {"mlp", "nanogpt", "gpt2_tiny", "resnet_tiny"})
    for (int accumulate : {1, 2})
      for (const char *precision : {"f32", "bf16"}) {
        PipelineOptions options;
        options.accumulate = accumulate, options.precision = precision, options.optimizer = "sgd";
        Example example(name, options);
        ASSERT_TRUE(example.plan);
        CheckingDevice device;
        Meeting meeting(1);
        ThreadCommunicator alone(meeting, 0);
        auto executor = DeviceExecutor::create(*example.plan, device, {.streams = 2, .ranks = &alone, .bucketBytes = example.bucketBytes(8)});
        ASSERT_TRUE(executor) << executor.message();
        const std::vector<Scheduled> &scheduled = (*executor)->scheduled;
        auto order = before(scheduled);
        size_t lastProduct = 0, end = 0;
        for (size_t i = 0; i < scheduled.size(); ++i) {
          if (isReduction(scheduled[i])) end = i;
          if (end && !scheduled[i].work.isForRanks && scheduled[i].work.step.find("all_reduce") != std::string::npos) break;
          if (!scheduled[i].work.isForRanks) lastProduct = i;
        }
        std::printf("%s k=%d %s: %zu pieces, end %zu last %zu (%s):", name, accumulate, precision, scheduled.size(), end, lastProduct, scheduled[lastProduct].work.step.c_str());
        for (size_t i = 0; i < scheduled.size(); ++i)
          if (isReduction(scheduled[i])) {
            size_t compute = 0;
            for (size_t j = 0; j <= lastProduct; ++j) compute += order[i][j] && !scheduled[j].work.isForRanks;
            std::printf(" %zu", compute);
          }
        std::printf("\n");
      }
}

} // namespace
} // namespace recast::device
