// Lists of gradients, loss scale, masks and fp8 against the reference evaluator.
#include "runtime/kernels/cuda/source/Math.h"
#include "runtime/kernels/cuda/source/Values.h"
#include "tests/unit/cuda/CudaTest.h"

namespace recast::cuda::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Sums of at most 1e5 positive doubles in another order differ by less than 1e5 * 2^-53.
constexpr double kNormTolerance = 1e-11;

/// Gradients of odd sizes and several types: many small ones, or a few of which one is longer than a block.
std::vector<Array> gradients(size_t count) {
  std::vector<Array> all;
  constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16, DType::F64};
  constexpr int64_t kSizes[] = {1, 0, 31, 257, 1000};
  for (size_t k = 0; k < count; ++k)
    all.push_back(randomArray(kTypes[k % 4],
                              {k == 3 && count < 10 ? 8192 * 2 + 5 : kSizes[k % 5] % (count < 10 ? 10000 : 100)}, k));
  return all;
}
std::vector<TensorType> typesOf(const std::vector<Array> &arrays) {
  std::vector<TensorType> types;
  for (const Array &array : arrays)
    types.push_back(array.type);
  return types;
}
std::vector<Array> with(std::vector<Array> arrays, const Array &last) {
  arrays.push_back(last);
  return arrays;
}
std::vector<TensorType> with(std::vector<TensorType> types, const TensorType &last) {
  types.push_back(last);
  return types;
}
Array f64(double value) { return reference::test::f64({}, {value}); }

TEST(CudaScaling, UnscaleAndCheckFinite) {
  for (size_t count : {1, 7, 50})
    for (double bad : {0.5, kInfinity, kNaN}) {
      std::vector<Array> gs = gradients(count);
      gs[count / 2 / 5 * 5].set(0, bad); // Its size is 1.
      TensorType flag{DType::Bool, {}};
      compare({"check_finite", 1, {}, "recast"}, gs, {flag});
      std::vector<TensorType> types = typesOf(gs);
      compare({"unscale", 1, {}, "recast"}, with(gs, f32({}, {384})), with(types, flag));
      for (TensorType &type : types)
        type.dtype = DType::F32;
      compare({"unscale", 1, {}, "recast"}, with(gs, f32({}, {384})), with(types, flag));
    }
}

TEST(CudaScaling, Clipping) {
  for (auto [count, p] : {std::pair<size_t, double>{4, 2}, {5, 1}, {5, 3.5}, {5, kInfinity}, {50, 2}}) {
    std::vector<Array> gs = gradients(count);
    Attributes attrs = attributes({{"norm_type", p}});
    compare({"grad_norm", 1, attrs, "recast"}, gs, {{DType::F64, {}}}, kNormTolerance);
    // The factor may differ in its last bit, a 16-bit result then in one of its own.
    compare({"clip_grad_norm", 1, attrs, "recast"}, with(gs, f64(0.25)), with(typesOf(gs), {DType::F32, {}}), 0x1p-8);
    compare({"clip_grad_norm", 1, attrs, "recast"}, with(gs, f64(1e9)), with(typesOf(gs), {DType::F64, {}}),
            kNormTolerance);
    compare({"grad_stats", 1, attrs, "recast"}, with(gs, f64(0.125)),
            {{DType::F64, {}}, {DType::F32, {}}, {DType::I64, {}}, {DType::F32, {}}}, kNormTolerance);
    compare({"clip_grad_value", 1, {}, "recast"}, with(gs, f64(0.3)), typesOf(gs));
  }
  std::vector<Array> gs = gradients(3);
  gs[2].set(4, kNaN);
  compare({"clip_grad_norm", 1, {}, "recast"}, with(gs, f64(1)), with(typesOf(gs), {DType::F32, {}}), 1e-6);
  compare({"clip_grad_value", 1, {}, "recast"}, with(gs, f64(0.3)), typesOf(gs));
  compare({"grad_stats", 1, attributes({{"norm_type", kInfinity}}), "recast"}, with(gs, f64(0.125)),
          {{DType::F64, {}}, {DType::F32, {}}, {DType::I64, {}}, {DType::F32, {}}}, kNormTolerance);
}

TEST(CudaScaling, LossScale) {
  for (DType type : {DType::F32, DType::F16, DType::BF16})
    compare({"scale_loss", 1, {}, "recast"}, {Array(type, {}, {1.5}), f32({}, {1024.3})}, {{type, {}}});
  for (double overflow : {0.0, 1.0})
    for (double good : {3.0, 4.0})
      for (double scale : {16.0, 1.5, 1e38})
        for (double left : {1.0, 2.0}) {
          std::vector<Array> inputs = {
              boolean({}, {overflow}), f32({}, {scale}), i64({}, {good}), f64(8), f64(0.5), i64({}, {5}), f32({}, {1}),
              f32({}, {3e38})};
          std::vector<TensorType> outputs = {{DType::F32, {}}, {DType::I64, {}}};
          compare({"update_loss_scale", 1, {}, "recast"}, inputs, outputs);
          inputs.push_back(i64({}, {left}));
          inputs.push_back(i64({}, {2}));
          compare({"update_loss_scale", 1, {}, "recast"}, inputs, with(outputs, {DType::I64, {}}));
        }
}

TEST(CudaScaling, MasksAreTheCpus) {
  for (double ratio : {0.0, 0.1, 0.5, 1.0})
    for (int64_t offset : {0, 3})
      for (int64_t elems : {1, 777, 5000}) {
        std::vector<Array> inputs = {i64({}, {-7}), i64({1}, {static_cast<double>(elems)}), f32({}, {ratio})};
        compare({"dropout_mask", 1, attributes({{"offset", offset}}), "recast"}, inputs, {{DType::Bool, {elems}}});
      }
}

Array wideRange(DType type, Dims dims, uint64_t seed) {
  Array x = randomArray(type, std::move(dims), seed);
  for (size_t i = 0; i < static_cast<size_t>(x.type.elems()); ++i)
    x.set(i, std::ldexp(x.get(i), static_cast<int>(i * 7 % 31) - 16));
  return x;
}

TEST(CudaFp8, Quantize) {
  for (DType x : {DType::F32, DType::BF16, DType::F16})
    for (DType q : {DType::F8E4M3FN, DType::F8E5M2})
      for (double special : {0.25, kInfinity, kNaN}) {
        Array values = wideRange(x, {13, 57}, 3);
        values.set(100, special);
        compare({"quantize_fp8", 1, {}, "recast"}, {values, f32({}, {3.7})}, {{q, {13, 57}}, {DType::F32, {}}});
      }
  compare({"quantize_fp8", 1, {}, "recast"}, {Array(DType::F32, {0}), f32({}, {1})},
          {{DType::F8E4M3FN, {0}}, {DType::F32, {}}});
}

TEST(CudaFp8, Tiles) {
  struct Case {
    Dims tile, scales;
  };
  Dims dims = {9, 70};
  for (const Case &c : {Case{{0, 0}, {1, 1}}, Case{{1, 0}, {9, 1}}, Case{{0, 1}, {1, 70}}, Case{{4, 32}, {3, 3}},
                        Case{{1, 32}, {9, 3}}})
    for (const char *rule : {"exact", "pow2", "mx_floor"})
      for (DType x : {DType::F32, DType::BF16, DType::F16})
        for (DType scale : {DType::F32, DType::F8E8M0})
          for (DType q : {DType::F8E4M3FN, DType::F8E5M2}) {
            if (scale == DType::F8E8M0 && std::string_view(rule) == "exact")
              continue;
            Array values = wideRange(x, dims, 5);
            values.set(3, kNaN);
            values.set(639 % 630, 0);
            Attributes attrs = attributes({{"tile", c.tile}, {"rule", rule}});
            Op op{"quantize_fp8_tiles", 1, attrs, "recast"};
            std::vector<TensorType> outputs = {{q, dims}, {scale, c.scales}};
            compare(op, {values}, outputs);
            Status status = Status::success();
            std::vector<Array> quantized = runEmulated(op, {values}, outputs, SIZE_MAX, status);
            compare({"dequantize_fp8", 1, attrs, "recast"}, quantized, {{DType::F32, dims}});
          }
}

/// Of matrices of rows x columns.
std::vector<std::byte> transposedBytes(const std::vector<std::byte> &from, size_t rows, size_t columns) {
  std::vector<std::byte> to(from.size());
  for (size_t i = 0; i < from.size(); ++i)
    to[i / (rows * columns) * rows * columns + i % columns * rows + i / columns % rows] = from[i];
  return to;
}

/// The third output is the first one transposed; the first may be left out. The others are as without it.
TEST(CudaFp8, QuantizesIntoBothLayouts) {
  struct Case {
    DType type;
    int64_t rows, columns;
  };
  for (auto [type, rows, columns] : {Case{DType::BF16, 16, 80},
                                     {DType::BF16, 33, 31},
                                     {DType::BF16, 1, 7},
                                     {DType::F16, 33, 31},
                                     {DType::F32, 16, 33}})
    for (DType q : {DType::F8E4M3FN, DType::F8E5M2})
      for (bool isTiled : {false, true})
        for (bool hasFirst : {true, false}) {
          Array x = wideRange(type, {3, rows, columns}, 9);
          std::vector<Array> inputs = {x};
          if (!isTiled)
            inputs.push_back(f32({}, {3.7}));
          Op op{isTiled ? "quantize_fp8_tiles" : "quantize_fp8", 1, attributes({{"tile", Dims{1, 1, 32}}}), "recast"};
          TensorType other{DType::F32, isTiled ? Dims{3, rows, (columns + 31) / 32} : Dims{}};
          std::vector<Array> want = reference::test::run(op, inputs, {{q, x.type.dims}, other});
          op.attrs.set("rows", rows);
          op.attrs.set("columns", columns);
          TensorType first{q, x.type.dims}, turned{q, {3, columns, rows}};
          Status status = Status::success();
          std::vector<Array> got =
              runEmulated(op, inputs, {hasFirst ? first : TensorType(), other, turned}, SIZE_MAX, status);
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_EQ(got.size(), 3u);
          if (hasFirst)
            EXPECT_EQ(got[0].bytes, want[0].bytes);
          EXPECT_EQ(got[1].bytes, want[1].bytes);
          EXPECT_EQ(got[2].bytes,
                    transposedBytes(want[0].bytes, static_cast<size_t>(rows), static_cast<size_t>(columns)));
        }
}

TEST(CudaFp8, AmaxHistory) {
  for (double skip : {0.0, 1.0})
    for (const char *algorithm : {"max", "most_recent"})
      for (const char *nan : {"propagate", "ignore"})
        for (double amax : {0.0, 2.5, 1e-30, kInfinity, kNaN})
          for (const Array &history : {f32({1}, {0}), f32({4}, {0, 3, kNaN, 1}), f32({3}, {0, 7, 0.5})})
            compare({"update_amax", 1,
                     attributes({{"algorithm", algorithm},
                                 {"nan", nan},
                                 {"margin", int64_t(1)},
                                 {"to", static_cast<int64_t>(DType::F8E5M2)}}),
                     "recast"},
                    {boolean({}, {skip}), history, f32({}, {12}), f32({}, {amax})}, {history.type, {DType::F32, {}}});
}

TEST(CudaFp8, DecodeIsTheCpus) {
  for (int code = 0; code < 256; ++code) {
    auto bits = static_cast<uint8_t>(code);
    auto same = [](float a, float b) { return a == b || (a != a && b != b); };
    EXPECT_TRUE(same(decode(Float8E4M3FN::fromBits(bits)), Float8E4M3FN::fromBits(bits))) << code;
    EXPECT_TRUE(same(decode(Float8E5M2::fromBits(bits)), Float8E5M2::fromBits(bits))) << code;
    EXPECT_TRUE(same(decode(Float8E8M0::fromBits(bits)), Float8E8M0::fromBits(bits))) << code;
  }
}

/// Within 2 ulp of the maths library in float and 4 in double; it is right within 1.
TEST(CudaMath, ExponentialAndLogarithm) {
  for (int i = -10400; i <= 8900; ++i) {
    float x = static_cast<float>(i) * 0.01f, want = std::exp(x);
    if (exponential(x) != want) // Beyond the largest number both are infinity.
      EXPECT_LE(std::fabs(exponential(x) - want), std::max(want * 0x1p-22f, 0x1p-148f)) << x;
  }
  for (int i = -7500; i <= 7095; ++i) {
    double x = i * 0.1, want = std::exp(x);
    EXPECT_LE(std::fabs(exponential(x) - want), std::max(want * 0x1p-50, 0x1p-1072)) << x;
    if (double y = std::exp(i * 0.09999); y > 0)
      EXPECT_LE(std::fabs(logarithm(y) - std::log(y)), std::max(std::fabs(std::log(y)) * 0x1p-51, 0x1p-53)) << y;
  }
  EXPECT_EQ(exponential(1000.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exponential(-1e30f), 0);
  EXPECT_EQ(exponential(static_cast<float>(-kInfinity)), 0);
  EXPECT_NE(exponential(kNaN), exponential(kNaN));
  EXPECT_EQ(logarithm(0), -kInfinity);
}

} // namespace
} // namespace recast::cuda::test
