#include "ReferenceTest.h"
#include "runtime/kernels/Parallel.h"

namespace recast::reference::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Ints = std::vector<int64_t>;

/// x[i] = ((7 i) mod 11 - 5) / 2 as [2, 3, 4]; the expected values below are NumPy's.
Array sample(DType dtype) {
  Array x(dtype, {2, 3, 4});
  for (size_t i = 0; i < 24; ++i)
    x.set(i, (static_cast<double>(i * 7 % 11) - 5) / 2);
  return x;
}

Array reduced(const std::string &op, const Array &x, Ints axes, Ints dims, int64_t keep = 0) {
  Attributes attrs = attributes({{"axes", axes}, {"keepdims", keep}});
  return run({op, 11, attrs}, {x}, {{x.type.dtype, dims}})[0];
}

TEST(Reduction, SumsOverAnyAxes) {
  for (DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    Array x = sample(dtype);
    expectEqual(reduced("ReduceSum", x, {0}, {3, 4}), {-1.5, 0, 1.5, 3, -1, 0.5, 2, -2, -0.5, 1, -3, -1.5});
    expectEqual(reduced("ReduceSum", x, {1}, {2, 4}), {-4, 1, 0.5, 0, 1, 0.5, 0, -0.5});
    expectEqual(reduced("ReduceSum", x, {-1}, {2, 3}), {0, 1, -3.5, 3, -1.5, -0.5});
    expectEqual(reduced("ReduceSum", x, {2, 0}, {1, 3, 1}, 1), {3, -0.5, -4});
    expectEqual(reduced("ReduceSum", x, {1, 2}, {2}), {-2.5, 1});
    expectEqual(reduced("ReduceSum", x, {}, {}), {-1.5});
  }
}

TEST(Reduction, AxesComeAsInput) {
  Array x = sample(DType::F32);
  expectEqual(run({"ReduceSum", 13}, {x, i64({1}, {-2})}, {{DType::F32, {2, 1, 4}}})[0],
              {-4, 1, 0.5, 0, 1, 0.5, 0, -0.5});
  Op keep{"ReduceSumSquare", 18, attributes({{"noop_with_empty_axes", int64_t(1)}})};
  expectEqual(run(keep, {f32({2}, {-3, 2}), i64({0}, {})}, {{DType::F32, {2}}})[0], {9, 4});
  expectEqual(run({"ReduceMax", 18}, {x}, {{DType::F32, {1, 1, 1}}})[0], {2.5});
  Status status = Status::success();
  tryRun({"ReduceSum", 13}, {x, i64({1}, {3})}, {{DType::F32, {2, 3, 1}}}, status);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "node 'step' (ReduceSum): axis 3 is outside the input's rank 3");
}

TEST(Reduction, OtherReductions) {
  Array x = sample(DType::F64);
  expectNear(reduced("ReduceMean", x, {0, 2}, {3}), {3.0 / 8, -0.5 / 8, -0.5}, 1e-15);
  expectNear(reduced("ReduceL2", x, {1}, {2, 4}),
             {3.24037034920393, 2.345207879911715, 2.29128784747792, 3.5355339059327378, 2.345207879911715,
              2.29128784747792, 3.5355339059327378, 2.29128784747792},
             1e-15);
  expectNear(reduced("ReduceLogSumExp", x, {1}, {2, 4}),
             {0.6238729583693675, 2.0045969023422834, 2.123872958369368, 2.58509724636431, 2.0045969023422834,
              2.123872958369368, 2.58509724636431, 1.5045969023422836},
             1e-14);
  Array y = f32({2, 3}, {1, -2, 3, 4, 5, 6});
  expectEqual(reduced("ReduceL1", y, {1}, {2}), {6, 15});
  expectEqual(reduced("ReduceSumSquare", y, {0}, {3}), {17, 29, 45});
  expectEqual(reduced("ReduceProd", y, {1}, {2}), {-6, 120});
  expectNear(reduced("ReduceLogSum", y, {1}, {2}), {std::log(2), std::log(15)}, 1e-7);
  expectEqual(reduced("ReduceMax", y, {0}, {3}), {4, 5, 6});
  expectEqual(reduced("ReduceMin", y, {1}, {2}), {-2, 4});
}

TEST(Reduction, ExtremesPropagateNaN) {
  Array x = f32({2, 3}, {1, kNaN, 3, -kInf, 2, kInf});
  expectEqual(reduced("ReduceMax", x, {1}, {2}), {kNaN, kInf});
  expectEqual(reduced("ReduceMin", x, {0}, {3}), {-kInf, kNaN, 3});
  std::vector<double> row(100, 1);
  row[37] = kNaN;
  expectEqual(reduced("ReduceMax", f32({100}, row), {0}, {}), {kNaN});
}

TEST(Reduction, LogSumExpSubtractsTheMaximum) {
  expectNear(reduced("ReduceLogSumExp", f32({2, 2}, {1000, 1000, -1000, -1000}), {1}, {2}),
             {1000 + std::log(2), -1000 + std::log(2)}, 1e-7);
  expectEqual(reduced("ReduceLogSumExp", f32({4, 2}, {-kInf, -kInf, kInf, kInf, kInf, 0, kNaN, kInf}), {1}, {4}),
              {-kInf, kInf, kInf, kNaN});
}

TEST(Reduction, EmptySets) {
  Array x(DType::F32, {0, 2});
  expectEqual(reduced("ReduceSum", x, {0}, {2}), {0, 0});
  expectEqual(reduced("ReduceProd", x, {0}, {2}), {1, 1});
  expectEqual(reduced("ReduceMax", x, {0}, {2}), {-kInf, -kInf});
  expectEqual(reduced("ReduceMin", x, {0}, {2}), {kInf, kInf});
  expectEqual(reduced("ReduceLogSumExp", x, {0}, {2}), {-kInf, -kInf});
  expectEqual(reduced("ReduceMean", x, {0}, {2}), {kNaN, kNaN});
  expectEqual(reduced("ReduceSum", x, {1}, {0}), {});
}

TEST(Reduction, Integers) {
  Array x = {DType::I32, {2, 3}, {-7, 2, 3, 0x7fffffff, 1, 1}};
  expectEqual(reduced("ReduceSum", x, {1}, {2}), {-2, -0x7fffffff});
  expectEqual(reduced("ReduceMean", x, {1}, {2}), {0, 715827883});
  expectEqual(reduced("ReduceL1", x, {0}, {3}), {-0x7ffffffa, 3, 4});
  expectEqual(reduced("ReduceMax", x, {1}, {2}), {3, 0x7fffffff});
  expectEqual(reduced("ReduceL2", Array(DType::I64, {2}, {3, -4}), {0}, {}), {5});
  expectEqual(reduced("ReduceMax", boolean({2, 2}, {0, 1, 0, 0}), {1}, {2}), {1, 0});
}

TEST(Reduction, SumsOfHalvesAreRoundedOnce) {
  // In f16 the sum would stop at 2048.
  expectEqual(reduced("ReduceSum", Array(DType::F16, {4096}, std::vector<double>(4096, 1)), {0}, {}), {4096});
  expectEqual(reduced("ReduceSum", Array(DType::BF16, {300, 2}, std::vector<double>(600, 1)), {0}, {2}), {300, 300});
}

TEST(Reduction, ArgMaxTakesTheFirstOrLastOfTies) {
  Array x = f32({2, 4}, {1, 3, 3, 2, kNaN, 5, kNaN, 1});
  auto arg = [&](const char *op, int64_t last, int64_t axis, Ints dims) {
    Attributes attrs = attributes({{"axis", axis}, {"keepdims", int64_t(0)}, {"select_last_index", last}});
    return run({op, 13, attrs}, {x}, {{DType::I64, dims}})[0];
  };
  expectEqual(arg("ArgMax", 0, 1, {2}), {1, 0});
  expectEqual(arg("ArgMax", 1, -1, {2}), {2, 2});
  expectEqual(arg("ArgMin", 0, 1, {2}), {0, 0});
  expectEqual(arg("ArgMax", 0, 0, {4}), {1, 1, 1, 0});
}

TEST(Reduction, CumulativeSums) {
  Array x = f32({2, 3}, {1, 2, 3, 4, 5, 6});
  auto cumulative = [&](const char *op, int64_t version, double axis, int64_t exclusive, int64_t reverse) {
    Attributes attrs = attributes({{"exclusive", exclusive}, {"reverse", reverse}});
    return run({op, version, attrs}, {x, i64({}, {axis})}, {{DType::F32, {2, 3}}})[0];
  };
  expectEqual(cumulative("CumSum", 14, 1, 0, 0), {1, 3, 6, 4, 9, 15});
  expectEqual(cumulative("CumSum", 14, 0, 0, 0), {1, 2, 3, 5, 7, 9});
  expectEqual(cumulative("CumSum", 14, -1, 1, 0), {0, 1, 3, 0, 4, 9});
  expectEqual(cumulative("CumSum", 14, 1, 1, 1), {5, 3, 0, 11, 6, 0});
  expectEqual(cumulative("CumProd", 26, 1, 0, 1), {6, 6, 3, 120, 30, 6});
}

TEST(Reduction, TopKPrefersTheLowerIndex) {
  Array x = f32({2, 4}, {1, 3, 3, 2, 4, 0, 4, 4});
  TensorType values{DType::F32, {2, 3}}, indices{DType::I64, {2, 3}};
  auto top = run({"TopK", 11}, {x, i64({1}, {3})}, {values, indices});
  expectEqual(top[0], {3, 3, 2, 4, 4, 4});
  expectEqual(top[1], {1, 2, 3, 0, 2, 3});
  top = run({"TopK", 11, attributes({{"largest", int64_t(0)}})}, {x, i64({1}, {3})}, {values, indices});
  expectEqual(top[0], {1, 2, 3, 0, 4, 4});
  expectEqual(top[1], {0, 3, 1, 1, 0, 2});
  top = run({"TopK", 1, attributes({{"k", int64_t(1)}, {"axis", int64_t(0)}})}, {x},
            {{DType::F32, {1, 4}}, {DType::I64, {1, 4}}});
  expectEqual(top[0], {4, 3, 4, 4});
  expectEqual(top[1], {1, 0, 1, 1});
  top = run({"TopK", 24}, {f32({3}, {1, kNaN, 2}), i64({1}, {2})}, {{DType::F32, {2}}, {DType::I64, {2}}});
  expectEqual(top[0], {kNaN, 2});
}

TEST(Reduction, SoftmaxNormalisesOneAxisOrTheRest) {
  Array x = f64({2, 2, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
  double e = std::exp(1), a = 1 / (1 + e), b = e / (1 + e);
  TensorType type = x.type;
  expectNear(run({"Softmax", 13}, {x}, {type})[0], {a, b, a, b, a, b, a, b}, 1e-15);
  double c = 1 / (1 + e * e), d = e * e / (1 + e * e);
  expectNear(run({"Softmax", 13, attributes({{"axis", int64_t(1)}})}, {x}, {type})[0], {c, c, d, d, c, c, d, d}, 1e-15);
  double s = 1 + e + e * e + e * e * e, p = 1 / s, q = e / s, r = e * e / s, t = e * e * e / s;
  expectNear(run({"Softmax", 11}, {x}, {type})[0], {p, q, r, t, p, q, r, t}, 1e-15);
  expectNear(run({"LogSoftmax", 13}, {x}, {type})[0],
             {std::log(a), std::log(b), std::log(a), std::log(b), std::log(a), std::log(b), std::log(a), std::log(b)},
             1e-15);
  expectEqual(run({"Hardmax", 13}, {f32({2, 3}, {1, 3, 3, 2, 0, 1})}, {{DType::F32, {2, 3}}})[0], {0, 1, 0, 1, 0, 0});
  expectEqual(run({"Softmax", 13}, {f32({2, 2}, {1e4, 1e4, -kInf, -kInf})}, {{DType::F32, {2, 2}}})[0],
              {0.5, 0.5, kNaN, kNaN});
  // 1/3 to the nearest bf16 and f16.
  expectEqual(run({"Softmax", 13}, {Array(DType::BF16, {3})}, {{DType::BF16, {3}}})[0],
              {0x1.56p-2, 0x1.56p-2, 0x1.56p-2});
  expectEqual(run({"Softmax", 13}, {Array(DType::F16, {3})}, {{DType::F16, {3}}})[0],
              {0x1.554p-2, 0x1.554p-2, 0x1.554p-2});
}

TEST(Reduction, ThreadsDoNotChangeResults) {
  int threads = threadCount();
  Array x = randomArray(DType::F32, {41, 67, 131}, 9);
  std::vector<std::vector<std::byte>> results[2];
  for (int count : {1, 2}) {
    setThreadCount(count);
    auto &to = results[count - 1];
    for (Ints axes : {Ints{0}, Ints{1}, Ints{2}, Ints{0, 2}, Ints{0, 1}, Ints{0, 1, 2}}) {
      Ints dims = x.type.dims;
      for (int64_t axis : axes)
        dims[static_cast<size_t>(axis)] = 1;
      for (const char *op : {"ReduceSum", "ReduceLogSumExp"})
        to.push_back(reduced(op, x, axes, dims, 1).bytes);
    }
    to.push_back(run({"Softmax", 13, attributes({{"axis", int64_t(1)}})}, {x}, {x.type})[0].bytes);
    to.push_back(
        run({"TopK", 11}, {x, i64({1}, {5})}, {{DType::F32, {41, 67, 5}}, {DType::I64, {41, 67, 5}}})[1].bytes);
  }
  setThreadCount(threads);
  EXPECT_EQ(results[0], results[1]);
}

} // namespace
} // namespace recast::reference::test
