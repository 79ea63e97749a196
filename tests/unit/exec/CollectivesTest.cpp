// all_reduce and rank, run by ranks that are threads.
#include "runtime/exec/Collectives.h"
#include "tests/unit/ThreadRanks.h"
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <thread>

namespace recast {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

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
  bool inPlace;
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
    auto kernel = createCollective(step, communicator, c.bucketBytes);
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
                         testing::Values(Case{1, 1 << 20, false}, Case{2, 1 << 20, true}, Case{3, 1 << 20, false},
                                         Case{3, 4, true}, Case{2, 12, true}, Case{4, 20, false}));

TEST(AllReduce, NaNIsTheLargest) {
  for (int broken : {0, 1, 2}) {
    Step step = allReduce({{DType::F64, {}}}, 0);
    Meeting meeting(3);
    auto body = [&](int rank) {
      ThreadCommunicator communicator(meeting, rank);
      auto kernel = createCollective(step, communicator);
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
  auto kernel = createCollective(allReduce({{DType::I64, {2}}}, 1), communicator);
  ASSERT_FALSE(kernel);
  EXPECT_EQ(kernel.message(), "'sum' (all_reduce): ranks do not sum i64");
}

TEST(Rank, IsTheCommunicators) {
  Meeting meeting(5);
  ThreadCommunicator communicator(meeting, 3);
  Step step;
  step.spec.domain = "recast";
  step.spec.op = "rank";
  auto kernel = createCollective(step, communicator);
  int64_t value = -1;
  TensorRef tensor{DType::I64, {}, &value};
  ASSERT_TRUE(kernel && (*kernel)->run({{}, {&tensor, 1}, {}}).ok());
  EXPECT_EQ(value, 3);
}

} // namespace
} // namespace recast
