#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

Op withAxis(const char *name, int64_t version, int64_t axis, const char *domain = "") {
  return {name, version, attributes({{"axis", axis}}), domain};
}
Op withReduction(const char *name, const char *reduction) {
  return {name, 18, attributes({{"reduction", std::string(reduction)}})};
}

TEST(Indexing, GatherAlongAnyAxis) {
  Array x = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  expectEqual(run(withAxis("Gather", 13, 1), {x, i64({2}, {-1, 0})}, {{DType::F32, {2, 2}}})[0], {3, 1, 6, 4});
  expectEqual(run({"Gather", 13}, {x, i64({}, {1})}, {{DType::F32, {3}}})[0], {4, 5, 6});
  expectEqual(run({"Gather", 13}, {x, Array(DType::I32, {1, 2}, {1, 1})}, {{DType::F32, {1, 2, 3}}})[0],
              {4, 5, 6, 4, 5, 6});
}

TEST(Indexing, AnIndexOutOfRangeIsAnErrorThatNamesIt) {
  Array x = f32({2, 2}, {1, 2, 3, 4}), pair = i64({1, 2}, {0, 7});
  struct Case {
    Op op;
    std::vector<Array> inputs;
  } cases[] = {
      {{"Gather", 13}, {x, pair}},
      {{"GatherElements", 13}, {x, pair}},
      {{"GatherND", 13}, {x, pair}},
      {{"ScatterElements", 18}, {x, pair, f32({1, 2}, {1, 1})}},
      {{"ScatterND", 18}, {x, pair, f32({1}, {1})}},
      {{"gather_grad", 1, {}, "recast"}, {f32({1, 2, 2}, {1, 2, 3, 4}), pair, i64({2}, {2, 2})}},
  };
  for (const Case &c : cases) {
    Status status = Status::success();
    TensorType output = c.op.name == "Gather" ? TensorType{DType::F32, {1, 2, 2}} : x.type;
    tryRun(c.op, c.inputs, {output}, status);
    ASSERT_FALSE(status.ok()) << c.op.name;
    EXPECT_EQ(status.message(), "node 'step' (" + c.op.name + "): index 7 at position 1 is outside [-2, 1]");
  }
}

TEST(Indexing, GatherElementsAndGatherND) {
  Array x = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  expectEqual(run(withAxis("GatherElements", 13, 1), {x, i64({2, 2}, {2, 0, -1, 1})}, {{DType::F32, {2, 2}}})[0],
              {3, 1, 6, 5});
  expectEqual(run({"GatherND", 13}, {x, i64({2, 2}, {0, 1, -1, -1})}, {{DType::F32, {2}}})[0], {2, 6});
  Op batched{"GatherND", 13, attributes({{"batch_dims", int64_t(1)}})};
  expectEqual(run(batched, {x, i64({2, 1}, {2, 0})}, {{DType::F32, {2}}})[0], {3, 4});
}

TEST(Indexing, ScatterElementsReductions) {
  Array x = f32({4}, {1, 2, 3, 4}), indices = i64({3}, {1, 1, -1}), updates = f32({3}, {5, 7, -1});
  struct Case {
    const char *reduction;
    std::vector<double> want;
  } cases[] = {{"none", {1, 7, 3, -1}},
               {"add", {1, 14, 3, 3}},
               {"mul", {1, 70, 3, -4}},
               {"max", {1, 7, 3, 4}},
               {"min", {1, 2, 3, -1}}};
  for (const Case &c : cases) {
    expectEqual(run(withReduction("ScatterElements", c.reduction), {x, indices, updates}, {x.type})[0], c.want);
    expectEqual(run(withReduction("ScatterND", c.reduction), {x, i64({3, 1}, {1, 1, -1}), updates}, {x.type})[0],
                c.want);
  }
  expectEqual(run(withAxis("Scatter", 9, 1), {f32({1, 3}, {1, 2, 3}), i64({1, 1}, {2}), f32({1, 1}, {9})},
                  {{DType::F32, {1, 3}}})[0],
              {1, 2, 9});
  Array ints = i64({1}, {0});
  EXPECT_NE(refusalOf(withReduction("ScatterND", "median"), {ints, ints, ints}, {ints.type}), "");
}

TEST(Indexing, ScatterNDOfSlices) {
  Array y =
      run(withReduction("ScatterND", "add"),
          {f32({2, 2}, {1, 2, 3, 4}), i64({2, 1}, {1, 1}), f32({2, 2}, {10, 20, 30, 40})}, {{DType::F32, {2, 2}}})[0];
  expectEqual(y, {1, 2, 43, 64});
}

TEST(Indexing, OneHotIgnoresIndicesOutOfRange) {
  Array indices = i64({4}, {0, -1, 3, -4}), values = f32({2}, {2, 5});
  expectEqual(run({"OneHot", 11}, {indices, i64({}, {3}), values}, {{DType::F32, {4, 3}}})[0],
              {5, 2, 2, 2, 2, 5, 2, 2, 2, 2, 2, 2});
  expectEqual(
      run(withAxis("OneHot", 11, 0), {f32({2}, {1, 0}), f32({1}, {2}), i64({2}, {0, 1})}, {{DType::I64, {2, 2}}})[0],
      {0, 1, 1, 0});
}

TEST(Indexing, GatherGradientSumsRepeatedRows) {
  Array x = pattern({3, 4, 2}), indices = i64({2, 3}, {0, -1, 0, 1, 0, 3}), dy = pattern({3, 2, 3, 2}, 5);
  Array dx = run(withAxis("gather_grad", 1, 1, "recast"), {dy, indices, i64({3}, {3, 4, 2})}, {x.type})[0];
  expectGradient(withAxis("Gather", 13, 1), {x, indices}, 0, {dy.type}, dy, dx);
}

TEST(Indexing, GatherGradientRoundsOnce) {
  // 1 + 2048 * 2^-11 is exact in double; in f16 every single addition would be lost.
  constexpr int64_t count = 2049;
  Array dy(DType::F16, {count, 1}), indices(DType::I64, {count});
  for (int64_t i = 0; i < count; ++i) {
    dy.set(static_cast<size_t>(i), i ? 0x1p-11 : 1.0);
    indices.set(static_cast<size_t>(i), 1);
  }
  Array dx = run({"gather_grad", 1, {}, "recast"}, {dy, indices, i64({2}, {2, 1})}, {{DType::F16, {2, 1}}})[0];
  expectEqual(dx, {0, 2});
}

TEST(Indexing, GatherGradientDoesNotDependOnThreads) {
  Array dy = randomArray(DType::F32, {500, 80}, 1), indices(DType::I64, {500});
  for (size_t i = 0; i < 500; ++i)
    indices.set(i, static_cast<double>(i * i % 37));
  setThreadCount(1);
  Op op{"gather_grad", 1, {}, "recast"};
  Array one = run(op, {dy, indices, i64({2}, {40, 80})}, {{DType::F32, {40, 80}}})[0];
  setThreadCount(2);
  Array two = run(op, {dy, indices, i64({2}, {40, 80})}, {{DType::F32, {40, 80}}})[0];
  setThreadCount(1);
  EXPECT_EQ(one.bytes, two.bytes);
}

} // namespace
} // namespace recast::reference::test
