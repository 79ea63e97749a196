// Kernels that move elements, over types of every size and shapes with odd sizes, 0 and 1: equal bit for bit.
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

constexpr DType kTypes[] = {DType::Bool, DType::F8E4M3FN, DType::BF16, DType::F32, DType::I64};

bool takesFloat8(std::string_view op) {
  return op != "Trilu" && op != "Tile" && op != "Pad" && op != "DepthToSpace" && op != "SpaceToDepth" &&
         !op.ends_with("_grad");
}
bool isGradient(std::string_view op) { return op.ends_with("_grad"); }

/// One op over all types that the reference evaluator takes; `x` is the first input.
void overTypes(const Op &op, const Dims &x, const std::vector<Array> &constants, const std::vector<Dims> &outputs) {
  for (DType type : kTypes) {
    if ((isFloat8(type) && !takesFloat8(op.name)) || (isGradient(op.name) && type != DType::F32 && type != DType::BF16))
      continue;
    std::vector<Array> inputs = {randomBits(type, x, 3)};
    inputs.insert(inputs.end(), constants.begin(), constants.end());
    std::vector<TensorType> types;
    for (const Dims &dims : outputs)
      types.push_back({type, dims});
    compare(op, inputs, types, 0, 1);
  }
}

TEST(CudaCopy, Transpose) {
  struct Case {
    Dims x, perm;
  };
  for (const Case &c : {Case{{5, 7}, {1, 0}}, Case{{33, 65}, {1, 0}}, Case{{3, 40, 31}, {0, 2, 1}},
                        Case{{2, 3, 4, 5}, {0, 2, 1, 3}}, Case{{2, 3, 4, 5}, {3, 1, 0, 2}}, Case{{1, 6}, {1, 0}},
                        Case{{0, 4}, {1, 0}}, Case{{4, 3, 2}, {2, 0, 1}}, Case{{7}, {0}}}) {
    Dims y;
    for (int64_t axis : c.perm)
      y.push_back(c.x[static_cast<size_t>(axis)]);
    overTypes({"Transpose", 13, attributes({{"perm", c.perm}})}, c.x, {}, {y});
  }
  overTypes({"Transpose", 1}, {3, 2, 5}, {}, {{5, 2, 3}});
}

TEST(CudaCopy, ConcatAndSplit) {
  for (auto [axis, sizes] : {std::pair<int64_t, Dims>{0, {2, 1, 3}}, {1, {5, 0, 2}}, {-1, {3, 3}}}) {
    std::vector<Array> parts;
    std::vector<TensorType> types;
    Dims whole = {4, 6, 5};
    auto at = static_cast<size_t>(axis < 0 ? 2 : axis);
    whole[at] = 0;
    for (int64_t size : sizes) {
      Dims dims = {4, 6, 5};
      dims[at] = size;
      whole[at] += size;
      parts.push_back(randomBits(DType::BF16, dims, 7));
      types.push_back(parts.back().type);
    }
    compare({"Concat", 13, attributes({{"axis", axis}})}, parts, {{DType::BF16, whole}});
    std::vector<double> given(sizes.begin(), sizes.end());
    std::vector<Array> inputs = {randomBits(DType::BF16, whole, 9), i64({static_cast<int64_t>(sizes.size())}, given)};
    compare({"Split", 13, attributes({{"axis", axis}})}, inputs, types, 0, 1);
    types[0] = TensorType(); // An output that nothing reads.
    compare({"Split", 13, attributes({{"axis", axis}})}, inputs, types, 0, 1);
  }
}

TEST(CudaCopy, SliceAndItsGradient) {
  Array starts = i64({2}, {1, -1}), ends = i64({2}, {6, -100}), axes = i64({2}, {0, 2}), steps = i64({2}, {2, -1});
  overTypes({"Slice", 13}, {7, 3, 5}, {starts, ends, axes, steps}, {{3, 3, 5}});
  overTypes({"Slice", 13}, {7, 3, 5}, {i64({1}, {2}), i64({1}, {2}), i64({1}, {1})}, {{7, 0, 5}});
  overTypes({"Slice", 13}, {40}, {i64({1}, {16}), i64({1}, {40}), i64({1}, {0})}, {{24}});
  overTypes({"slice_grad", 1, {}, "recast"}, {3, 3, 5}, {i64({3}, {7, 3, 5}), starts, ends, axes, steps}, {{7, 3, 5}});
}

TEST(CudaCopy, PadAndItsGradient) {
  for (const char *mode : {"constant", "edge", "reflect", "wrap"}) {
    Op op{"Pad", 19, attributes({{"mode", mode}})};
    overTypes(op, {4, 3}, {i64({4}, {2, 1, 1, 2})}, {{7, 6}});
    overTypes(op, {5, 4}, {i64({4}, {-1, 2, 0, -1})}, {{4, 5}});
  }
  compare({"Pad", 19}, {randomBits(DType::F32, {2, 5}, 1), i64({2}, {3, 1}), f32({}, {-2.5}), i64({1}, {1})},
          {{DType::F32, {2, 9}}}, 0, 1);
  compare({"Pad", 19}, {Array(DType::F32, {0, 5}), i64({4}, {1, 0, 1, 0}), f32({}, {1.5})}, {{DType::F32, {2, 5}}}, 0,
          1);
  overTypes({"pad_grad", 1, {}, "recast"}, {7, 6}, {i64({2}, {4, 3}), i64({4}, {2, 1, 1, 2})}, {{4, 3}});
  overTypes({"pad_grad", 1, {}, "recast"}, {4, 5}, {i64({2}, {5, 4}), i64({4}, {-1, 2, 0, -1})}, {{5, 4}});
}

TEST(CudaCopy, ExpandAndTile) {
  overTypes({"Expand", 13}, {3, 1}, {i64({3}, {2, 3, 4})}, {{2, 3, 4}});
  overTypes({"Expand", 13}, {1}, {i64({2}, {3, 0})}, {{3, 0}});
  overTypes({"Expand", 13}, {}, {i64({1}, {1000})}, {{1000}});
  overTypes({"Tile", 13}, {2, 3}, {i64({2}, {3, 2})}, {{6, 6}});
  overTypes({"Tile", 13}, {2, 1, 3}, {i64({3}, {1, 0, 1})}, {{2, 0, 3}});
}

TEST(CudaCopy, WholeTensors) {
  for (const Dims &dims : {Dims{}, Dims{1}, Dims{15}, Dims{16}, Dims{3, 1001}, Dims{0, 3}}) {
    overTypes({"Identity", 16}, dims, {}, {dims});
    for (double condition : {0.0, 1.0})
      for (DType type : kTypes)
        compare({"keep_if", 1, {}, "recast"},
                {boolean({}, {condition}), randomBits(type, dims, 1), randomBits(type, dims, 2)}, {{type, dims}});
    std::vector<Array> several = {randomBits(DType::F32, dims, 4), randomBits(DType::Bool, dims, 5)};
    compare({"barrier", 1, {}, "recast"}, several, {several[0].type, several[1].type});
  }
  overTypes({"Reshape", 21}, {6, 4}, {i64({1}, {24})}, {{24}});
}

TEST(CudaCopy, Triangles) {
  for (int64_t upper : {0, 1})
    for (double k : {-7.0, -1.0, 0.0, 2.0, 1e18}) {
      Op op{"Trilu", 14, attributes({{"upper", upper}})};
      overTypes(op, {2, 4, 5}, {i64({}, {k})}, {{2, 4, 5}});
      overTypes(op, {33, 3}, {i64({}, {k})}, {{33, 3}});
    }
  for (int64_t k : {-2, 0, 3})
    for (DType type : {DType::F32, DType::F16, DType::I64, DType::Bool})
      compare({"EyeLike", 9, attributes({{"k", k}, {"dtype", static_cast<int64_t>(type)}})},
              {randomBits(type, {5, 4}, 1)}, {{type, {5, 4}}});
}

TEST(CudaCopy, Range) {
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64}) {
    auto scalar = [&](double v) { return Array(type, {}, {v}); };
    compare({"Range", 11}, {scalar(-3), scalar(600), scalar(2)}, {{type, {302}}});
  }
}

TEST(CudaCopy, DepthToSpace) {
  for (const char *mode : {"DCR", "CRD"})
    overTypes({"DepthToSpace", 13, attributes({{"blocksize", int64_t(2)}, {"mode", mode}})}, {2, 12, 3, 5}, {},
              {{2, 3, 6, 10}});
  overTypes({"SpaceToDepth", 13, attributes({{"blocksize", int64_t(2)}})}, {2, 3, 6, 10}, {}, {{2, 12, 3, 5}});
}

} // namespace
} // namespace recast::cuda::test
