#include "ReferenceTest.h"
#include "runtime/kernels/Parallel.h"
#include "runtime/reference/CounterRandom.h"
#include <numbers>

namespace recast::reference::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Array binary(const Op &op, const Array &a, const Array &b, TensorType type) { return run(op, {a, b}, {type})[0]; }

TEST(Elementwise, BroadcastsBothOperands) {
  Array a = f32({2, 1, 3}, {1, 2, 3, 4, 5, 6}), b = f32({2, 1}, {10, 20});
  expectEqual(binary({"Add", 14}, a, b, {DType::F32, {2, 2, 3}}), {11, 12, 13, 21, 22, 23, 14, 15, 16, 24, 25, 26});
  expectEqual(binary({"Sub", 14}, b, a, {DType::F32, {2, 2, 3}}), {9, 8, 7, 19, 18, 17, 6, 5, 4, 16, 15, 14});
  expectEqual(binary({"Mul", 14}, f32({}, {3}), f32({}, {4}), {DType::F32, {}}), {12});
  expectEqual(binary({"Div", 14}, f32({}, {1}), f32({3}, {0, 4, -0.0}), {DType::F32, {3}}), {kInf, 0.25, -kInf});
  expectEqual(binary({"Add", 14}, f32({0, 3}, {}), f32({3}, {1, 2, 3}), {DType::F32, {0, 3}}), {});
}

TEST(Elementwise, BroadcastsAtTwelveDimensions) {
  std::vector<int64_t> aDims(12, 1), bDims(12, 1), yDims(12, 1);
  for (size_t d = 0; d < 12; d += 2)
    aDims[d] = yDims[d] = 2, bDims[d + 1] = yDims[d + 1] = 2;
  Array a = randomArray(DType::F32, aDims, 1), b = randomArray(DType::F32, bDims, 2);
  std::vector<double> want;
  for (unsigned i = 0; i < 4096; ++i) {
    unsigned ai = 0, bi = 0;
    for (int bit = 11; bit >= 0; --bit)
      (bit % 2 ? ai : bi) = (bit % 2 ? ai : bi) * 2 + (i >> bit & 1);
    want.push_back(static_cast<float>(a.get(ai)) * static_cast<float>(b.get(bi)));
  }
  expectEqual(binary({"Mul", 14}, a, b, {DType::F32, yDims}), want);
  aDims.push_back(1);
  EXPECT_EQ(refusalOf({"Neg", 13}, {Array(DType::F32, aDims)}, {{DType::F32, aDims}}), "rank 13 is above 12");
}

TEST(Elementwise, OldOperatorsAlignByAxis) {
  Array a = f32({2, 3, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Attributes attrs = attributes({{"broadcast", int64_t(1)}, {"axis", int64_t(1)}});
  expectEqual(binary({"Add", 6, attrs}, a, f32({3}, {10, 20, 30}), {DType::F32, {2, 3, 2}}),
              {10, 11, 22, 23, 34, 35, 16, 17, 28, 29, 40, 41});
  attrs = attributes({{"broadcast", int64_t(1)}});
  expectEqual(binary({"Mul", 6, attrs}, a, f32({2}, {1, -1}), {DType::F32, {2, 3, 2}}),
              {0, -1, 2, -3, 4, -5, 6, -7, 8, -9, 10, -11});
  expectEqual(binary({"Sub", 1, attrs}, a, f32({1, 1}, {1}), {DType::F32, {2, 3, 2}}),
              {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
}

TEST(Elementwise, IntegersWrapAndDivideTowardsZero) {
  Array a = {DType::I8, {4}, {127, -128, -7, 7}}, b = {DType::I8, {4}, {1, -1, 2, -2}};
  expectEqual(binary({"Add", 14}, a, b, {DType::I8, {4}}), {-128, 127, -5, 5});
  expectEqual(binary({"Mul", 14}, a, b, {DType::I8, {4}}), {127, -128, -14, -14});
  expectEqual(binary({"Div", 14}, a, b, {DType::I8, {4}}), {127, -128, -3, -3});
  expectEqual(binary({"Mod", 13}, a, b, {DType::I8, {4}}), {0, 0, 1, -1});
  expectEqual(binary({"Mod", 13, attributes({{"fmod", int64_t(1)}})}, a, b, {DType::I8, {4}}), {0, 0, -1, 1});
  expectEqual(run({"Neg", 13}, {a}, {{DType::I8, {4}}})[0], {-127, -128, 7, -7});
  expectEqual(run({"Abs", 13}, {a}, {{DType::I8, {4}}})[0], {127, -128, 7, 7});
  expectEqual(run({"Sign", 13}, {a}, {{DType::I8, {4}}})[0], {1, -1, -1, 1});
}

TEST(Elementwise, IntegerDivisionByZeroNamesTheNode) {
  for (const char *op : {"Div", "Mod"}) {
    Status status = Status::success();
    tryRun({op, 13}, {i64({2}, {1, 2}), i64({2}, {1, 0})}, {{DType::I64, {2}}}, status);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.message(), "node 'step' (" + std::string(op) + "): integer division by zero");
  }
}

TEST(Elementwise, RemaindersOfFloats) {
  Array a = f32({6}, {5.5, -5.5, 5.5, -5.5, 1, -0.0}), b = f32({6}, {2, 2, -2, -2, kInf, 3});
  expectEqual(binary({"Mod", 13, attributes({{"fmod", int64_t(1)}})}, a, b, {DType::F32, {6}}),
              {1.5, -1.5, 1.5, -1.5, 1, -0.0});
  expectEqual(binary({"Mod", 28}, a, b, {DType::F32, {6}}), {1.5, 0.5, -0.5, -1.5, 1, 0});
}

TEST(Elementwise, PowersOfMixedTypes) {
  expectEqual(binary({"Pow", 15}, f32({3}, {1.5, -2, 3}), f32({}, {2}), {DType::F32, {3}}), {2.25, 4, 9});
  expectEqual(binary({"Pow", 15}, f32({2}, {1.5, -2}), i64({1}, {3}), {DType::F32, {2}}), {3.375, -8});
  expectEqual(binary({"Pow", 15}, f32({2}, {4, -2}), i64({2}, {-1, 5}), {DType::F32, {2}}), {0.25, -32});
  expectEqual(binary({"Pow", 15}, i64({5}, {3, 2, -1, -1, 7}), i64({5}, {4, 63, -3, -2, -1}), {DType::I64, {5}}),
              {81, -0x1p63, -1, 1, 0});
  expectEqual(binary({"Pow", 15}, i64({2}, {9, 4}), f32({}, {0.5}), {DType::I64, {2}}), {3, 2});
  expectNear(binary({"Pow", 15}, f64({3}, {2, 0, -8}), f64({3}, {0.5, 0, 1.0 / 3}), {DType::F64, {3}}),
             {std::numbers::sqrt2, 1, kNaN}, 1e-15);
}

TEST(Elementwise, ComparesAndCombines) {
  Array a = f32({4}, {1, 2, kNaN, 0}), b = f32({4}, {2, 2, kNaN, -0.0});
  TensorType type{DType::Bool, {4}};
  expectEqual(binary({"Equal", 19}, a, b, type), {0, 1, 0, 1});
  expectEqual(binary({"Less", 13}, a, b, type), {1, 0, 0, 0});
  expectEqual(binary({"GreaterOrEqual", 16}, a, b, type), {0, 1, 0, 1});
  expectEqual(binary({"LessOrEqual", 16}, a, b, type), {1, 1, 0, 1});
  Array p = boolean({4}, {0, 0, 1, 1}), q = boolean({4}, {0, 1, 0, 1});
  expectEqual(binary({"And", 7}, p, q, type), {0, 0, 0, 1});
  expectEqual(binary({"Or", 7}, p, q, type), {0, 1, 1, 1});
  expectEqual(binary({"Xor", 7}, p, q, type), {0, 1, 1, 0});
  expectEqual(run({"Not", 1}, {p}, {type})[0], {1, 1, 0, 0});
  expectEqual(run({"IsNaN", 20}, {a}, {type})[0], {0, 0, 1, 0});
  Array x = f32({4}, {kInf, -kInf, 1, kNaN});
  expectEqual(run({"IsInf", 20}, {x}, {type})[0], {1, 1, 0, 0});
  expectEqual(run({"IsInf", 20, attributes({{"detect_negative", int64_t(0)}})}, {x}, {type})[0], {1, 0, 0, 0});
}

TEST(Elementwise, ShiftsAndMasksBits) {
  Array a = {DType::U8, {3}, {0xf0, 1, 3}}, b = {DType::U8, {3}, {4, 8, 7}};
  TensorType u8{DType::U8, {3}}, i8{DType::I8, {3}};
  Attributes left = attributes({{"direction", std::string("LEFT")}});
  Attributes right = attributes({{"direction", std::string("RIGHT")}});
  expectEqual(binary({"BitShift", 11, left}, a, b, u8), {0, 0, 128});
  expectEqual(binary({"BitShift", 11, right}, a, b, u8), {15, 0, 0});
  Array c = {DType::I8, {3}, {-8, -8, 8}}, d = {DType::I8, {3}, {1, -1, 9}};
  expectEqual(binary({"BitShift", 28, right}, c, d, i8), {-4, -1, 0});
  expectEqual(binary({"BitwiseAnd", 18}, a, b, u8), {0, 0, 3});
  expectEqual(binary({"BitwiseXor", 18}, a, b, u8), {0xf4, 9, 4});
  expectEqual(run({"BitwiseNot", 18}, {a}, {u8})[0], {15, 254, 252});
}

struct UnaryCase {
  Op op;
  std::vector<double> want;
};

// Values from Python's math module, in double; f32 and the 16-bit types are compared with their own resolution.
TEST(Elementwise, ActivationsHaveKnownValues) {
  const std::vector<double> x = {-3, -1, -0.5, 0, 0.5, 1, 3};
  const UnaryCase cases[] = {
      {{"Gelu", 20},
       {-0.00404969409489031, -0.15865525393145707, -0.15426876936299344, 0, 0.34573123063700656, 0.8413447460685429,
        2.99595030590511}},
      {{"Gelu", 20, attributes({{"approximate", std::string("tanh")}})},
       {-0.0036373920817729943, -0.15880800939172324, -0.15428599017485606, 0, 0.34571400982514394, 0.8411919906082768,
        2.996362607918227}},
      {{"Mish", 22},
       {-0.1456474612756246, -0.30340146137410895, -0.22074377465173, 0, 0.3752452113048951, 0.8650983882673103,
        2.9865350049679575}},
      {{"Softplus", 22},
       {0.04858735157374206, 0.31326168751822286, 0.4740769841801067, 0.6931471805599453, 0.9740769841801067,
        1.3132616875182228, 3.048587351573742}},
      {{"Selu", 22},
       {-1.6705687287671118, -1.1113307378125625, -0.6917581878028713, 0, 0.5253504936777402, 1.0507009873554805,
        3.1521029620664414}},
      {{"Celu", 12, attributes({{"alpha", 2.0f}})},
       {-1.5537396797031404, -0.7869386805747332, -0.44239843385719024, 0, 0.5, 1, 3}},
      {{"Elu", 22, attributes({{"alpha", 0.5f}})},
       {-0.475106465816068, -0.31606027941427883, -0.1967346701436833, 0, 0.5, 1, 3}},
      {{"HardSwish", 22}, {0, -1.0 / 3, -0.5 * 2.5 / 6, 0, 0.5 * 3.5 / 6, 2.0 / 3, 3}},
      {{"HardSigmoid", 22}, {0, 0.3, 0.4, 0.5, 0.6, 0.7, 1}},
      {{"Swish", 24, attributes({{"alpha", 1.5f}})},
       {-0.032960827891779544, -0.18242552380635635, -0.1604106504123035, 0, 0.3395893495876965, 0.8175744761936437,
        2.9670391721082208}},
      {{"Relu", 14}, {0, 0, 0, 0, 0.5, 1, 3}},
      {{"LeakyRelu", 16, attributes({{"alpha", 0.25f}})}, {-0.75, -0.25, -0.125, 0, 0.5, 1, 3}},
      {{"ThresholdedRelu", 22}, {0, 0, 0, 0, 0, 0, 3}},
      {{"Softsign", 22}, {-0.75, -0.5, -1.0 / 3, 0, 1.0 / 3, 0.5, 0.75}},
      {{"Sigmoid", 13},
       {0.04742587317756678, 0.2689414213699951, 0.3775406687981454, 0.5, 0.6224593312018546, 0.7310585786300049,
        0.9525741268224334}},
      {{"Round", 22}, {-3, -1, -0.0, 0, 0, 1, 3}},
      {{"Ceil", 13}, {-3, -1, 0, 0, 1, 1, 3}},
      {{"Sign", 13}, {-1, -1, -1, 0, 1, 1, 1}},
  };
  // In f64 attributes stand for the numbers that their floats were rounded from.
  const std::pair<DType, double> types[] = {
      {DType::F64, 1e-14}, {DType::F32, 1e-6}, {DType::F16, 0x1p-11}, {DType::BF16, 0x1p-8}};
  for (const UnaryCase &c : cases)
    for (auto [dtype, tolerance] : types) {
      SCOPED_TRACE(c.op.name + " " + std::string(name(dtype)));
      expectNear(run(c.op, {Array(dtype, {7}, x)}, {{dtype, {7}}})[0], c.want, tolerance);
    }
}

TEST(Elementwise, ActivationsKeepNaNAndSurviveLargeArguments) {
  Array x = f32({3}, {kNaN, 200, -200});
  TensorType type{DType::F32, {3}};
  expectEqual(run({"Relu", 14}, {x}, {type})[0], {kNaN, 200, 0});
  expectEqual(run({"Sigmoid", 13}, {x}, {type})[0], {kNaN, 1, 0});
  expectEqual(run({"Softplus", 22}, {x}, {type})[0], {kNaN, 200, 0});
  expectEqual(run({"HardSigmoid", 22}, {x}, {type})[0], {kNaN, 1, 0});
  expectEqual(run({"Clip", 13}, {x, f32({}, {-1}), f32({}, {1})}, {type})[0], {kNaN, 1, -1});
  expectEqual(run({"Sign", 13}, {x}, {type})[0], {kNaN, 1, -1});
}

TEST(Elementwise, ClipTakesAttributesOrInputs) {
  Array x = f32({4}, {-2, -0.5, 0.5, 2});
  TensorType type{DType::F32, {4}};
  expectEqual(run({"Clip", 6, attributes({{"min", -1.0f}})}, {x}, {type})[0], {-1, -0.5, 0.5, 2});
  expectEqual(run({"Clip", 13}, {x, Array(), f32({}, {0})}, {type})[0], {-2, -0.5, 0, 0});
  expectEqual(run({"Clip", 13}, {x, f32({}, {1}), f32({}, {-1})}, {type})[0], {-1, -1, -1, -1});
  expectEqual(run({"Clip", 13}, {i64({3}, {-5, 0, 5}), i64({}, {-1}), i64({}, {1})}, {{DType::I64, {3}}})[0],
              {-1, 0, 1});
}

TEST(Elementwise, VariadicOperatorsBroadcastAndRoundOnce) {
  Array a = f32({2, 1}, {1, 2}), b = f32({3}, {10, 20, kNaN}), c = f32({}, {15});
  TensorType type{DType::F32, {2, 3}};
  expectEqual(run({"Sum", 13}, {a, b, c}, {type})[0], {26, 36, kNaN, 27, 37, kNaN});
  expectEqual(run({"Mean", 13}, {a, b, c}, {type})[0], {26.0f / 3, 12, kNaN, 9, 37.0f / 3, kNaN});
  expectEqual(run({"Max", 13}, {a, b, c}, {type})[0], {15, 20, kNaN, 15, 20, kNaN});
  expectEqual(run({"Min", 13}, {a, b, c}, {type})[0], {1, 1, kNaN, 2, 2, kNaN});
  expectEqual(run({"Max", 13}, {i64({2}, {1, 5}), i64({}, {3})}, {{DType::I64, {2}}})[0], {3, 5});
  // In float, 1e8 would swallow the ones.
  expectEqual(run({"Sum", 13}, {f32({}, {1e8}), f32({}, {3}), f32({}, {3}), f32({}, {2})}, {{DType::F32, {}}})[0],
              {1e8 + 8});
}

TEST(Elementwise, WhereBroadcastsThreeOperands) {
  Array c = boolean({2, 1}, {1, 0}), a = f32({3}, {1, 2, 3}), b = f32({}, {-1});
  expectEqual(run({"Where", 16}, {c, a, b}, {{DType::F32, {2, 3}}})[0], {1, 2, 3, -1, -1, -1});
}

TEST(Elementwise, CastsRoundOnceAndTruncate) {
  auto cast = [](const Array &x, DType to) { return run({"Cast", 13}, {x}, {{to, x.type.dims}})[0]; };
  expectEqual(cast(f32({5}, {2.7, -2.7, kNaN, 1e30, -0.5}), DType::I32), {2, -2, 0, 0x7fffffff, 0});
  expectEqual(cast(f32({4}, {0, -0.0, 0.25, kNaN}), DType::Bool), {0, 0, 1, 1});
  expectEqual(cast(i64({3}, {200, -1, 0x1ff}), DType::I8), {-56, -1, -1});
  expectEqual(cast(boolean({2}, {0, 1}), DType::F16), {0, 1});
  // Halfway cases go to even; one ulp of double above halfway goes up.
  expectEqual(cast(f64({3}, {1 + 0x1p-9, 1 + 3 * 0x1p-9, 1 + 0x1p-8 + 0x1p-50}), DType::BF16),
              {1, 1 + 0x1p-7, 1 + 0x1p-7});
  expectEqual(cast(f32({7}, {65519, 65520, 0x1p-25, 0x1.8p-25, -kInf, kNaN, 1 + 0x1p-11}), DType::F16),
              {65504, kInf, 0, 0x1p-24, -kInf, kNaN, 1});
  EXPECT_EQ(refusalOf({"Cast", 13}, {f32({}, {1})}, {{DType::String, {}}}), "string tensors are not supported");
}

TEST(Elementwise, SixteenBitConversionsAgreeWithTheCompilersOwn) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half = std::bit_cast<Half>(static_cast<uint16_t>(bits));
    float value = half;
    Array x(DType::F16, {1}), y(DType::F32, {1}, {value});
    if (std::isnan(value))
      continue;
    std::memcpy(x.bytes.data(), &half, sizeof(half));
    ASSERT_EQ(run({"Cast", 13}, {x}, {{DType::F32, {1}}})[0].get(0), value) << bits;
    ASSERT_EQ(run({"Cast", 13}, {y}, {{DType::F16, {1}}})[0].bytes, x.bytes) << bits;
  }
  std::vector<double> values;
  for (uint32_t i = 0; i < 200000; ++i)
    values.push_back(std::bit_cast<float>(i * 21473u));
  int64_t count = static_cast<int64_t>(values.size());
  Array x = f32({count}, values);
  for (DType to : {DType::F16, DType::BF16})
    expectEqual(run({"Cast", 13}, {x}, {{to, {count}}})[0], Array(to, {count}, values).values());
}

TEST(Elementwise, DropoutPassesThroughOrDrawsTheSameMask) {
  Array x = randomArray(DType::F32, {1000}, 5);
  TensorType type{DType::F32, {1000}}, maskType{DType::Bool, {1000}};
  auto inference = run({"Dropout", 13}, {x, f32({}, {0.5}), boolean({}, {0})}, {type, maskType});
  EXPECT_EQ(inference[0].bytes, x.bytes);
  expectEqual(inference[1], std::vector<double>(1000, 1));
  EXPECT_EQ(run({"Dropout", 7, attributes({{"ratio", 0.5f}})}, {x}, {type})[0].bytes, x.bytes);

  Op op{"Dropout", 13, attributes({{"seed", int64_t(3)}})};
  auto first = run(op, {x, f32({}, {0.25}), boolean({}, {1})}, {type, maskType});
  auto second = run(op, {x, f32({}, {0.25}), boolean({}, {1})}, {type, maskType});
  EXPECT_EQ(first[1].bytes, second[1].bytes);
  int kept = 0;
  for (size_t i = 0; i < 1000; ++i) {
    bool keep = first[1].get(i) != 0;
    kept += keep;
    EXPECT_EQ(first[0].get(i), keep ? static_cast<float>(x.get(i)) * static_cast<float>(1 / 0.75) : 0.0);
  }
  EXPECT_NEAR(kept, 750, 60); // Over four standard deviations of a binomial distribution.
  op.attrs = attributes({{"seed", int64_t(4)}});
  EXPECT_NE(run(op, {x, f32({}, {0.25}), boolean({}, {1})}, {type, maskType})[1].bytes, first[1].bytes);
  expectEqual(run(op, {x, f32({}, {1}), boolean({}, {1})}, {type})[0], std::vector<double>(1000, 0));
}

TEST(Elementwise, RefusesWhatItCannotDo) {
  Array a = f32({1}, {1});
  EXPECT_EQ(refusalOf({"Add", 14}, {a, i64({1}, {1})}, {a.type}), "f32 and i64 differ");
  EXPECT_EQ(refusalOf({"Exp", 13}, {i64({1}, {1})}, {{DType::I64, {1}}}), "i64 is not supported");
  EXPECT_EQ(refusalOf({"Add", 99}, {a, a}, {a.type}), "no kernel for Add version 99");
  EXPECT_EQ(refusalOf({"nothing", 1, {}, "recast"}, {a}, {a.type}), "no kernel for recast.nothing version 1");
}

TEST(Elementwise, ThreadsDoNotChangeResults) {
  int threads = threadCount();
  Array a = randomArray(DType::F32, {37, 1, 61}, 1), b = randomArray(DType::F32, {53, 1}, 2);
  TensorType type{DType::F32, {37, 53, 61}};
  std::vector<std::vector<std::byte>> results;
  for (int count : {1, 2}) {
    setThreadCount(count);
    results.push_back(run({"Add", 14}, {a, b}, {type})[0].bytes);
    results.push_back(run({"Sum", 13}, {a, b, a}, {type})[0].bytes);
  }
  setThreadCount(threads);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(results[1], results[3]);
}

} // namespace
} // namespace recast::reference::test
