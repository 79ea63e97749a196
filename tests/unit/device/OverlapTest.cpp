// Ranks reduce the first gradients while the backward goes on: where that work stands, what it waits for, and that the
// numbers are those of ranks on CPUs.
#include "runtime/device/Overlap.h"
#include "runtime/device/Checking.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/cuda/table/Collective.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include "tests/unit/StepModel.h"
#include "tests/unit/ThreadRanks.h"
#include "tests/unit/device/DeviceTest.h"
#include <cmath>
#include <gmock/gmock.h>
#include <thread>

namespace recast::device {
namespace {

using recast::test::Meeting;
using recast::test::ThreadCommunicator;
using testing::HasSubstr;

bool conflict(const Work &a, const Work &b) {
  for (const MemoryUse &x : a.uses)
    for (const MemoryUse &y : b.uses)
      if ((x.isWritten || y.isWritten) && x.data < y.data + y.bytes && y.data < x.data + x.bytes)
        return true;
  return false;
}

/// Work that conflicts keeps its order, and a result is known when nothing that follows writes it.
TEST(Overlap, MovesRandomWorkWithinItsConflicts) {
  std::mt19937 random(11);
  size_t moved = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<Work> work = test::randomWork(random, 30), before = work;
    std::vector<MemoryUse> results;
    for (int k = 0; k < 3; ++k)
      results.push_back({"result", reinterpret_cast<std::byte *>(4096 + 64 * (random() % 32)), 64, true, false});
    std::vector<size_t> known = finishEarly(work, results);
    ASSERT_EQ(work.size(), before.size());
    std::map<std::string, size_t> now;
    for (size_t i = 0; i < work.size(); ++i)
      now[work[i].step] = i;
    for (size_t i = 0; i < before.size(); ++i)
      for (size_t j = i + 1; j < before.size(); ++j)
        if (conflict(before[i], before[j]))
          EXPECT_LT(now.at(before[i].step), now.at(before[j].step)) << "round " << round;
    for (size_t k = 0; k < results.size(); ++k) {
      size_t last = 0;
      for (size_t i = 0; i < work.size(); ++i)
        if (Work reader{"", "", 1, 1, {}, {results[k]}}; conflict(work[i], reader))
          last = i;
      EXPECT_EQ(known[k], last + 1) << "round " << round;
    }
    for (size_t i = 0; i < before.size(); ++i)
      moved += now.at(before[i].step) < i;
  }
  EXPECT_GT(moved, 300u);
}

/// activation -> two readers; the gradients' conversions stand at the end, and move up to what they convert.
TEST(Overlap, MovesOnlyWhatLeadsToAResult) {
  auto at = [](int i) { return reinterpret_cast<std::byte *>(4096 + 64 * i); };
  auto piece = [&](const char *name, std::vector<int> reads, int writes) {
    Work work{name, "", 1, 1, {}, {{name, at(writes), 64, false, true}}};
    for (int read : reads)
      work.uses.push_back({"x", at(read), 64, true, false});
    return work;
  };
  std::vector<Work> work = {piece("start", {}, 0),   piece("dy2", {0}, 1),    piece("dw2", {1}, 2),
                            piece("dy1", {1}, 3),    piece("dw1", {3}, 4),    piece("dy0", {3}, 5),
                            piece("dw0", {5}, 6),    piece("other", {5}, 7),  piece("wide0", {6}, 10),
                            piece("wide1", {4}, 11), piece("wide2", {2}, 12), piece("over", {7}, 1)};
  std::vector<size_t> known = finishEarly(
      work, std::vector<MemoryUse>{{"0", at(10), 64, true}, {"1", at(11), 64, true}, {"2", at(12), 64, true}});
  std::vector<std::string> order;
  for (const Work &item : work)
    order.push_back(item.step);
  EXPECT_THAT(order, testing::ElementsAre("start", "dy2", "dw2", "wide2", "dy1", "dw1", "wide1", "dy0", "dw0", "wide0",
                                          "other", "over"));
  EXPECT_EQ(known, (std::vector<size_t>{10, 7, 4}));
}

using Bytes = std::vector<std::byte>;

struct Example {
  static constexpr int kRanks = 2;
  recast::test::StepModel model;
  std::unique_ptr<Plan> plan, cpuPlan;

  Example(const std::string &name, const std::string &precision, int accumulate) {
    PipelineOptions options;
    options.dataParallel = true;
    options.accumulate = accumulate;
    options.precision = precision;
    options.optimizer = "sgd"; // As CudaPlanTest says.
    model.make(name, options, /*bindsSizes=*/true);
    CompileOptions compile;
    compile.device = "cuda";
    compile.emulates = true;
    plan = model.compile(compile);
    CompileOptions onCpu;
    onCpu.referenceOnly = true;
    cpuPlan = model.compile(onCpu);
  }

  /// Of about `count` buckets.
  DeviceOptions options(int streams, size_t count, Communicator &ranks) const {
    size_t elems = 0;
    for (const Step &step : plan->steps)
      if (step.spec.op == "all_reduce")
        for (const TensorType &type : step.spec.inputs)
          elems += static_cast<size_t>(type.elems());
    return {.streams = streams, .ranks = &ranks, .bucketBytes = elems * sizeof(float) / count};
  }

  /// What each rank's `body` gives, one at a time outside of sums: the emulation is one for all threads.
  std::vector<std::vector<Bytes>>
  onRanks(const std::function<std::vector<Bytes>(ThreadCommunicator &, std::function<void(const Plan &, int, void *)>)>
              &body) {
    Meeting meeting(kRanks);
    std::vector<std::vector<Bytes>> outputs(kRanks);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank)
      threads.emplace_back([&, rank] {
        ThreadCommunicator ranks(meeting, rank, /*takesTurns=*/true);
        outputs[static_cast<size_t>(rank)] = body(
            ranks, [&](const Plan &plan, int input, void *to) { model.fill(plan, input, rank, to); }); // Other batches.
      });
    threads.clear();
    return outputs;
  }
};

/// For each piece which others come before it, on its stream or by events.
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

/// How many reductions come after the backward's last product, and how many there are.
std::pair<size_t, size_t> countLate(const std::vector<Scheduled> &scheduled) {
  std::vector<std::vector<bool>> comesBefore = before(scheduled);
  size_t lastProduct = 0, late = 0, all = 0;
  for (size_t i = 0; i < scheduled.size(); ++i)
    if (const std::string &kernel = scheduled[i].work.kernel; kernel == cuda::kMatmul || kernel == cuda::kConvolution)
      lastProduct = i;
  for (size_t i = 0; i < scheduled.size(); ++i)
    if (scheduled[i].work.kernel == cuda::kAllReduce) {
      late += comesBefore[i][lastProduct];
      ++all;
      EXPECT_TRUE(comesBefore[i][lastProduct] || i < lastProduct) << "issued late";
    }
  return {late, all};
}

/// The last products are those of the lowest layer: only its buckets come after them. One micro-batch in bf16 is no
/// case: where that takes less memory, its conversions to f32 stand after the backward in the plan.
TEST(Overlap, FirstBucketsDoNotWaitForTheBackward) {
  for (auto [precision, accumulate] : {std::pair{"f32", 1}, {"f32", 3}, {"bf16", 3}})
    for (const char *name : {"nanogpt", "gpt2_tiny", "resnet_tiny"}) {
      Example example(name, precision, accumulate);
      ASSERT_TRUE(example.plan);
      for (int streams : {1, 2, 3}) {
        SCOPED_TRACE(std::string(name) + " " + precision + ", " + std::to_string(accumulate) + " micro-batches, " +
                     std::to_string(streams) + " streams");
        Meeting meeting(1);
        ThreadCommunicator ranks(meeting, 0);
        CheckingDevice device;
        auto executor = DeviceExecutor::create(*example.plan, device, example.options(streams, 8, ranks));
        ASSERT_TRUE(executor) << executor.message();
        auto [late, all] = countLate((*executor)->scheduled);
        EXPECT_GE(all, 8u);
        if (streams == 1)
          EXPECT_EQ(late, all) << "one stream keeps the order of the plan";
        else
          EXPECT_LE(late * 2, all);
      }
    }
}

TEST(Overlap, RanksOnDevicesGetWhatRanksOnCpusGet) {
  for (const char *name : {"mlp", "nanogpt"}) {
    Example example(name, "f32", 2);
    ASSERT_TRUE(example.plan && example.cpuPlan);
    for (int streams : {1, 2, 3}) {
      int64_t buckets = 0;
      auto onDevices = example.onRanks([&](ThreadCommunicator &ranks, const auto &fill) {
        std::vector<Bytes> outputs;
        CheckingDevice device;
        auto executor = DeviceExecutor::create(*example.plan, device, example.options(streams, 5, ranks));
        EXPECT_TRUE(executor) << executor.message();
        for (int round = 0; round < 2; ++round) {
          for (int input : example.plan->inputs) {
            Bytes bytes(example.plan->buffers[static_cast<size_t>(input)].type.bytes());
            fill(*example.plan, input, bytes.data());
            EXPECT_TRUE((*executor)->write(input, bytes.data()).ok());
          }
          Status status = (*executor)->run();
          EXPECT_TRUE(status.ok()) << status.message();
        }
        EXPECT_EQ(ranks.traffic.reductions, 2);
        buckets = ranks.traffic.buckets;
        for (const Output &output : example.plan->outputs) {
          outputs.emplace_back(example.plan->buffers[static_cast<size_t>(output.buffer)].type.bytes());
          EXPECT_TRUE((*executor)->read(output.buffer, outputs.back().data()).ok());
        }
        return outputs;
      });
      EXPECT_GE(buckets, 2 * 5);
      auto onCpus = example.onRanks([&](ThreadCommunicator &ranks, const auto &fill) {
        std::vector<Bytes> outputs;
        auto executor = Executor::create(*example.cpuPlan, /*referenceOnly=*/true, &ranks);
        EXPECT_TRUE(executor) << executor.message();
        for (int round = 0; round < 2; ++round) {
          for (int input : example.cpuPlan->inputs)
            fill(*example.cpuPlan, input, (*executor)->tensor(input).data);
          EXPECT_TRUE((*executor)->run().ok());
        }
        for (const Output &output : example.cpuPlan->outputs) {
          TensorRef tensor = (*executor)->tensor(output.buffer);
          auto *data = static_cast<const std::byte *>(tensor.data);
          outputs.emplace_back(data, data + tensor.bytes());
        }
        return outputs;
      });
      EXPECT_EQ(onDevices[0], onDevices[1]) << "every rank has the same bits";
      for (size_t i = 0; i < onCpus[0].size(); ++i) {
        const Output &output = example.plan->outputs[i];
        const TensorType &type = example.plan->buffers[static_cast<size_t>(output.buffer)].type;
        if (type.dtype != DType::F32)
          continue;
        double error = 0, size = 0;
        for (size_t e = 0; e < static_cast<size_t>(type.elems()); ++e) {
          double got = static_cast<double>(reinterpret_cast<const float *>(onDevices[0][i].data())[e]);
          double want = static_cast<double>(reinterpret_cast<const float *>(onCpus[0][i].data())[e]);
          error += (got - want) * (got - want), size += want * want;
        }
        EXPECT_LE(std::sqrt(error), 1e-5 * std::sqrt(size)) << output.name; // Two orders of summation, as CudaPlanTest.
      }
    }
  }
}

/// A bucket waits for each gradient that it packs, and its results for the sum.
TEST(Overlap, EveryMissingEventOfABucketIsNamed) {
  Example example("mlp", "bf16", 2);
  ASSERT_TRUE(example.plan);
  Meeting meeting(1);
  ThreadCommunicator ranks(meeting, 0);
  auto run = [&](int lost, std::vector<Scheduled> *scheduled) {
    CheckingDevice device;
    device.lostEvents = {lost};
    auto executor = DeviceExecutor::create(*example.plan, device, example.options(3, 6, ranks));
    EXPECT_TRUE(executor) << executor.message();
    if (scheduled)
      *scheduled = (*executor)->scheduled;
    for (int input : example.plan->inputs) {
      Bytes bytes(example.plan->buffers[static_cast<size_t>(input)].type.bytes());
      example.model.fill(*example.plan, input, 0, bytes.data());
      EXPECT_TRUE((*executor)->write(input, bytes.data()).ok());
    }
    return (*executor)->run().message();
  };
  std::vector<Scheduled> scheduled;
  EXPECT_EQ(run(-2, &scheduled), "");
  std::set<int> events;
  std::map<int, bool> isForRanks;
  for (const Scheduled &item : scheduled)
    isForRanks[item.event] = item.work.isForRanks;
  for (const Scheduled &item : scheduled)
    for (int event : item.waits)
      if (item.work.isForRanks || isForRanks.at(event))
        events.insert(event);
  EXPECT_GE(events.size(), 8u);
  for (int event : events)
    EXPECT_THAT(run(event, nullptr), testing::AnyOf(HasSubstr("no event"), HasSubstr("does not wait for"))) << event;
}

} // namespace
} // namespace recast::device
