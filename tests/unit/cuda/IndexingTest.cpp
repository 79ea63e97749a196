// Gather and scatter kernels against the reference evaluator, and what they report of bad indices.
#include "tests/unit/cuda/CudaTest.h"
#include <gmock/gmock.h>

namespace recast::cuda::test {
namespace {

constexpr DType kTypes[] = {DType::Bool, DType::BF16, DType::F32, DType::I64};
constexpr DType kIndexTypes[] = {DType::I32, DType::I64};

/// Indices in [-size, size), repeating.
Array indicesIn(DType type, Dims dims, int64_t size, uint64_t seed = 5) {
  Array indices(type, std::move(dims));
  for (size_t i = 0; i < static_cast<size_t>(indices.type.elems()); ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    indices.set(i, static_cast<double>(static_cast<int64_t>((seed >> 33) % static_cast<uint64_t>(2 * size)) - size));
  }
  return indices;
}

TEST(CudaIndexing, Gather) {
  for (DType index : kIndexTypes)
    for (DType type : kTypes) {
      compare({"Gather", 13}, {randomBits(type, {7, 8}, 1), indicesIn(index, {3, 5}, 7)}, {{type, {3, 5, 8}}});
      compare({"Gather", 13, attributes({{"axis", int64_t(1)}})},
              {randomBits(type, {3, 5, 3}, 1), indicesIn(index, {4}, 5)}, {{type, {3, 4, 3}}});
      compare({"Gather", 13, attributes({{"axis", int64_t(-1)}})},
              {randomBits(type, {300, 1}, 1), indicesIn(index, {}, 1)}, {{type, {300}}});
      compare({"Gather", 13}, {randomBits(type, {4, 2}, 1), indicesIn(index, {0}, 4)}, {{type, {0, 2}}});
    }
}

TEST(CudaIndexing, GatherElementsAndNd) {
  for (DType index : kIndexTypes)
    for (DType type : kTypes) {
      compare({"GatherElements", 13, attributes({{"axis", int64_t(1)}})},
              {randomBits(type, {4, 6, 3}, 1), indicesIn(index, {3, 9, 2}, 6)}, {{type, {3, 9, 2}}});
      compare({"GatherND", 13}, {randomBits(type, {4, 4, 5}, 1), indicesIn(index, {3, 2}, 4)}, {{type, {3, 5}}});
      compare({"GatherND", 13, attributes({{"batch_dims", int64_t(1)}})},
              {randomBits(type, {2, 5, 3}, 1), indicesIn(index, {2, 7, 1}, 5)}, {{type, {2, 7, 3}}});
    }
}

TEST(CudaIndexing, OneHot) {
  for (DType type : kTypes) {
    Array depth = i64({}, {6}), values(type, {2}, {0, 1});
    for (int64_t axis : {-1, 0})
      compare({"OneHot", 11, attributes({{"axis", axis}})}, {i64({2, 4}, {0, 1, 5, 6, -1, -6, -7, 3}), depth, values},
              {{type, axis ? Dims{2, 4, 6} : Dims{6, 2, 4}}}, 0, 1);
    compare({"OneHot", 11}, {f32({5}, {0.5, -2.5, 100, -100, 5}), depth, values}, {{type, {5, 6}}}, 0, 1);
  }
}

/// Sums in double on both sides, in the same order.
TEST(CudaIndexing, GatherGradient) {
  for (DType index : kIndexTypes)
    for (DType type : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
      compare({"gather_grad", 1, {}, "recast"},
              {randomArray(type, {40, 3}, 1), indicesIn(index, {40}, 9), i64({2}, {9, 3})}, {{type, {9, 3}}});
      compare({"gather_grad", 1, attributes({{"axis", int64_t(1)}}), "recast"},
              {randomArray(type, {2, 6, 5}, 1), indicesIn(index, {2, 3}, 300), i64({3}, {2, 300, 5})},
              {{type, {2, 300, 5}}});
    }
  // More than one tile of the sort, and keys of three digits.
  compare({"gather_grad", 1, {}, "recast"},
          {randomArray(DType::F32, {2500, 1}, 1), indicesIn(DType::I64, {2500}, 70000), i64({2}, {70000, 1})},
          {{DType::F32, {70000, 1}}});
  compare({"gather_grad", 1, {}, "recast"}, {Array(DType::F32, {0, 3}), i64({0}, {}), i64({2}, {2, 3})},
          {{DType::F32, {2, 3}}});
}

TEST(CudaIndexing, Scatter) {
  for (const char *reduction : {"none", "add", "mul", "max", "min"})
    for (DType type :
         {DType::F32, DType::BF16, DType::F64, DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::Bool}) {
      if (type == DType::Bool && std::string_view(reduction) != "none")
        continue;
      auto values = [&](Dims dims, uint64_t seed) {
        return isFloat(type) ? randomArray(type, std::move(dims), seed) : randomBits(type, std::move(dims), seed);
      };
      Attributes attrs = attributes({{"reduction", reduction}});
      compare({"ScatterND", 18, attrs}, {values({5, 4, 3}, 1), indicesIn(DType::I64, {7, 2}, 4), values({7, 3}, 2)},
              {{type, {5, 4, 3}}});
      compare({"ScatterND", 18, attrs}, {values({6}, 1), indicesIn(DType::I64, {2, 5, 1}, 6), values({2, 5}, 2)},
              {{type, {6}}});
      attrs.set("axis", int64_t(1));
      compare({"ScatterElements", 18, attrs},
              {values({3, 5}, 1), indicesIn(DType::I32, {2, 11}, 5), values({2, 11}, 2)}, {{type, {3, 5}}});
    }
}

TEST(CudaIndexing, BadIndicesAreReported) {
  struct Case {
    Op op;
    std::vector<Array> inputs;
    TensorType output;
  };
  Array data = randomArray(DType::F32, {4, 3}, 1);
  for (const Case &c :
       {Case{{"Gather", 13}, {data, i64({3}, {0, 4, 9})}, {DType::F32, {3, 3}}},
        Case{{"GatherElements", 13}, {data, i64({1, 3}, {0, -5, 1})}, {DType::F32, {1, 3}}},
        Case{{"GatherND", 13}, {data, i64({2, 1}, {3, 4})}, {DType::F32, {2, 3}}},
        Case{{"gather_grad", 1, {}, "recast"},
             {randomArray(DType::F32, {3, 3}, 2), i64({3}, {0, 4, 1}), i64({2}, {4, 3})},
             {DType::F32, {4, 3}}},
        Case{{"ScatterND", 18}, {data, i64({2, 1}, {3, 4}), randomArray(DType::F32, {2, 3}, 2)}, {DType::F32, {4, 3}}},
        Case{{"ScatterElements", 18},
             {data, i64({1, 3}, {0, -5, 1}), randomArray(DType::F32, {1, 3}, 2)},
             {DType::F32, {4, 3}}}}) {
    Status status = Status::success();
    runEmulated(c.op, c.inputs, {c.output}, SIZE_MAX, status);
    ASSERT_FALSE(status.ok()) << c.op.name;
    EXPECT_THAT(status.message(), testing::HasSubstr("'step' (" + c.op.name + "): the value at position 1 is out of"));
  }
}

} // namespace
} // namespace recast::cuda::test
