#include "ReferenceTest.h"

namespace recast::reference::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kTypes[] = {DType::F8E4M3FN, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F8E8M0};

template <typename T> class Float8Test : public testing::Test {};
using Rounding = testing::Types<Float8E4M3FN, Float8E4M3FNUZ, Float8E5M2, Float8E5M2FNUZ>;
TYPED_TEST_SUITE(Float8Test, Rounding);

TYPED_TEST(Float8Test, EveryByteComesBack) {
  for (int code = 0; code < 256; ++code) {
    auto value = TypeParam::fromBits(static_cast<uint8_t>(code));
    if (std::isfinite(float(value)))
      EXPECT_EQ(TypeParam(double(float(value))).bits, code);
    else
      EXPECT_EQ(std::isnan(float(value)), std::isnan(float(TypeParam::round(float(value), /*saturate=*/false))));
  }
}

// The definition of rounding: no representable number is nearer, and a tie goes to the even one.
TYPED_TEST(Float8Test, RoundsToNearestEvenOnce) {
  for (int code = 0; code < TypeParam::kLargest; ++code) {
    double below = float(TypeParam::fromBits(static_cast<uint8_t>(code)));
    double above = float(TypeParam::fromBits(static_cast<uint8_t>(code + 1))), middle = (below + above) / 2;
    EXPECT_EQ(TypeParam(middle).bits, code % 2 ? code + 1 : code);
    // Closer to the middle than a float can tell: rounding to float first would make a tie of it.
    EXPECT_EQ(TypeParam(middle * (1 + 0x1p-50)).bits, code + 1);
    EXPECT_EQ(TypeParam(middle * (1 - 0x1p-50)).bits, code);
  }
}

TYPED_TEST(Float8Test, SaturatesOnlyWhereAsked) {
  float most = TypeParam::largest();
  for (double beyond : {double(most) * 1.5, 1e30, kInf}) {
    EXPECT_EQ(float(TypeParam::round(static_cast<float>(beyond), true)), most);
    EXPECT_EQ(float(TypeParam::round(static_cast<float>(-beyond), true)), -most);
    EXPECT_FALSE(std::isfinite(float(TypeParam::round(static_cast<float>(beyond), false))));
  }
  EXPECT_TRUE(std::isnan(float(TypeParam::round(std::nanf(""), true))));
}

TEST(Float8, LargestNumbersAreThoseOfTheTypes) {
  EXPECT_EQ(Float8E4M3FN::largest(), 448);
  EXPECT_EQ(Float8E5M2::largest(), 57344);
  EXPECT_EQ(Float8E4M3FNUZ::largest(), 240);
  EXPECT_EQ(Float8E5M2FNUZ::largest(), 57344);
  EXPECT_EQ(float(Float8E8M0(1e40)), 0x1p127f);
  EXPECT_EQ(float(Float8E8M0::fromBits(0)), 0x1p-127f);
}

TEST(Float8, OnlyMovesAndConversionsTakeThem) {
  for (DType type : kTypes) {
    Array x(type, {2, 3});
    EXPECT_EQ(refusalOf({"Add", 14}, {x, x}, {{type, {2, 3}}}), std::string(name(type)) + " is not supported");
    for (size_t i = 0; i < 6; ++i)
      x.bytes[i] = std::byte(i);
    Array y = run({"Transpose", 21, attributes({{"perm", std::vector<int64_t>{1, 0}}})}, {x}, {{type, {3, 2}}})[0];
    EXPECT_EQ(y.bytes[1], std::byte(3));
  }
}

TEST(Float8, IntegersAndBoolsCast) {
  Array x(DType::I64, {4}, {0, 3, -500, 17});
  Array q = run({"Cast", 21}, {x}, {{DType::F8E4M3FN, {4}}})[0];
  expectEqual(run({"Cast", 21}, {q}, {{DType::I32, {4}}})[0], {0, 3, -448, 16});
  expectEqual(run({"Cast", 21}, {q}, {{DType::Bool, {4}}})[0], {0, 1, 1, 1});
  expectEqual(run({"Cast", 21}, {q}, {{DType::F64, {4}}})[0], {0, 3, -448, 16});
}

TEST(Quantization, RefusesScalesThatDoNotFit) {
  auto refusal = [](std::vector<int64_t> scale, Attributes attrs) {
    return refusalOf({"QuantizeLinear", 21, std::move(attrs)}, {Array(DType::F32, {4, 6}), Array(DType::F32, scale)},
                     {{DType::F8E4M3FN, {4, 6}}});
  };
  EXPECT_EQ(refusal({}, {}), "");
  EXPECT_EQ(refusal({6}, {}), "");
  EXPECT_EQ(refusal({4, 3}, attributes({{"axis", int64_t(1)}, {"block_size", int64_t(2)}})), "");
  EXPECT_NE(refusal({4}, {}), "");
  EXPECT_NE(refusal({4, 2}, attributes({{"axis", int64_t(1)}, {"block_size", int64_t(2)}})), "");
  EXPECT_NE(refusal({4, 3}, attributes({{"axis", int64_t(2)}, {"block_size", int64_t(2)}})), "");
}

Op train(std::string name, Attributes attrs) { return {std::move(name), 1, std::move(attrs), "recast"}; }

TEST(Fp8, AmaxPropagatesNaNAndInfinity) {
  Attributes to = attributes({{"to", int64_t(DType::F8E4M3FN)}});
  for (double special : {kInf, kNaN}) {
    Array x(DType::BF16, {3}, {1, special, -700});
    auto out = run(train("quantize_fp8", to), {x, f32({}, {0.5})}, {{DType::F8E4M3FN, {3}}, {DType::F32, {}}});
    expectEqual(out[1], {special});
    expectEqual(run({"Cast", 21}, {out[0]}, {{DType::F32, {3}}})[0], {0.5, std::isinf(special) ? 448 : kNaN, -352});
  }
}

// A tensor that many threads share: amaxes of tiles must not depend on who comes first.
TEST(Fp8, TilesAreTheSameOnEveryRun) {
  Array x = randomArray(DType::F32, {96, 700}, 3);
  Attributes attrs = attributes({{"to", int64_t(DType::F8E5M2)},
                                 {"tile", std::vector<int64_t>{32, 0}},
                                 {"rule", std::string("pow2")},
                                 {"scale_type", int64_t(DType::F32)}});
  std::vector<TensorType> types = {{DType::F8E5M2, {96, 700}}, {DType::F32, {3, 1}}};
  auto first = run(train("quantize_fp8_tiles", attrs), {x}, types);
  for (int64_t t = 0; t < 3; ++t) {
    double amax = 0;
    for (size_t i = 0; i < 32 * 700; ++i)
      amax = std::max(amax, std::fabs(x.get(static_cast<size_t>(t) * 32 * 700 + i)));
    // The smallest power of two that brings the tile into the type's range.
    double inverse = first[1].get(static_cast<size_t>(t));
    EXPECT_LE(amax / inverse, 57344);
    EXPECT_GT(amax / (inverse / 2), 57344);
  }
  for (int i = 0; i < 5; ++i) {
    auto again = run(train("quantize_fp8_tiles", attrs), {x}, types);
    EXPECT_EQ(again[0].bytes, first[0].bytes);
    EXPECT_EQ(again[1].bytes, first[1].bytes);
  }
}

} // namespace
} // namespace recast::reference::test
