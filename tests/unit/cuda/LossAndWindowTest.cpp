// Losses, convolutions, poolings and batch normalisation against the reference evaluator. Both sum in double and round
// once, in other orders: a result may then differ by one spacing of its type.
#include "tests/unit/cuda/CudaTest.h"
#include <gmock/gmock.h>

namespace recast::cuda::test {
namespace {

constexpr DType kFloats[] = {DType::F32, DType::BF16, DType::F16};
double ulp(DType type) { return type == DType::F32 ? 0x1p-22 : type == DType::F16 ? 0x1p-10 : 0x1p-7; }
/// exp is within 2 ulp of float on either side; a probability has two of them.
double expTolerance(DType type) { return type == DType::F32 ? 1e-6 : ulp(type); }

TEST(CudaLoss, CrossEntropyAndNll) {
  for (const char *reduction : {"mean", "sum", "none"})
    for (DType type : kFloats)
      for (bool isSpatial : {false, true})
        for (bool hasWeights : {false, true}) {
          Dims dims = isSpatial ? Dims{2, 5, 3} : Dims{7, 40};
          Dims positions = isSpatial ? Dims{2, 3} : Dims{7};
          Array scores = randomArray(type, dims, 1), labels(DType::I64, positions);
          for (size_t i = 0; i < static_cast<size_t>(labels.type.elems()); ++i)
            labels.set(i, i == 2 ? -100 : static_cast<double>(i * 3 % 5));
          std::vector<Array> inputs = {scores, labels};
          if (hasWeights)
            inputs.push_back(randomArray(type, {dims[1]}, 2));
          Attributes attrs = attributes({{"reduction", reduction}, {"ignore_index", int64_t(-100)}});
          TensorType loss{type, std::string_view(reduction) == "none" ? positions : Dims{}};
          double tolerance = expTolerance(type);
          // With weights of both signs the mean divides by a small sum: the error grows with it.
          double meanTolerance = hasWeights ? 20 * tolerance : tolerance;
          compare({"SoftmaxCrossEntropyLoss", 13, attrs}, inputs, {loss, {type, dims}}, meanTolerance);
          compare({"SoftmaxCrossEntropyLoss", 13, attrs}, inputs, {loss, {}}, meanTolerance);
          compare({"NegativeLogLikelihoodLoss", 13, attrs}, inputs, {loss}, meanTolerance);
          inputs.insert(inputs.begin(), randomArray(type, loss.dims, 3));
          compare({"cross_entropy_grad", 1, attrs, "recast"}, inputs, {{type, dims}}, meanTolerance);
          compare({"nll_loss_grad", 1, attrs, "recast"}, inputs, {{type, dims}}, meanTolerance);
        }
}

TEST(CudaLoss, BadLabelsAreReported) {
  Status status = Status::success();
  runEmulated({"SoftmaxCrossEntropyLoss", 13}, {randomArray(DType::F32, {3, 4}, 1), i64({3}, {0, 1, 4})},
              {{DType::F32, {}}}, SIZE_MAX, status);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::HasSubstr("the value at position 2 is out of range"));
}

struct ConvolutionCase {
  Dims x, w, y;
  Attributes attrs;
};
std::vector<ConvolutionCase> convolutions() {
  return {{{2, 3, 9}, {4, 3, 3}, {2, 4, 7}, {}},
          {{2, 4, 7, 6},
           {6, 2, 3, 2},
           {2, 6, 4, 3},
           attributes({{"group", int64_t(2)}, {"strides", Dims{2, 2}}, {"pads", Dims{1, 0, 1, 0}}})},
          {{1, 2, 8, 5},
           {2, 1, 3, 3},
           {1, 2, 6, 5},
           attributes({{"group", int64_t(2)}, {"dilations", Dims{2, 1}}, {"pads", Dims{1, 1, 1, 1}}})},
          {{1, 1, 3, 4, 5}, {2, 1, 2, 2, 2}, {1, 2, 2, 3, 4}, {}}};
}

TEST(CudaWindow, Convolutions) {
  for (DType type : kFloats)
    for (const ConvolutionCase &c : convolutions()) {
      Array x = randomArray(type, c.x, 1), w = randomArray(type, c.w, 2), dy = randomArray(type, c.y, 3);
      Array bias = randomArray(type, {c.w[0]}, 4);
      compare({"Conv", 11, c.attrs}, {x, w}, {{type, c.y}}, ulp(type));
      compare({"Conv", 11, c.attrs}, {x, w, bias}, {{type, c.y}}, ulp(type));
      compare({"conv_grad_input", 1, c.attrs, "recast"}, {dy, w}, {{type, c.x}}, ulp(type));
      compare({"conv_grad_weight", 1, c.attrs, "recast"}, {x, dy}, {{type, c.w}}, ulp(type));
      compare({"ConvTranspose", 11, c.attrs}, {dy, w}, {{type, c.x}}, ulp(type));
    }
}

TEST(CudaWindow, Pools) {
  Attributes plain = attributes({{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}});
  Attributes overlapping =
      attributes({{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 1, 1}}});
  for (DType type : kFloats)
    for (int64_t padded : {0, 1}) {
      Attributes attrs = padded ? overlapping : plain;
      Dims dims = {2, 3, 6, 8}, out = {2, 3, 3, 4};
      Array x = randomArray(type, dims, 1), dy = randomArray(type, out, 2);
      x.set(17, std::numeric_limits<double>::quiet_NaN());
      compare({"MaxPool", 12, attrs}, {x}, {{type, out}, {DType::I64, out}}, ulp(type));
      compare({"MaxPool", 12, attrs}, {x}, {{type, out}, {}}, ulp(type));
      compare({"max_pool_grad", 1, attrs, "recast"}, {dy, x}, {{type, dims}}, ulp(type));
      for (int64_t counts : {0, 1}) {
        attrs.set("count_include_pad", counts);
        compare({"AveragePool", 19, attrs}, {x}, {{type, out}}, ulp(type));
        compare({"average_pool_grad", 1, attrs, "recast"}, {dy}, {{type, dims}}, ulp(type));
      }
      for (const char *op : {"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})
        compare({op, 1}, {x}, {{type, {2, 3, 1, 1}}}, ulp(type));
      compare({"LpPool", 11, attrs}, {x}, {{type, out}}, ulp(type));
    }
}

TEST(CudaWindow, BatchNorm) {
  for (DType type : kFloats)
    for (DType parameters : {type, DType::F32})
      for (int64_t trains : {0, 1})
        for (const Dims &dims : {Dims{5, 3}, Dims{2, 4, 7, 9}}) {
          int64_t channels = dims[1];
          Array x = randomArray(type, dims, 1), scale = randomArray(parameters, {channels}, 2);
          Array bias = randomArray(parameters, {channels}, 3), mean = randomArray(parameters, {channels}, 4);
          Array variance = randomArray(parameters, {channels}, 5);
          for (size_t c = 0; c < static_cast<size_t>(channels); ++c)
            variance.set(c, std::fabs(variance.get(c)) + 0.5);
          std::vector<TensorType> outputs = {{type, dims}};
          if (trains)
            outputs.insert(outputs.end(), 2, {parameters, {channels}});
          compare({"BatchNormalization", 15, attributes({{"training_mode", trains}})}, {x, scale, bias, mean, variance},
                  outputs, 4 * ulp(type));
          Array dy = randomArray(type, dims, 6);
          compare({"batch_norm_grad", 1, {}, "recast"}, {dy, x, scale},
                  {{type, dims}, {parameters, {channels}}, {parameters, {channels}}}, 16 * ulp(type));
        }
}

} // namespace
} // namespace recast::cuda::test
