#include "tests/unit/reference/FiniteDifference.h"
#include <limits>

namespace recast::reference::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// Literals come from onnx.reference 1.23 in double, with ten digits.
constexpr double kLiteralTolerance = 1e-9;

Attributes lossAttributes(const char *reduction, int64_t ignored) {
  return attributes({{"reduction", std::string(reduction)}, {"ignore_index", ignored}});
}

const Array labels = i64({2, 2}, {2, 0, 1, 9});

TEST(Loss, SoftmaxCrossEntropy) {
  std::vector<Array> inputs = {pattern({2, 3, 2}), labels, f64({3}, {0.5, 1, 2})};
  TensorType scalar{DType::F64, {}};
  auto got = run({"SoftmaxCrossEntropyLoss", 13, lossAttributes("mean", 9)}, inputs, {scalar, inputs[0].type});
  expectNear(got[0], {1.1486589187}, kLiteralTolerance);
  expectNear(got[1],
             {-2.0279757439, -1.2248057282, -1.2779757439, -0.4748057282, -0.5279757439, -2.4748057282, -0.3519518638,
              -1.2248057282, -2.3519518638, -0.4748057282, -1.6019518638, -2.4748057282},
             kLiteralTolerance);
  expectNear(run({"SoftmaxCrossEntropyLoss", 13, lossAttributes("none", 9)}, inputs, {{DType::F64, {2, 2}}})[0],
             {1.0559514877, 0.6124028641, 2.3519518638, 0.0}, kLiteralTolerance);
  expectNear(run({"SoftmaxCrossEntropyLoss", 12, attributes({{"reduction", std::string("sum")}})},
                 {pattern({2, 3}), Array(DType::I32, {2}, {2, 1})}, {scalar})[0],
             {2.8404614313}, kLiteralTolerance);
}

TEST(Loss, LargeScoresDoNotOverflow) {
  Array scores = f32({1, 2}, {3e38, -3e38});
  expectEqual(run({"SoftmaxCrossEntropyLoss", 13}, {scores, i64({1}, {0})}, {{DType::F32, {}}})[0], {0});
  Array halves(DType::F16, {1, 2}, {60000, 59968});
  expectNear(run({"SoftmaxCrossEntropyLoss", 13}, {halves, i64({1}, {1})}, {{DType::F16, {}}})[0], {32}, 0);
}

TEST(Loss, NegativeLogLikelihood) {
  std::vector<Array> inputs = {pattern({2, 3, 2}), labels, f64({3}, {0.5, 1, 2})};
  expectNear(run({"NegativeLogLikelihoodLoss", 13, lossAttributes("mean", 9)}, inputs, {{DType::F64, {}}})[0],
             {0.0714285714}, kLiteralTolerance);
}

TEST(Loss, ALabelOutsideTheClassesIsAnErrorThatNamesIt) {
  Array scores = pattern({2, 3}), dloss = f64({}, {1});
  struct Case {
    Op op;
    std::vector<Array> inputs;
  } cases[] = {
      {{"SoftmaxCrossEntropyLoss", 13}, {scores, i64({2}, {1, -2})}},
      {{"NegativeLogLikelihoodLoss", 13}, {scores, i64({2}, {1, -2})}},
      {{"cross_entropy_grad", 1, {}, "recast"}, {dloss, scores, i64({2}, {1, -2})}},
      {{"nll_loss_grad", 1, lossAttributes("mean", 0), "recast"}, {dloss, scores, i64({2}, {1, -2})}},
  };
  for (const Case &c : cases) {
    Status status = Status::success();
    tryRun(c.op, c.inputs, {c.inputs.size() == 2 ? dloss.type : scores.type}, status);
    ASSERT_FALSE(status.ok()) << c.op.name;
    EXPECT_NE(status.message().find("'step'"), std::string::npos);
    EXPECT_NE(status.message().find("label -2 at position 1 is outside [0, 2]"), std::string::npos);
  }
}

TEST(Loss, AllLabelsIgnored) {
  // The mean of nothing is 0/0. No score influences it, so the gradient is 0.
  Array scores = pattern({2, 3}), ignored = i64({2}, {-1, -1});
  Attributes attrs = lossAttributes("mean", -1);
  expectEqual(run({"SoftmaxCrossEntropyLoss", 13, attrs}, {scores, ignored}, {{DType::F64, {}}})[0], {kNaN});
  expectEqual(run({"cross_entropy_grad", 1, attrs, "recast"}, {f64({}, {1}), scores, ignored}, {scores.type})[0],
              {0, 0, 0, 0, 0, 0});
}

TEST(Loss, Gradients) {
  std::pair<const char *, const char *> pairs[] = {{"SoftmaxCrossEntropyLoss", "cross_entropy_grad"},
                                                   {"NegativeLogLikelihoodLoss", "nll_loss_grad"}};
  for (auto [forward, backward] : pairs)
    for (const char *reduction : {"none", "sum", "mean"})
      for (bool weighted : {false, true}) {
        Attributes attrs = lossAttributes(reduction, 9);
        Array scores = randomArray(DType::F64, {2, 3, 2}, 1), dloss = f64({}, {0.75});
        if (std::string_view(reduction) == "none")
          dloss = pattern({2, 2}, 1);
        std::vector<Array> inputs = {scores, labels}, gradInputs = {dloss, scores, labels};
        if (weighted) {
          inputs.push_back(f64({3}, {0.5, 1, 2}));
          gradInputs.push_back(inputs.back());
        }
        Array dx = run({backward, 1, attrs, "recast"}, gradInputs, {scores.type})[0];
        expectGradient({forward, 13, attrs}, inputs, 0, {dloss.type}, dloss, dx);
      }
}

} // namespace
} // namespace recast::reference::test
