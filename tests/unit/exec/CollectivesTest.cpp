// all_reduce and rank, run by ranks that are threads.
#include "runtime/exec/Collectives.h"
#include "runtime/exec/Executor.h"
#include "tests/unit/ThreadRanks.h"
#include <chrono>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <optional>
#include <thread>

namespace recast {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

constexpr std::chrono::seconds kPatience(20); ///< With what must happen at once.

using test::Meeting;
using test::ThreadCommunicator;

Step allReduce(std::vector<TensorType> types, int64_t maxima) {
  Step step;
  step.spec.name = "sum";
  step.spec.domain = "recast";
  step.spec.op = "all_reduce";
  step.spec.attrs.set("maxima", maxima);
  step.spec.inputs = step.spec.outputs = std::move(types);
  return step;
}

/// Operand `i` of rank `r`, element `e`.
double valueAt(int rank, size_t operand, int64_t element) {
  return (rank + 1) * (10.0 * static_cast<double>(operand) + static_cast<double>(element % 7) - 3);
}

struct Case {
  int ranks;
  size_t bucketBytes;
  bool inPlace, onThread;
};

class AllReduce : public testing::TestWithParam<Case> {};

TEST_P(AllReduce, SumsAndMaxima) {
  const Case &c = GetParam();
  const std::vector<TensorType> types = {{DType::F32, {3, 5}}, {DType::F32, {0}}, {DType::BF16, {4}},
                                         {DType::F32, {}},     {DType::F32, {2}}, {DType::F32, {}}};
  constexpr size_t kFirstMaximum = 4;
  Step step = allReduce(types, kFirstMaximum);
  Meeting meeting(c.ranks);
  std::vector<std::vector<std::vector<double>>> results(static_cast<size_t>(c.ranks));
  std::vector<int64_t> buckets(static_cast<size_t>(c.ranks));
  auto body = [&](int rank) {
    ThreadCommunicator communicator(meeting, rank);
    std::optional<ReductionThread> thread;
    if (c.onThread)
      thread.emplace(communicator);
    auto kernel = createAllReduce(step, communicator, thread ? &*thread : nullptr, {}, c.bucketBytes);
    ASSERT_TRUE(kernel && *kernel);
    std::vector<std::vector<double>> memory, second; // Of doubles: aligned.
    std::vector<TensorRef> inputs, outputs;
    for (size_t i = 0; i < types.size(); ++i) {
      memory.emplace_back(static_cast<size_t>(types[i].elems()) + 1);
      second.emplace_back(static_cast<size_t>(types[i].elems()) + 1, 7.0);
    }
    for (size_t i = 0; i < types.size(); ++i) {
      inputs.push_back({types[i].dtype, types[i].dims, memory[i].data()});
      outputs.push_back(inputs.back());
      if (!c.inPlace || i >= kFirstMaximum)
        outputs.back().data = second[i].data();
      dispatchFloat(types[i].dtype, [&]<typename T>() {
        for (int64_t e = 0; e < types[i].elems(); ++e)
          inputs[i].as<T>()[e] = static_cast<T>(valueAt(rank, i, e));
      });
    }
    ASSERT_TRUE((*kernel)->run({inputs, outputs, {}}).ok());
    auto &result = results[static_cast<size_t>(rank)];
    for (const TensorRef &output : outputs)
      dispatchFloat(output.dtype, [&]<typename T>() {
        result.emplace_back();
        for (int64_t e = 0; e < output.elems(); ++e)
          result.back().push_back(static_cast<double>(output.as<T>()[e]));
      });
    buckets[static_cast<size_t>(rank)] = communicator.traffic.buckets;
    EXPECT_EQ(communicator.traffic.reductions, 1);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < c.ranks; ++rank)
      threads.emplace_back(body, rank);
  }
  for (int rank = 0; rank < c.ranks; ++rank)
    for (size_t i = 0; i < types.size(); ++i)
      for (int64_t e = 0; e < types[i].elems(); ++e) {
        double want = i < kFirstMaximum ? 0 : -kInf;
        for (int r = 0; r < c.ranks; ++r)
          want = i < kFirstMaximum ? want + valueAt(r, i, e) : std::max(want, valueAt(r, i, e));
        EXPECT_EQ(results[static_cast<size_t>(rank)][i][static_cast<size_t>(e)], want)
            << "rank " << rank << ", operand " << i << ", element " << e; // Small integers: exact in bf16 too.
      }
  size_t bytes = (20 + 3 * static_cast<size_t>(c.ranks)) * sizeof(float);
  for (int64_t count : buckets)
    EXPECT_EQ(count, static_cast<int64_t>((bytes + c.bucketBytes - 1) / c.bucketBytes));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AllReduce,
                         testing::Values(Case{1, 1 << 20, false, false}, Case{2, 1 << 20, true, false},
                                         Case{3, 1 << 20, false, true}, Case{3, 4, true, false}, Case{3, 4, true, true},
                                         Case{2, 12, true, true}, Case{4, 20, false, true}, Case{4, 20, false, false}));

TEST(AllReduce, NaNIsTheLargest) {
  for (int broken : {0, 1, 2}) {
    Step step = allReduce({{DType::F64, {}}}, 0);
    Meeting meeting(3);
    auto body = [&](int rank) {
      ThreadCommunicator communicator(meeting, rank);
      auto kernel = createAllReduce(step, communicator, nullptr, {});
      double value = rank == broken ? kNaN : rank == 2 ? kInf : 1;
      TensorRef tensor{DType::F64, {}, &value};
      ASSERT_TRUE((*kernel)->run({{&tensor, 1}, {&tensor, 1}, {}}).ok());
      EXPECT_TRUE(std::isnan(value)) << "rank " << rank;
    };
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back(body, rank);
  }
}

TEST(AllReduce, RefusesIntegers) {
  Meeting meeting(2);
  ThreadCommunicator communicator(meeting, 0);
  auto kernel = createAllReduce(allReduce({{DType::I64, {2}}}, 1), communicator, nullptr, {});
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.message(), "'sum' (all_reduce): ranks do not sum i64");
}

TEST(Rank, IsTheCommunicators) {
  Meeting meeting(5);
  ThreadCommunicator communicator(meeting, 3);
  Step step;
  step.spec.domain = "recast";
  step.spec.op = "rank";
  auto kernel = createRank(step, communicator);
  int64_t value = -1;
  TensorRef tensor{DType::I64, {}, &value};
  ASSERT_TRUE(kernel && kernel->run({{}, {&tensor, 1}, {}}).ok());
  EXPECT_EQ(value, 3);
}

/// A backward of three layers: dy = -dy of before, g = |dy|; the gradients are summed. A Gather of its own fails where
/// `index` is out of range.
struct Backward {
  enum : int { X, Index, Picked, FirstLayer };
  Plan plan;
  static constexpr size_t kLastBackward = 5; ///< The step of the last dy.

  Backward() {
    TensorType row{DType::F32, {4}};
    plan.buffers = {{"x", row, Place::Input, 0}, {"index", {DType::I64, {1}}, Place::Input, 0}};
    plan.inputs = {X, Index};
    arena({"picked", {DType::F32, {1}}, Place::Arena, 0});
    std::vector<int> gradients, sums;
    int dy = X;
    for (int layer = 3; layer > 0; --layer) {
      std::string number = std::to_string(layer);
      dy = add("Neg", {dy}, {arena({"dy" + number, row, Place::Arena, 0})});
      gradients.push_back(add("Abs", {dy}, {arena({"g" + number, row, Place::Arena, 0})}));
      if (layer == 3)
        add("Gather", {X, Index}, {Picked});
    }
    std::swap(gradients[0], gradients[2]); // In the order of layers, not of time.
    for (size_t i = 0; i < gradients.size(); ++i) {
      sums.push_back(arena({"sum" + std::to_string(i + 1), row, Place::Arena, 0}));
      plan.outputs.push_back({plan.buffers.back().name, sums.back(), -1});
    }
    add("all_reduce", gradients, sums);
    plan.steps.back().spec.domain = "recast";
    plan.steps.back().spec.version = 1;
  }
  int arena(Buffer buffer) {
    buffer.offset = plan.arenaBytes;
    plan.arenaBytes += 64;
    plan.buffers.push_back(std::move(buffer));
    return static_cast<int>(plan.buffers.size()) - 1;
  }
  int add(const char *op, std::vector<int> inputs, std::vector<int> outputs) {
    Step step;
    step.spec = {plan.buffers[static_cast<size_t>(outputs[0])].name, "", op, 13, {}, {}, {}, {}};
    for (int i : inputs)
      step.spec.inputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
    for (int i : outputs)
      step.spec.outputs.push_back(plan.buffers[static_cast<size_t>(i)].type);
    step.spec.constants.resize(inputs.size());
    step.library = "reference";
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    plan.steps.push_back(std::move(step));
    return plan.steps.back().outputs[0];
  }
  std::unique_ptr<Executor> make(Communicator &ranks, int64_t index) const {
    auto executor = Executor::create(plan, /*referenceOnly=*/true, &ranks, /*bucketBytes=*/4 * sizeof(float));
    EXPECT_TRUE(executor) << executor.message();
    for (int i = 0; i < 4; ++i)
      (*executor)->tensor(X).as<float>()[i] = static_cast<float>((ranks.rank() + 1) * (i - 2));
    *(*executor)->tensor(Index).as<int64_t>() = index;
    return std::move(*executor);
  }
};

/// Rank by rank, each on a thread.
void onRanks(int ranks, const std::function<void(int)> &body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back(body, rank);
}

TEST(AllReduceAhead, BeginsBeforeTheBackwardEnds) {
  Backward example;
  for (bool isForThreads : {true, false}) {
    Meeting meeting(2);
    onRanks(2, [&](int rank) {
      ThreadCommunicator ranks(meeting, rank);
      ranks.isForThreads = isForThreads;
      std::unique_ptr<Executor> executor = example.make(ranks, 0);
      int begunBefore = -1;
      executor->observer = [&](const StepEvent &event) {
        if (!event.isBegin || event.step != Backward::kLastBackward)
          return;
        // Two buckets are known. A rank that waits for them here gets them only if they are summed meanwhile.
        auto until = std::chrono::steady_clock::now() + kPatience;
        while (isForThreads && ranks.begun % 3 < 2 && std::chrono::steady_clock::now() < until)
          std::this_thread::yield();
        begunBefore = ranks.begun % 3;
      };
      for (int round = 1; round <= 3; ++round) {
        Status status = executor->run();
        ASSERT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(begunBefore, isForThreads ? 2 : 0);
        EXPECT_EQ(ranks.traffic.reductions, round);
        EXPECT_EQ(ranks.traffic.buckets, 3 * round);
        for (const Output &output : example.plan.outputs)
          for (int i = 0; i < 4; ++i)
            EXPECT_EQ(executor->tensor(output.buffer).as<float>()[i], static_cast<float>(3 * std::abs(i - 2)));
      }
    });
  }
}

/// The others end with an error, and the rank that failed does not go on.
TEST(AllReduceAhead, AFailedStepEndsAllRanks) {
  Backward example;
  Meeting meeting(2);
  onRanks(2, [&](int rank) {
    ThreadCommunicator ranks(meeting, rank);
    std::unique_ptr<Executor> executor = example.make(ranks, rank == 1 ? 99 : 0);
    std::string message = executor->run().message();
    if (rank == 0) {
      EXPECT_EQ(message, "'sum1' (all_reduce): a rank is lost");
      EXPECT_EQ(executor->run().message(),
                "'sum1' (all_reduce): an earlier step has failed on this rank, and the others "
                "are ahead of it");
    } else {
      EXPECT_NE(message.find("picked"), std::string::npos) << message;
      ranks.abort(); // As a tool does whose run has failed.
    }
  });
}

/// A bucket has begun, its rank fails, and no other rank comes: nothing waits for ever.
TEST(AllReduceAhead, EndsWhileABucketWaits) {
  Backward example;
  Meeting meeting(2);
  ThreadCommunicator ranks(meeting, 0);
  std::unique_ptr<Executor> executor = example.make(ranks, 99);
  EXPECT_FALSE(executor->run().ok());
  auto until = std::chrono::steady_clock::now() + kPatience;
  while (ranks.begun < 1 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  EXPECT_EQ(ranks.begun, 1);
  executor.reset();
  EXPECT_TRUE(meeting.isEnded);
}

} // namespace
} // namespace recast
