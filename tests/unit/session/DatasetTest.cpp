#include "runtime/session/Dataset.h"
#include "runtime/session/Random.h"
#include "tests/unit/session/SessionTest.h"
#include <algorithm>
#include <numeric>

namespace recast {
namespace {

using namespace test;

template <typename T> HostTensor tensorOf(DType type, std::vector<int64_t> dims, std::vector<T> values) {
  auto owner = std::make_shared<std::vector<T>>(std::move(values));
  return {{type, std::move(dims)}, reinterpret_cast<const std::byte *>(owner->data()), owner};
}

HostTensor counting(std::vector<int64_t> dims, DType type = DType::I64) {
  std::vector<int64_t> values(static_cast<size_t>(elementCount(dims)));
  std::iota(values.begin(), values.end(), 0);
  return tensorOf(type, std::move(dims), std::move(values));
}

/// The one input of a dataset at a step.
template <typename T> std::vector<T> batchOf(Dataset &data, int64_t step) {
  TensorType type = data.types(data.rowsAt(step)).begin()->second;
  std::vector<T> values(static_cast<size_t>(type.elems()));
  TensorRef target{type.dtype, type.dims, values.data()};
  Status status = data.fill(step, {&target, 1});
  EXPECT_TRUE(status.ok()) << status.message();
  return values;
}

using Values = std::vector<int64_t>;

TEST(Dataset, CutsSamplesIntoBatchesWithASmallerLastOne) {
  DataOptions options;
  options.batchSize = 2;
  auto data = Dataset::create(options, {{"x", {DType::I64, {-1, 2}}}}, {{"x", counting({5, 2})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->stepsPerEpoch(), 3);
  EXPECT_EQ((*data)->rowsAt(2), 1);
  EXPECT_EQ((*data)->types(1)["x"], (TensorType{DType::I64, {1, 2}}));
  EXPECT_EQ(batchOf<int64_t>(**data, 0), (Values{0, 1, 2, 3}));
  EXPECT_EQ(batchOf<int64_t>(**data, 2), (Values{8, 9}));
  EXPECT_EQ(batchOf<int64_t>(**data, 3), (Values{0, 1, 2, 3}));
  options.dropLast = true;
  data = Dataset::create(options, {{"x", {DType::I64, {-1, 2}}}}, {{"x", counting({5, 2})}}, "d");
  ASSERT_TRUE(data);
  EXPECT_EQ((*data)->stepsPerEpoch(), 2);
  EXPECT_EQ(batchOf<int64_t>(**data, 2), (Values{0, 1, 2, 3}));
}

TEST(Dataset, TakesTheModelsBatchSizeAndPrefersThePrefix) {
  auto data = Dataset::create({}, {{"x", {DType::I64, {4}}}},
                              {{"x", counting({1})}, {"in.x", counting({8})}, {"loss", counting({3})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->rowsPerStep(), 4);
  EXPECT_EQ(batchOf<int64_t>(**data, 1), (Values{4, 5, 6, 7}));
  data = Dataset::create({}, {{"x", {DType::I64, {-1}}}}, {{"x", counting({100})}}, "d");
  ASSERT_TRUE(data);
  EXPECT_EQ((*data)->rowsPerStep(), kDefaultBatchSize);
}

TEST(Dataset, TakesReadyBatchesAndSingleOnes) {
  DataOptions options;
  options.layout = DataLayout::Batches;
  auto data = Dataset::create(options, {{"x", {DType::I64, {2, -1}}}}, {{"x", counting({3, 2, 2})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->stepsPerEpoch(), 3);
  EXPECT_EQ(batchOf<int64_t>(**data, 4), (Values{4, 5, 6, 7}));
  options.layout = DataLayout::Single;
  data = Dataset::create(options, {{"x", {DType::I64, {-1, 2, 2}}}}, {{"x", counting({1, 2, 2})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->stepsPerEpoch(), 1);
  EXPECT_EQ(batchOf<int64_t>(**data, 7), (Values{0, 1, 2, 3}));
}

TEST(Dataset, WritesASingleBatchOnceToEachPlace) {
  DataOptions options;
  options.layout = DataLayout::Single;
  auto data = Dataset::create(options, {{"x", {DType::I64, {3}}}}, {{"x", counting({3})}}, "d");
  ASSERT_TRUE(data) << data.message();
  Values first(3), second(3);
  auto fill = [&](int64_t step, Values &values) {
    const int64_t dims[] = {3};
    TensorRef target{DType::I64, dims, values.data()};
    return (*data)->fill(step, {&target, 1}).ok();
  };
  ASSERT_TRUE(fill(0, first));
  EXPECT_EQ(first, (Values{0, 1, 2}));
  first = {7, 8, 9};
  ASSERT_TRUE(fill(1, first));
  EXPECT_EQ(first, (Values{7, 8, 9}));
  ASSERT_TRUE(fill(1, second) && fill(2, first));
  EXPECT_EQ(second, (Values{0, 1, 2}));
  EXPECT_EQ(first, (Values{0, 1, 2}));
}

TEST(Dataset, StacksMicroBatches) {
  DataOptions options;
  options.batchSize = 2;
  auto data = Dataset::create(options, {{"x", {DType::I64, {3, -1, 1}}}}, {{"x", counting({12, 1})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->stepsPerEpoch(), 2);
  EXPECT_EQ((*data)->types(6)["x"], (TensorType{DType::I64, {3, 2, 1}}));
  EXPECT_EQ(batchOf<int64_t>(**data, 1), (Values{6, 7, 8, 9, 10, 11}));
  options.layout = DataLayout::Batches;
  data = Dataset::create(options, {{"x", {DType::I64, {2, 3, 1}}}}, {{"x", counting({4, 3, 1})}}, "d");
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->stepsPerEpoch(), 2);
  EXPECT_EQ((*data)->types(2)["x"], (TensorType{DType::I64, {2, 3, 1}}));
}

TEST(Dataset, ShufflesTheSameWayEverywhere) {
  DataOptions options;
  options.shuffle = true;
  options.batchSize = 8;
  options.seed = 3;
  auto open = [&] { return Dataset::create(options, {{"x", {DType::I64, {-1}}}}, {{"x", counting({8})}}, "d"); };
  auto data = open(), again = open();
  ASSERT_TRUE(data && again);
  Values first = batchOf<int64_t>(**data, 0), second = batchOf<int64_t>(**data, 1);
  EXPECT_NE(first, second);
  // The order depends on the step only, not on what was read before: a resumed run sees the same batches.
  EXPECT_EQ(batchOf<int64_t>(**again, 1), second);
  EXPECT_EQ(batchOf<int64_t>(**data, 0), first);
  // Written down once: a change would break the resuming of older checkpoints.
  EXPECT_EQ(first, (Values{2, 7, 4, 5, 0, 1, 6, 3}));
  std::ranges::sort(first);
  EXPECT_EQ(first, (Values{0, 1, 2, 3, 4, 5, 6, 7}));
  options.seed = 4;
  EXPECT_NE(batchOf<int64_t>(**open(), 1), second);
}

TEST(Random, SplitMix64GivesItsPublishedNumbers) {
  // The generator's reference implementation (https://prng.di.unimi.it/splitmix64.c), seed 1234567.
  SplitMix64 random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317u);
  EXPECT_EQ(random.next(), 3203168211198807973u);
  SplitMix64 bounded(1);
  std::vector<int> counts(3);
  for (int i = 0; i < 30'000; ++i)
    ++counts[bounded.below(3)];
  for (int count : counts)
    EXPECT_NEAR(count, 10'000, 500); // Six standard deviations.
}

TEST(Dataset, ConvertsIntoTheInputsType) {
  DataOptions options;
  options.layout = DataLayout::Single;
  auto data = Dataset::create(options, {{"x", {DType::BF16, {3}}}},
                              {{"x", tensorOf<double>(DType::F64, {3}, {1.00390625, 0.1, -3})}}, "d");
  ASSERT_TRUE(data) << data.message();
  std::vector<uint16_t> bits = batchOf<uint16_t>(**data, 0);
  EXPECT_EQ(bits, (std::vector<uint16_t>{0x3f80, 0x3dcd, 0xc040})); // 1 + 2^-8 is a tie: to even.
  data =
      Dataset::create(options, {{"x", {DType::I32, {2}}}}, {{"x", tensorOf<uint8_t>(DType::U8, {2}, {0, 255})}}, "d");
  ASSERT_TRUE(data);
  EXPECT_EQ(batchOf<int32_t>(**data, 0), (std::vector<int32_t>{0, 255}));
  data =
      Dataset::create(options, {{"x", {DType::Bool, {2}}}}, {{"x", tensorOf<uint8_t>(DType::Bool, {2}, {0, 7})}}, "d");
  ASSERT_TRUE(data);
  EXPECT_EQ(batchOf<uint8_t>(**data, 0), (std::vector<uint8_t>{0, 1}));

  data = Dataset::create(options, {{"x", {DType::I32, {1}}}}, {{"x", tensorOf<int64_t>(DType::I64, {1}, {1LL << 40})}},
                         "d");
  ASSERT_TRUE(data);
  int32_t value = 0;
  int64_t dim = 1;
  TensorRef target{DType::I32, {&dim, 1}, &value};
  expectError((*data)->fill(0, {&target, 1}), {"input 'x'", "1099511627776", "does not fit", "i32"});
}

Status statusOf(const DataOptions &options, std::vector<GraphInput> inputs, const TensorMap &tensors) {
  return Dataset::create(options, std::move(inputs), tensors, "data.npz").status();
}

TEST(Dataset, SaysWhatDoesNotFit) {
  DataOptions samples, batches, single;
  batches.layout = DataLayout::Batches;
  single.layout = DataLayout::Single;
  GraphInput x{"x", {DType::I64, {-1, 2}}};
  expectError(statusOf(samples, {x, {"y", {DType::I64, {-1}}}}, {{"z", counting({4, 2})}}),
              {"'data.npz'", "'x', 'y'", "it has 'z' (i64[4,2])"});
  expectError(statusOf(samples, {x}, {{"x", counting({4, 3})}}),
              {"input 'x' is [?,2]", "[4,3], gives [?,3] a step", "--data-layout=batches"});
  expectError(statusOf(single, {x}, {{"x", counting({4, 2, 1})}}), {"input 'x' is [?,2]", "[4,2,1]"});
  expectError(statusOf(samples, {x}, {{"x", counting({})}}), {"input 'x'", "scalar"});
  expectError(statusOf(samples, {{"x", {DType::F32, {-1, 2}}}}, {{"x", counting({4, 2})}}),
              {"input 'x' is f32", "is i64", "only floating-point types convert"});
  expectError(statusOf(samples, {x}, {{"x", counting({0, 2})}}), {"holds no data", "'x'"});
  expectError(statusOf(samples, {x, {"y", {DType::I64, {-1}}}}, {{"x", counting({4, 2})}, {"y", counting({5})}}),
              {"'x' and 'y' do not go together", "4 rows", "5"});
  GraphInput fixed{"x", {DType::I64, {3, 2}}};
  expectError(statusOf(samples, {fixed}, {{"x", counting({4, 2})}}),
              {"fixed batch of 3", "last batch of 1", "--drop-last"});
  DataOptions two;
  two.batchSize = 2;
  expectError(statusOf(two, {fixed}, {{"x", counting({4, 2})}}), {"fixed batch of 3", "--batch-size asks for 2"});
  expectError(statusOf(two, {{"x", {DType::I64, {2, -1, 2}}}}, {{"x", counting({5, 2})}}),
              {"5 rows", "no multiple of the 4", "--drop-last"});
  expectError(statusOf(two, {{"x", {DType::I64, {-1, -1, 2}}}}, {{"x", counting({5, 2})}}), {"micro-batches", "--dim"});
}

TEST(Tokens, MakesWindowsAndLabelsOnePlaceLater) {
  TempFolder folder;
  writeFile(folder / "t.bin", rawBytes<uint16_t>({10, 11, 12, 13, 14, 15, 16, 65535}));
  DataOptions options;
  options.path = folder / "t.bin";
  options.batchSize = 2;
  auto data = Dataset::open(options, {{"labels", {DType::I64, {-1, 3}}}, {"ids", {DType::I64, {-1, 3}}}});
  ASSERT_TRUE(data) << data.message();
  EXPECT_EQ((*data)->rows(), 2);
  Values labels(6), ids(6);
  std::vector<int64_t> dims{2, 3};
  std::vector<TensorRef> targets{{DType::I64, dims, labels.data()}, {DType::I64, dims, ids.data()}};
  ASSERT_TRUE((*data)->fill(0, targets).ok());
  EXPECT_EQ(ids, (Values{10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(labels, (Values{11, 12, 13, 14, 15, 16}));

  auto alone = Dataset::open(options, {{"ids", {DType::I32, {2, 4}}}});
  ASSERT_TRUE(alone) << alone.message();
  EXPECT_EQ(batchOf<int32_t>(**alone, 0), (std::vector<int32_t>{10, 11, 12, 13, 14, 15, 16, 65535}));

  expectError(Dataset::open(options, {{"ids", {DType::I64, {-1, -1}}}}).status(), {"'ids'", "--dim"});
  expectError(Dataset::open(options, {{"x", {DType::F32, {-1, 3}}}}).status(), {"t.bin", "one integer input"});
  expectError(Dataset::open(options, {{"ids", {DType::I64, {-1, 99}}}}).status(),
              {"longer than 99 tokens", "16 bytes"});
}

} // namespace
} // namespace recast
