// MatMul, Gemm, Einsum and MatMulInteger of the reference evaluator. Literals come from NumPy.
#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

using Dims = std::vector<int64_t>;

// Sums of at most 300 products of values below 1, in double: 300 * 2^-53 and a margin for another order.
constexpr double kTolerance = 1e-13;

int64_t fromEnd(const Dims &dims, size_t i) { return i < dims.size() ? dims[dims.size() - 1 - i] : 1; }

/// NumPy's matmul for operands of at least two dimensions, by its definition.
Array naiveMatMul(const Array &a, const Array &b) {
  const Dims &aDims = a.type.dims, &bDims = b.type.dims;
  int64_t m = fromEnd(aDims, 1), k = fromEnd(aDims, 0), n = fromEnd(bDims, 0);
  size_t rank = std::max(aDims.size(), bDims.size());
  Dims yDims(rank);
  for (size_t i = 2; i < rank; ++i)
    yDims[rank - 1 - i] = std::max(fromEnd(aDims, i), fromEnd(bDims, i));
  yDims[rank - 2] = m, yDims[rank - 1] = n;
  Array y(a.type.dtype, yDims);
  for (int64_t at = 0; at < y.type.elems(); ++at) {
    int64_t j = at % n, i = at / n % m, batch = at / n / m, aAt = 0, bAt = 0, aStride = m * k, bStride = k * n;
    for (size_t d = 2; d < rank; ++d) {
      int64_t index = batch % fromEnd(yDims, d);
      batch /= fromEnd(yDims, d);
      aAt += fromEnd(aDims, d) == 1 ? 0 : index * aStride;
      bAt += fromEnd(bDims, d) == 1 ? 0 : index * bStride;
      aStride *= fromEnd(aDims, d), bStride *= fromEnd(bDims, d);
    }
    double sum = 0;
    for (int64_t p = 0; p < k; ++p)
      sum += a.get(static_cast<size_t>(aAt + i * k + p)) * b.get(static_cast<size_t>(bAt + p * n + j));
    y.set(static_cast<size_t>(at), sum);
  }
  return y;
}

Array matMul(const Array &a, const Array &b, Dims dims) {
  return run({"MatMul", 13}, {a, b}, {{a.type.dtype, std::move(dims)}})[0];
}

TEST(MatMul, AgreesWithItsDefinition) {
  struct {
    Dims a, b;
  } const shapes[] = {{{1, 1}, {1, 1}},       {{5, 7}, {7, 3}},          {{33, 129}, {129, 65}},
                      {{64, 256}, {256, 64}}, {{2, 3, 4}, {4, 5}},       {{2, 3, 4}, {2, 4, 5}},
                      {{3, 4}, {2, 4, 5}},    {{2, 1, 3, 4}, {5, 4, 6}}, {{1, 3, 4}, {2, 2, 4, 1}},
                      {{300, 2}, {2, 1}},     {{1, 300}, {300, 70}}};
  for (const auto &shape : shapes) {
    Array a = randomArray(DType::F64, shape.a, 1), b = randomArray(DType::F64, shape.b, 2);
    Array want = naiveMatMul(a, b);
    expectNear(matMul(a, b, want.type.dims), want.values(), kTolerance);
  }
}

TEST(MatMul, VectorsLoseTheirIndex) {
  Array v = f64({3}, {1, 2, 3}), m = f64({3, 2}, {1, 2, 3, 4, 5, 6}), t = f64({2, 3}, {1, 2, 3, 4, 5, 6});
  expectEqual(matMul(v, v, {}), {14});
  expectEqual(matMul(v, m, {2}), {22, 28});
  expectEqual(matMul(t, v, {2}), {14, 32});
  Array batch = f64({2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  expectEqual(matMul(batch, v, {2, 2}), {14, 32, 50, 68});
}

TEST(MatMul, EmptySumsAreZeroAndEmptyOutputsAreFine) {
  expectEqual(matMul(f64({2, 0}, {}), f64({0, 3}, {}), {2, 3}), {0, 0, 0, 0, 0, 0});
  expectEqual(matMul(f64({0, 4}, {}), f64({4, 3}, std::vector<double>(12, 1)), {0, 3}), {});
}

TEST(MatMul, RoundsOnceToNarrowTypes) {
  // 2048 + 1 is a tie in f16 and 256 + 1 in bf16; with 0.25 more, which a rounded partial sum loses, both round up.
  Array ones(DType::F16, {3, 1}, {1, 1, 1});
  expectEqual(matMul({DType::F16, {1, 3}, {2048, 1, 0.25}}, ones, {1, 1}), {2050});
  Array onesB(DType::BF16, {3, 1}, {1, 1, 1});
  expectEqual(matMul({DType::BF16, {1, 3}, {256, 1, 0.25}}, onesB, {1, 1}), {258});
}

TEST(MatMul, IntegersWrap) {
  expectEqual(matMul({DType::I32, {1, 2}, {2147483647, 3}}, {DType::I32, {2, 1}, {2, 4}}, {1, 1}), {10});
  expectEqual(matMul({DType::U32, {1, 1}, {4294967295}}, {DType::U32, {1, 1}, {2}}, {1, 1}), {4294967294});
}

TEST(MatMul, ThreadsDoNotChangeBits) {
  Array a = randomArray(DType::F32, {3, 100, 200}, 1), b = randomArray(DType::F32, {3, 200, 90}, 2);
  int threads = threadCount();
  setThreadCount(1);
  Array one = matMul(a, b, {3, 100, 90});
  setThreadCount(2);
  Array two = matMul(a, b, {3, 100, 90});
  setThreadCount(threads);
  EXPECT_EQ(one.bytes, two.bytes);
}

TEST(MatMul, RefusesWhatItCannotTake) {
  EXPECT_EQ(refusalOf({"MatMul", 13}, {Array(DType::U8, {1, 1}), Array(DType::U8, {1, 1})}, {{DType::U8, {1, 1}}}),
            "u8 is not supported");
  EXPECT_EQ(refusalOf({"MatMul", 13}, {f32({}, {1}), f32({1, 1}, {1})}, {{DType::F32, {1}}}), "a scalar operand");
}

TEST(Gemm, TransposesScalesAndBroadcasts) {
  constexpr int64_t m = 5, n = 37, k = 19;
  for (bool transA : {false, true})
    for (bool transB : {false, true})
      for (Dims cDims : {Dims{}, Dims{n}, Dims{1}, Dims{1, n}, Dims{m, 1}, Dims{m, n}}) {
        Array a = randomArray(DType::F64, transA ? Dims{k, m} : Dims{m, k}, 1);
        Array b = randomArray(DType::F64, transB ? Dims{n, k} : Dims{k, n}, 2), c = randomArray(DType::F64, cDims, 3);
        Op gemm{
            "Gemm", 13,
            attributes({{"alpha", 0.5f}, {"beta", -2.0f}, {"transA", int64_t(transA)}, {"transB", int64_t(transB)}})};
        std::vector<double> want;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t p = 0; p < k; ++p)
              sum += a.get(static_cast<size_t>(transA ? p * m + i : i * k + p)) *
                     b.get(static_cast<size_t>(transB ? j * k + p : p * n + j));
            int64_t row = cDims.size() == 2 && cDims[0] == m ? i : 0;
            int64_t columns = cDims.empty() ? 1 : cDims.back();
            want.push_back(0.5 * sum - 2 * c.get(static_cast<size_t>(row * columns + (columns == 1 ? 0 : j))));
          }
        expectNear(run(gemm, {a, b, c}, {{DType::F64, {m, n}}})[0], want, kTolerance);
      }
}

TEST(Gemm, WithoutCAndWithBetaZero) {
  Array a = f64({1, 2}, {1, 2}), b = f64({2, 1}, {3, 4}), nan = f64({1}, {NAN});
  expectEqual(run({"Gemm", 13}, {a, b}, {{DType::F64, {1, 1}}})[0], {11});
  expectEqual(run({"Gemm", 13, attributes({{"beta", 0.0f}})}, {a, b, nan}, {{DType::F64, {1, 1}}})[0], {11});
  Array ai(DType::I64, {1, 2}, {1, 2}), bi(DType::I64, {2, 1}, {3, 4}), ci(DType::I64, {1}, {5});
  expectEqual(run({"Gemm", 13}, {ai, bi, ci}, {{DType::I64, {1, 1}}})[0], {16});
}

Op einsum(const char *equation) { return {"Einsum", 12, attributes({{"equation", std::string(equation)}})}; }

TEST(Einsum, AgreesWithNumPy) {
  struct {
    const char *equation;
    std::vector<Dims> operands;
    Dims dims;
    std::vector<double> want;
  } const cases[] = {
      {"ii->i", {{3, 3}}, {3}, {-1.25, 0.25, -1.0}},
      {"ii", {{3, 3}}, {}, {-2.0}},
      {"...ij->...ji",
       {{2, 2, 3}},
       {2, 3, 2},
       {-1.25, 1.25, 0.5, 0.25, -0.5, -0.75, 1.0, 0.75, 0.0, -0.25, -1.0, -1.25}},
      {"ba,ca", {{2, 3}, {4, 3}}, {2, 4}, {1.75, 2.0625, -1.0625, -0.75, -0.875, -1.0625, 2.1875, 2.0}},
      {"bij, bjk -> ik", {{2, 2, 3}, {2, 3, 2}}, {2, 2}, {2.125, -0.0625, -0.5625, 2.1875}},
      {"a...,...b->...", {{2, 3}, {3, 2}}, {3}, {0.0, -1.125, 0.0}},
      {"i,j", {{2}, {3}}, {2, 3}, {1.25, -0.9375, 0.3125, -0.5, 0.375, -0.125}},
      {"ij,jk,kl->il", {{2, 3}, {3, 2}, {2, 2}}, {2, 2}, {-0.65625, 2.1875, 1.265625, -2.6875}},
      {"ijk,j->k", {{2, 3, 2}, {3}}, {2}, {-0.875, 1.5}},
      {"iij,j->i", {{2, 2, 3}, {3}}, {2}, {1.75, -0.625}},
  };
  for (const auto &c : cases) {
    std::vector<Array> operands;
    for (const Dims &dims : c.operands)
      operands.push_back(pattern(dims, static_cast<int64_t>(operands.size())));
    SCOPED_TRACE(c.equation);
    expectNear(run(einsum(c.equation), operands, {{DType::F64, c.dims}})[0], c.want, kTolerance);
  }
}

TEST(Einsum, BatchedAttentionIsMatMul) {
  // q [batch, token, head, d], k [batch, token', head, d]: scores [batch, head, token, token'].
  Array q = randomArray(DType::F32, {2, 5, 3, 4}, 1), k = randomArray(DType::F32, {2, 6, 3, 4}, 2);
  Array scores = run(einsum("bthd,bshd->bhts"), {q, k}, {{DType::F32, {2, 3, 5, 6}}})[0];
  Op transpose{"Transpose", 13, attributes({{"perm", std::vector<int64_t>{0, 2, 1, 3}}})};
  Op transposeLast{"Transpose", 13, attributes({{"perm", std::vector<int64_t>{0, 2, 3, 1}}})};
  Array qt = run(transpose, {q}, {{DType::F32, {2, 3, 5, 4}}})[0];
  Array kt = run(transposeLast, {k}, {{DType::F32, {2, 3, 4, 6}}})[0];
  expectEqual(scores, matMul(qt, kt, {2, 3, 5, 6}).values());
}

TEST(Einsum, RefusesMalformedEquations) {
  Array m = pattern({2, 2});
  struct {
    const char *equation, *why;
  } const cases[] = {{"i", "a term whose labels do not match its operand's rank"},
                     {"ij,jk->ik", "not as many terms as operands"},
                     {"i1->i", "malformed equation"},
                     {"ij->ik", "an output label that repeats or is in no input"},
                     {"ij->ii", "an output label that repeats or is in no input"},
                     {"ij->i", "an equation that does not give the output's rank"}};
  for (const auto &c : cases)
    EXPECT_EQ(refusalOf(einsum(c.equation), {m}, {{DType::F64, {2, 2}}}), c.why);
  EXPECT_EQ(refusalOf(einsum("ij,jk"), {m, pattern({3, 2})}, {{DType::F64, {2, 2}}}), "a label with two sizes");
}

TEST(MatMulInteger, SubtractsZeroPoints) {
  // The example of the ONNX operator's test: a - 12.
  Array a(DType::U8, {4, 3}, {11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0}), b(DType::U8, {3, 2}, {1, 4, 2, 5, 3, 6});
  Array zeroA(DType::U8, {1}, {12}), zeroB(DType::U8, {1}, {0});
  expectEqual(run({"MatMulInteger", 10}, {a, b, zeroA, zeroB}, {{DType::I32, {4, 2}}})[0],
              {-38, -83, -44, -98, -50, -113, -56, -128});
}

} // namespace
} // namespace recast::reference::test
