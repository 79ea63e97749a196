#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

/// Literals come from onnx.reference 1.23, which takes epsilon and momentum as float; ours are doubles. The difference
/// is at most 3e-8 relative to them.
constexpr double kLiteralTolerance = 1e-7;

TensorType f64Type(std::vector<int64_t> dims) { return {DType::F64, std::move(dims)}; }
Op gradientOp(const char *name, Attributes attrs = {}) { return {name, 1, std::move(attrs), "recast"}; }

TEST(Normalization, LayerNormalization) {
  std::vector<Array> inputs = {pattern({2, 3}), pattern({3}, 1), pattern({3}, 2)};
  auto got = run({"LayerNormalization", 17}, inputs, {f64Type({2, 3}), f64Type({2, 1}), f64Type({2, 1})});
  expectNear(got[0], {0.412465077, 1.9590336885, 0.0290616269, -1.9747356859, 1.0, 0.3061839215}, kLiteralTolerance);
  expectNear(got[1], {-0.4166666667, 0.25}, kLiteralTolerance);
  expectNear(got[2], {1.3949580924, 1.2247356859}, kLiteralTolerance);
}

TEST(Normalization, LayerNormalizationKeepsItsStatisticsInFloat) {
  // 2048 + {0, 2} in f16: the mean needs more digits than f16 has.
  Array x(DType::F16, {1, 2}, {2048, 2050}), scale(DType::F16, {2}, {1, 1});
  auto got = run({"LayerNormalization", 17}, {x, scale}, {x.type, {DType::F32, {1, 1}}, {DType::F32, {1, 1}}});
  expectNear(got[0], {-1, 1}, 0x1p-10);
  expectEqual(got[1], {2049});
}

TEST(Normalization, RmsNormalizationWithAScaleOfAnotherType) {
  std::vector<double> want = {1.507545759, 0.4522637277, 0.1507545759, -1.4638400717, 0.2195760108, 0.2195760108};
  expectNear(run({"RMSNormalization", 23}, {pattern({2, 3}), pattern({3}, 1)}, {f64Type({2, 3})})[0], want,
             kLiteralTolerance);
  expectNear(run({"RMSNormalization", 23}, {pattern(DType::BF16, {2, 3}), pattern(DType::F32, {3}, 1)},
                 {{DType::F32, {2, 3}}})[0],
             want, 1e-6);
}

TEST(Normalization, GroupNormalization) {
  Op op{"GroupNormalization", 21, attributes({{"num_groups", int64_t(2)}})};
  expectNear(run(op, {pattern({1, 4, 3}), pattern({4}, 1), pattern({4}, 2)}, {f64Type({1, 4, 3})})[0],
             {0.6430420876, -1.4465210438, -0.2524849772, 2.1940361261, 1.2985090315, 0.4029819369, -0.3404899538,
              -0.0378322192, 0.2648255229, -2.3241276145, -0.8108389042, 0.7024497688},
             kLiteralTolerance);
  op.version = 18; // One scale and bias a group.
  expectNear(run(op, {pattern({1, 4, 3}), pattern({2}, 1), pattern({2}, 2)}, {f64Type({1, 4, 3})})[0],
             {0.6430421357, -1.4465210679, -0.2524849515, -2.3420481551, -1.1480120388, 0.0460240776, 2.0214698909,
              1.1134966545, 0.2055234182, 1.7944765818, 0.8865033455, -0.0214698909},
             kLiteralTolerance);
}

TEST(Normalization, InstanceNormalization) {
  expectNear(
      run({"InstanceNormalization", 6}, {pattern({1, 2, 4}), pattern({2}, 1), pattern({2}, 2)},
          {f64Type({1, 2, 4})})[0],
      {0.5630570842, -1.2752228337, -0.2247771663, -2.0630570842, 1.14999808, -0.0499865603, 2.0499865603, 0.85000192},
      kLiteralTolerance);
}

TEST(Normalization, BatchNormalization) {
  std::vector<Array> inputs = {pattern({2, 2, 2}), pattern({2}, 1), pattern({2}, 2), pattern({2}, 3),
                               f64({2}, {0.5, 2})};
  expectNear(run({"BatchNormalization", 9}, inputs, {f64Type({2, 2, 2})})[0],
             {0.3106495653, -2.1641994204, 0.0719246699, 1.0, -1.8106495653, -0.3964501449, 0.86741781, 0.3370890499},
             kLiteralTolerance);
  Op training{"BatchNormalization", 15, attributes({{"training_mode", int64_t(1)}})};
  auto got = run(training, inputs, {f64Type({2, 2, 2}), f64Type({2}), f64Type({2})});
  expectNear(got[0],
             {0.5605432797, -1.8858041758, 0.0170925402, 1.8518531318, -1.5363259678, -0.1384131361, 1.5897444759,
              0.5413098521},
             kLiteralTolerance);
  // With the population variance, and momentum 0.9 as written.
  expectNear(got[1], {-0.48125, 1.16875}, 1e-15);
  expectNear(got[2], {0.501171875, 1.851171875}, 1e-15);
}

TEST(Normalization, BatchNormalizationRefusesOldTrainingForms) {
  std::vector<Array> inputs = {pattern({2, 2}), pattern({2}), pattern({2}), pattern({2}), pattern({2})};
  EXPECT_NE(refusalOf({"BatchNormalization", 9}, inputs, {f64Type({2, 2}), f64Type({2})}), "");
  EXPECT_NE(refusalOf({"BatchNormalization", 7, attributes({{"spatial", int64_t(0)}})}, inputs, {f64Type({2, 2})}), "");
  EXPECT_NE(refusalOf({"BatchNormalization", 15}, inputs, {f64Type({2, 2}), f64Type({2})}), "");
}

TEST(Normalization, LpNormalization) {
  Op euclidean{"LpNormalization", 1, attributes({{"axis", int64_t(0)}})};
  expectNear(run(euclidean, {pattern({2, 3})}, {f64Type({2, 3})})[0],
             {-0.7071067812, 0.894427191, -0.5547001962, 0.7071067812, 0.4472135955, -0.8320502943}, kLiteralTolerance);
  Op absolute{"LpNormalization", 22, attributes({{"axis", int64_t(1)}, {"p", int64_t(1)}})};
  expectNear(run(absolute, {f64({2, 2}, {1, -3, 0, 0})}, {f64Type({2, 2})})[0], {0.25, -0.75, 0, 0}, 1e-15);
}

TEST(Normalization, LocalResponse) {
  Op op{"LRN", 13, attributes({{"size", int64_t(3)}, {"alpha", 0.5f}})};
  expectNear(run(op, {pattern({1, 4, 2})}, {f64Type({1, 4, 2})})[0],
             {-1.0254888154, 0.4101955261, -0.4077514558, 0.9733854249, 0.2155281679, -0.5974577155, 0.884900809, 0},
             kLiteralTolerance);
}

TEST(Normalization, MeanVariance) {
  // The literals were computed in float.
  expectNear(run({"MeanVarianceNormalization", 13}, {pattern({2, 2, 1, 2})}, {f64Type({2, 2, 1, 2})})[0],
             {-1.3105560541, 1.1358152628, -1.3105560541, 1.1358152628, 0.7863336205, -0.6115928292, 0.7863336205,
              -0.6115928292},
             1e-6);
}

TEST(Normalization, LayerAndRmsGradients) {
  struct Case {
    std::vector<int64_t> x;
    int64_t axis;
    std::vector<int64_t> scale;
  } cases[] = {{{3, 5}, -1, {5}},      {{2, 3, 4}, 1, {3, 4}}, {{2, 3, 4}, 1, {4}},      {{2, 3, 4}, 2, {1}},
               {{2, 3, 4}, 1, {3, 1}}, {{2, 3, 70}, -1, {70}}, {{2, 3, 4}, 0, {2, 1, 4}}};
  for (const Case &c : cases) {
    Attributes attrs = attributes({{"axis", c.axis}, {"epsilon", 1e-3f}});
    Array x = randomArray(DType::F64, c.x, 1), scale = randomArray(DType::F64, c.scale, 2);
    Array bias = randomArray(DType::F64, c.scale, 3), dy = randomArray(DType::F64, c.x, 4);
    auto layer = run(gradientOp("layer_norm_grad", attrs), {dy, x, scale}, {x.type, scale.type, bias.type});
    for (size_t i = 0; i < 3; ++i)
      expectGradient({"LayerNormalization", 17, attrs}, {x, scale, bias}, i, {x.type}, dy, layer[i]);
    auto rms = run(gradientOp("rms_norm_grad", attrs), {dy, x, scale}, {x.type, scale.type});
    for (size_t i = 0; i < 2; ++i)
      expectGradient({"RMSNormalization", 23, attrs}, {x, scale}, i, {x.type}, dy, rms[i]);
  }
}

TEST(Normalization, BatchGradient) {
  for (const std::vector<int64_t> &dims : {std::vector<int64_t>{4, 3, 2, 2}, std::vector<int64_t>{5, 2}}) {
    std::vector<int64_t> channels = {dims[1]};
    Array x = randomArray(DType::F64, dims, 1), scale = randomArray(DType::F64, channels, 2);
    Array bias = randomArray(DType::F64, channels, 3), dy = randomArray(DType::F64, dims, 4);
    Op forward{"BatchNormalization", 15, attributes({{"training_mode", int64_t(1)}})};
    auto got = run(gradientOp("batch_norm_grad"), {dy, x, scale}, {x.type, scale.type, bias.type});
    for (size_t i = 0; i < 3; ++i)
      expectGradient(forward, {x, scale, bias, bias, bias}, i, {x.type, bias.type, bias.type}, dy, got[i]);
  }
}

TEST(Normalization, GradientsDoNotDependOnThreads) {
  Array x = randomArray(DType::F32, {130, 200}, 1), scale = randomArray(DType::F32, {200}, 2);
  Array dy = randomArray(DType::F32, {130, 200}, 3);
  std::vector<Array> results[2];
  for (int threads : {1, 2}) {
    setThreadCount(threads);
    results[threads - 1] = run(gradientOp("layer_norm_grad"), {dy, x, scale}, {x.type, scale.type, scale.type});
  }
  setThreadCount(1);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_EQ(results[0][i].bytes, results[1][i].bytes);
}

TEST(Normalization, AScaleThatDoesNotFitIsAnError) {
  Status status = Status::success();
  tryRun({"LayerNormalization", 17}, {pattern({2, 3}), pattern({2})}, {f64Type({2, 3})}, status);
  EXPECT_FALSE(status.ok());
  tryRun({"BatchNormalization", 15}, {pattern({2, 3}), pattern({2}), pattern({3}), pattern({3}), pattern({3})},
         {f64Type({2, 3})}, status);
  EXPECT_FALSE(status.ok());
}

} // namespace
} // namespace recast::reference::test
