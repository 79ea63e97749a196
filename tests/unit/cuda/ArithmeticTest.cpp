// Division, remainders and powers against the reference evaluator: equal bit for bit, with every kind of broadcasting.
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

constexpr DType kIntegers[] = {DType::I8, DType::I16, DType::I32, DType::I64,
                               DType::U8, DType::U16, DType::U32, DType::U64};
constexpr DType kFloats[] = {DType::F32, DType::F16, DType::BF16};

/// Numbers of both signs where the type has them, large and small; 0 only where asked for.
Array numbers(DType type, Dims dims, int64_t seed, bool withZero) {
  Array x(type, std::move(dims));
  bool isSigned = isFloat(type) || name(type).starts_with("i");
  for (size_t i = 0; i < static_cast<size_t>(x.type.elems()); ++i) {
    int64_t value = (static_cast<int64_t>(i) * 37 + seed) % 101;
    if (isSigned && (i + static_cast<size_t>(seed)) % 3 == 0)
      value = -value;
    x.set(i, static_cast<double>(value == 0 && !withZero ? 1 : value));
  }
  return x;
}

const std::pair<Dims, Dims> kShapes[] = {{{4, 3, 5}, {4, 3, 5}}, {{4, 3, 5}, {}},     {{}, {7}},
                                         {{4, 3, 5}, {3, 1}},    {{4, 1, 5}, {3, 1}}, {{2, 1, 3}, {5, 1, 2, 6, 1}}};

void compareAll(const Op &op, DType type, DType second, bool withZero) {
  for (const auto &[a, b] : kShapes) {
    std::span<const int64_t> longer = a.size() < b.size() ? b : a, shorter = a.size() < b.size() ? a : b;
    Dims y(longer.begin(), longer.end());
    for (size_t d = 0; d < shorter.size(); ++d)
      if (int64_t &size = y[y.size() - shorter.size() + d]; size == 1)
        size = shorter[d];
    compare(op, {numbers(type, a, 3, true), numbers(second, b, 5, withZero)}, {{type, y}});
  }
}

TEST(CudaArithmetic, QuotientsAndRemaindersOfIntegers) {
  for (DType type : kIntegers) {
    compareAll({"Div", 14}, type, type, false);
    for (int64_t fmod : {0, 1})
      compareAll({"Mod", 13, attributes({{"fmod", fmod}})}, type, type, false);
  }
}

TEST(CudaArithmetic, TheLowestNumberDividedByMinusOne) {
  Array least(DType::I32, {2}), one(DType::I32, {2});
  for (size_t i : {0, 1}) {
    least.set(i, std::numeric_limits<int32_t>::lowest());
    one.set(i, -1);
  }
  for (const char *op : {"Div", "Mod"})
    compare({op, 13}, {least, one}, {{DType::I32, {2}}});
}

TEST(CudaArithmetic, RemaindersOfFloatsAreExact) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (DType type : kFloats)
    for (int64_t fmod : {0, 1}) {
      Op op{"Mod", 13, attributes({{"fmod", fmod}})};
      compareAll(op, type, type, false);
      std::vector<double> edge = {0, -0.0, 1, -1, 0.1, -7.3, 3e4, 65504, 1e-7, -6e-8, inf, -inf, nan, 1e-3};
      if (type != DType::F16)
        edge.insert(edge.end(), {3e38, -1e-38, 1e-40, -2.5e-45, 1.7e30});
      auto count = static_cast<int64_t>(edge.size());
      Array x(type, {count, 1}), y(type, {count});
      for (size_t i = 0; i < edge.size(); ++i) {
        x.set(i, edge[i]);
        y.set(i, edge[i]);
      }
      Status status = Status::success();
      std::vector<TensorType> outputs{{type, {count, count}}};
      std::vector<double> got = runEmulated(op, {x, y}, outputs, SIZE_MAX, status).at(0).values();
      ASSERT_TRUE(status.ok()) << status.message();
      // Not by bits: NaNs differ in theirs.
      reference::test::expectNear(reference::test::run(op, {x, y}, outputs)[0], got, 0);
    }
}

TEST(CudaArithmetic, AZeroIsReportedWhereIntegersAreDivided) {
  for (DType type : kIntegers)
    for (const char *op : {"Div", "Mod"}) {
      Array x = numbers(type, {6}, 1, true), divisor = numbers(type, {6}, 2, false);
      divisor.set(4, 0);
      Status status = Status::success();
      runEmulated({op, 13}, {x, divisor}, {{type, {6}}}, SIZE_MAX, status);
      EXPECT_FALSE(status.ok()) << op;
    }
}

TEST(CudaArithmetic, ConstantDivisorsCannotFail) {
  std::string refusal;
  std::vector<TensorType> outputs{{DType::I64, {3}}};
  for (double divisor : {2.0, 0.0}) {
    std::vector<Array> inputs{i64({3}, {1, 2, 3}), i64({}, {divisor})};
    Program program;
    ASSERT_TRUE(compile(specOf({"Mod", 13}, inputs, outputs, 1), program, refusal)) << refusal;
    EXPECT_EQ(program.mayFail, divisor == 0);
  }
}

TEST(CudaArithmetic, PowersOfIntegers) {
  for (DType type : {DType::I32, DType::I64})
    for (DType exponent : {DType::I32, DType::I64, DType::F32, DType::F64}) {
      Array base = i64({13, 1}, {-7, -3, -2, -1, 0, 1, 2, 3, 4, 10, 16, 27, 1000});
      Array x(type, {13, 1}), e(exponent, {12});
      for (size_t i = 0; i < 13; ++i)
        x.set(i, base.values()[i]);
      double exponents[] = {0, 1, 2, 3, 5, 6, -1, -2, -3, 10, 0.5, 0.25}; // Integers: 0 for the last ones.
      for (size_t i = 0; i < std::size(exponents); ++i)
        e.set(i, exponents[i]);
      compare({"Pow", 13}, {x, e}, {{type, {13, 12}}});
    }
}

} // namespace
} // namespace recast::cuda::test
