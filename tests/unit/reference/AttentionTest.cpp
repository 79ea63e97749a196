#include "tests/unit/reference/FiniteDifference.h"
#include <limits>

namespace recast::reference::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
/// Literals come from onnx.reference 1.23 in double, with ten digits.
constexpr double kLiteralTolerance = 1e-9;

TensorType f64Type(std::vector<int64_t> dims) { return {DType::F64, std::move(dims)}; }

TEST(Attention, GroupedQueriesCausal) {
  Op op{"Attention", 23, attributes({{"is_causal", int64_t(1)}})};
  expectNear(
      run(op, {pattern({1, 2, 3, 2}), pattern({1, 1, 3, 2}, 3), pattern({1, 1, 3, 2}, 5)}, {f64Type({1, 2, 3, 2})})[0],
      {0, -1, 0.0868413013, -0.9131586987, -0.100877935, -0.0819665793, 0, -1, 0.1269334652, -0.8730665348,
       0.1128626598, -0.1331719712},
      kLiteralTolerance);
}

TEST(Attention, HeadsWithinThreeDimensions) {
  Op op{"Attention", 23, attributes({{"q_num_heads", int64_t(2)}, {"kv_num_heads", int64_t(2)}})};
  expectNear(run(op, {pattern({1, 2, 4}), pattern({1, 3, 4}, 3), pattern({1, 3, 4}, 5)}, {f64Type({1, 2, 4})})[0],
             {-0.0869372789, -0.7743731299, -0.129645822, 0.8840764951, -0.2917850339, -0.3599095406, 0.6663151476,
              0.1022309512},
             kLiteralTolerance);
}

TEST(Attention, CacheSoftcapAndAFullyMaskedRow) {
  Op op{"Attention", 24, attributes({{"softcap", 2.0f}, {"qk_matmul_output_mode", int64_t(2)}, {"scale", 0.5f}})};
  auto got = run(op,
                 {pattern({1, 1, 2, 2}), pattern({1, 1, 1, 2}, 3), pattern({1, 1, 1, 2}, 5),
                  boolean({2, 3}, {1, 0, 1, 0, 0, 0}), pattern({1, 1, 2, 2}, 6), pattern({1, 1, 2, 2}, 7)},
                 {f64Type({1, 1, 2, 2}), f64Type({1, 1, 3, 2}), f64Type({1, 1, 3, 2}), f64Type({1, 1, 2, 3})});
  // The reference takes the root of a scale that is given in float.
  expectNear(got[0], {0.1398627076, -0.8601372924, 0, 0}, 1e-7);
  expectEqual(got[1], {0.25, -0.75, 1.0, 0.0, -0.5, 1.25});
  expectEqual(got[2], {0.5, -0.5, 1.25, 0.25, 0.0, -1.0});
  expectNear(got[3], {-0.3404046054, -kInf, 0.6054194392, -kInf, -kInf, -kInf}, 1e-7);
}

TEST(Attention, AShortMaskForbidsTheRest) {
  Op op{"Attention", 24, attributes({{"qk_matmul_output_mode", int64_t(3)}})};
  auto got = run(op, {pattern({1, 1, 2, 2}), pattern({1, 1, 3, 2}, 3), pattern({1, 1, 3, 2}, 5), pattern({2, 2}, 4)},
                 {f64Type({1, 1, 2, 2}), TensorType(), TensorType(), f64Type({1, 1, 2, 3})});
  expectNear(got[0], {0.0641157177, -0.9358842823, 0.0344700707, -0.9655299293}, kLiteralTolerance);
  expectNear(got[3], {0.9145123764, 0.0854876236, 0, 0.9540399057, 0.0459600943, 0}, kLiteralTolerance);
}

TEST(Attention, ExternalCacheWithLengths) {
  Op op{"Attention", 24, attributes({{"is_causal", int64_t(1)}})};
  expectNear(run(op,
                 {pattern({2, 1, 2, 2}), pattern({2, 1, 3, 2}, 3), pattern({2, 1, 3, 2}, 5), Array(), Array(), Array(),
                  i64({2}, {2, 3})},
                 {f64Type({2, 1, 2, 2})})[0],
             {0, -1, 0.0868413013, -0.9131586987, 0.0754903867, -0.2846410313, 0.5034477546, -0.0044060322},
             kLiteralTolerance);
}

TEST(Attention, HalfPrecisionRoundsOnce) {
  Op op{"Attention", 23, attributes({{"is_causal", int64_t(1)}})};
  std::vector<Array> halves, doubles;
  for (int64_t seed : {0, 3, 5}) {
    halves.push_back(pattern(DType::F16, {1, 1, 3, 2}, seed));
    doubles.push_back(pattern({1, 1, 3, 2}, seed));
  }
  Array want = run(op, doubles, {f64Type({1, 1, 3, 2})})[0];
  Array rounded(DType::F16, {1, 1, 3, 2}, want.values());
  expectEqual(run(op, halves, {{DType::F16, {1, 1, 3, 2}}})[0], rounded.values());
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  Array q = pattern({1, 3, 2, 2}), k = pattern({1, 2, 2, 2});
  EXPECT_NE(refusalOf({"Attention", 23}, {q, k, k}, {q.type}), "");
  EXPECT_NE(refusalOf({"Attention", 23}, {q, q, q, pattern({3, 2})}, {q.type}), "");
  Array flat = pattern({1, 2, 4});
  EXPECT_NE(refusalOf({"Attention", 23}, {flat, flat, flat}, {flat.type}), "");
}

TEST(RotaryEmbedding, HalvesOfAPart) {
  Op op{"RotaryEmbedding", 23, attributes({{"rotary_embedding_dim", int64_t(2)}})};
  expectEqual(
      run(op, {pattern({1, 1, 2, 4}), pattern({1, 2, 1}, 1), pattern({1, 2, 1}, 2)}, {f64Type({1, 1, 2, 4})})[0],
      {1.625, 0.4375, -0.5, 1.25, 0.9375, -0.3125, 1.0, 0.0});
}

TEST(RotaryEmbedding, InterleavedByPosition) {
  Op op{"RotaryEmbedding", 23, attributes({{"interleaved", int64_t(1)}, {"num_heads", int64_t(2)}})};
  std::vector<Array> inputs = {pattern({1, 2, 4}), pattern({3, 1}, 1), pattern({3, 1}, 2), i64({1, 2}, {2, 0})};
  expectEqual(run(op, inputs, {f64Type({1, 2, 4})})[0], {0.3125, -0.125, 0.125, -0.3125, -0.8125, 0.5625, -1.0, -0.75});
  inputs[3] = i64({1, 2}, {2, 3});
  Status status = Status::success();
  tryRun(op, inputs, {f64Type({1, 2, 4})}, status);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("position 3 is outside [0, 2]"), std::string::npos);
}

} // namespace
} // namespace recast::reference::test
