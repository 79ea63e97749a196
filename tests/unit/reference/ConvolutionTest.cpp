// Convolutions of the reference evaluator and their gradients. Literals come from onnx.reference.
#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

using Dims = std::vector<int64_t>;

// Sums of at most a few hundred products of values near 1, in double.
constexpr double kTolerance = 1e-13;

/// A convolution x[n, c, in] * w[m, c/group, kernel] of one to three spatial axes.
struct Shape {
  Dims in, kernel, strides, pads, dilations;
  int64_t n = 2, c = 2, m = 2, group = 1;

  Dims x() const { return with({n, c}, in); }
  Dims w() const { return with({m, c / group}, kernel); }
  Dims y() const {
    Dims out;
    for (size_t d = 0; d < in.size(); ++d)
      out.push_back((in[d] + pads[d] + pads[d + in.size()] - (kernel[d] - 1) * dilations[d] - 1) / strides[d] + 1);
    return with({n, m}, out);
  }
  Attributes attrs() const {
    return attributes({{"strides", strides},
                       {"pads", pads},
                       {"dilations", dilations},
                       {"group", group},
                       {"kernel_shape", kernel},
                       {"input_spatial", in}});
  }

private:
  static Dims with(Dims front, const Dims &back) {
    front.insert(front.end(), back.begin(), back.end());
    return front;
  }
};

const Shape kShapes[] = {
    {{7}, {3}, {2}, {1, 1}, {1}},
    {{9}, {2}, {1}, {3, 0}, {3}, 1, 3, 1},
    {{4, 5}, {3, 2}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
    {{5, 4}, {3, 3}, {2, 1}, {1, 0, 2, 1}, {1, 2}, 2, 4, 6, 2},
    {{6, 6}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}, 1, 4, 4, 4},
    {{5, 5}, {1, 1}, {3, 2}, {0, 0, 0, 0}, {1, 1}},
    {{2, 3}, {3, 3}, {1, 1}, {2, 2, 2, 2}, {1, 1}},
    {{3, 4, 3}, {2, 2, 2}, {1, 2, 1}, {1, 0, 0, 0, 1, 1}, {1, 1, 2}, 1, 2, 4, 2},
};

/// y[n,m,o] by its definition, with every index spelled out.
std::vector<double> naiveConv(const Shape &s, const Array &x, const Array &w) {
  auto three = [](const Dims &d, int64_t fill) {
    Dims all(3 - d.size(), fill);
    all.insert(all.end(), d.begin(), d.end());
    return all;
  };
  Dims yDims = s.y(), out = three(Dims(yDims.begin() + 2, yDims.end()), 1), in = three(s.in, 1);
  Dims kernel = three(s.kernel, 1), stride = three(s.strides, 1), dilation = three(s.dilations, 1);
  Dims pad = three(Dims(s.pads.begin(), s.pads.begin() + static_cast<int64_t>(s.in.size())), 0);
  std::vector<double> y;
  for (int64_t n = 0; n < s.n; ++n)
    for (int64_t m = 0; m < s.m; ++m)
      for (int64_t o = 0; o < out[0] * out[1] * out[2]; ++o) {
        double sum = 0;
        for (int64_t c = 0; c < s.c / s.group; ++c)
          for (int64_t k = 0; k < kernel[0] * kernel[1] * kernel[2]; ++k) {
            int64_t i0 = o / out[2] / out[1] * stride[0] - pad[0] + k / kernel[2] / kernel[1] * dilation[0];
            int64_t i1 = o / out[2] % out[1] * stride[1] - pad[1] + k / kernel[2] % kernel[1] * dilation[1];
            int64_t i2 = o % out[2] * stride[2] - pad[2] + k % kernel[2] * dilation[2];
            if (i0 < 0 || i0 >= in[0] || i1 < 0 || i1 >= in[1] || i2 < 0 || i2 >= in[2])
              continue;
            int64_t channel = m / (s.m / s.group) * (s.c / s.group) + c;
            int64_t at = (((n * s.c + channel) * in[0] + i0) * in[1] + i1) * in[2] + i2;
            int64_t tap = (m * (s.c / s.group) + c) * kernel[0] * kernel[1] * kernel[2] + k;
            sum += x.get(static_cast<size_t>(at)) * w.get(static_cast<size_t>(tap));
          }
        y.push_back(sum);
      }
  return y;
}

TEST(Conv, AgreesWithItsDefinition) {
  for (const Shape &s : kShapes) {
    Array x = randomArray(DType::F64, s.x(), 1), w = randomArray(DType::F64, s.w(), 2);
    expectNear(run({"Conv", 11, s.attrs()}, {x, w}, {{DType::F64, s.y()}})[0], naiveConv(s, x, w), kTolerance);
  }
}

TEST(Conv, AddsTheBias) {
  Op conv{"Conv", 22, attributes({{"pads", Dims{1, 0, 0, 1}}, {"strides", Dims{1, 2}}})};
  expectNear(
      run(conv, {pattern({1, 2, 3, 3}), pattern({2, 2, 2, 2}, 3), pattern({2}, 5)}, {{DType::F64, {1, 2, 3, 2}}})[0],
      {-1.625, 1.125, 1.25, -2.4375, -0.375, 0.375, -2.6875, -0.3125, -0.8125, -3.75, -1.5625, -0.5}, kTolerance);
}

TEST(Conv, AutoPadIsTheSamePadding) {
  // 5 inputs, kernel 2, stride 1: one element of padding, which UPPER puts at the end.
  Array x = pattern({1, 1, 5}), w = pattern({1, 1, 2}, 3);
  auto with = [&](const char *name, Attributes::Value value, int64_t out) {
    return run({"Conv", 11, attributes({{name, value}})}, {x, w}, {{DType::F64, {1, 1, out}}})[0].values();
  };
  EXPECT_EQ(with("auto_pad", "SAME_UPPER", 5), with("pads", Dims{0, 1}, 5));
  EXPECT_EQ(with("auto_pad", "SAME_LOWER", 5), with("pads", Dims{1, 0}, 5));
  EXPECT_EQ(with("auto_pad", "VALID", 4), with("pads", Dims{0, 0}, 4));
}

TEST(Conv, RowsLongerThanAChunkAndThreads) {
  Shape s{{3, 600}, {3, 5}, {1, 1}, {1, 2, 1, 2}, {1, 1}, 1, 2, 3};
  Array x = randomArray(DType::F64, s.x(), 1), w = randomArray(DType::F64, s.w(), 2);
  Array y = randomArray(DType::F64, s.y(), 3);
  expectNear(run({"Conv", 11, s.attrs()}, {x, w}, {{DType::F64, s.y()}})[0], naiveConv(s, x, w), kTolerance);
  auto all = [&] {
    return std::vector{run({"Conv", 11, s.attrs()}, {x, w}, {{DType::F64, s.y()}})[0].bytes,
                       run({"conv_grad_input", 1, s.attrs(), "recast"}, {y, w}, {{DType::F64, s.x()}})[0].bytes,
                       run({"conv_grad_weight", 1, s.attrs(), "recast"}, {x, y}, {{DType::F64, s.w()}})[0].bytes};
  };
  int threads = threadCount();
  setThreadCount(1);
  auto one = all();
  setThreadCount(2);
  EXPECT_EQ(one, all());
  setThreadCount(threads);
}

TEST(Conv, EmptyBatch) {
  Array none(DType::F32, {0, 2, 4, 4}), w = pattern(DType::F32, {3, 2, 3, 3});
  expectEqual(run({"Conv", 11}, {none, w}, {{DType::F32, {0, 3, 2, 2}}})[0], {});
  Array dw = run({"conv_grad_weight", 1, {}, "recast"}, {none, Array(DType::F32, {0, 3, 2, 2})},
                 {{DType::F32, {3, 2, 3, 3}}})[0];
  expectEqual(dw, std::vector<double>(54, 0));
}

TEST(Conv, RefusesFourSpatialAxes) {
  EXPECT_EQ(refusalOf({"Conv", 11}, {pattern({1, 1, 2, 2, 2, 2}), pattern({1, 1, 1, 1, 1, 1})},
                      {{DType::F64, {1, 1, 2, 2, 2, 2}}}),
            "4 spatial axes are not supported (1 to 3 are)");
}

TEST(ConvGradInput, IsTheDerivative) {
  for (const Shape &s : kShapes) {
    Array x = pattern(s.x()), w = pattern(s.w(), 3), dy = pattern(s.y(), 5);
    Array dx = run({"conv_grad_input", 1, s.attrs(), "recast"}, {dy, w}, {{DType::F64, s.x()}})[0];
    expectGradient({"Conv", 11, s.attrs()}, {x, w}, 0, {{DType::F64, s.y()}}, dy, dx);
  }
}

TEST(ConvGradWeight, IsTheDerivative) {
  for (const Shape &s : kShapes) {
    Array x = pattern(s.x()), w = pattern(s.w(), 3), dy = pattern(s.y(), 5);
    Array dw = run({"conv_grad_weight", 1, s.attrs(), "recast"}, {x, dy}, {{DType::F64, s.w()}})[0];
    expectGradient({"Conv", 11, s.attrs()}, {x, w}, 1, {{DType::F64, s.y()}}, dy, dw);
  }
}

TEST(ConvTranspose, IsTheGradientOfConv) {
  // The operator is conv_grad_input with y in place of dx; the weights' layout is the same.
  for (const Shape &s : kShapes) {
    Array y = pattern(s.y()), w = pattern(s.w(), 3);
    Array want = run({"conv_grad_input", 1, s.attrs(), "recast"}, {y, w}, {{DType::F64, s.x()}})[0];
    expectEqual(run({"ConvTranspose", 11, s.attrs()}, {y, w}, {{DType::F64, s.x()}})[0], want.values());
  }
}

TEST(ConvTranspose, SizesFollowFromPaddings) {
  Array x = pattern({1, 1, 2, 2}), w = pattern({1, 1, 3, 3}, 3);
  auto with = [&](Attributes attrs, int64_t height, int64_t width) {
    attrs.set("strides", Dims{2, 2});
    return run({"ConvTranspose", 22, attrs}, {x, w}, {{DType::F64, {1, 1, height, width}}})[0].values();
  };
  const std::vector<double> plain = {0.625, -1.5625, -0.5625, 0.625,   0.125,  0.9375, -1.25,  -0.375, 0.5,
                                     0,     1.5,     -1.5625, -0.9375, 1.9375, 0.1875, 0.375,  -0.5,   -0.9375,
                                     1.25,  0,       0.5,     -0.375,  -1.125, 0.9375, -0.3125};
  EXPECT_EQ(with({}, 5, 5), plain);
  EXPECT_EQ(with(attributes({{"auto_pad", "SAME_UPPER"}}), 4, 4),
            (std::vector<double>{0.625, -1.5625, -0.5625, 0.625, 0.9375, -1.25, -0.375, 0.5, 1.5, -1.5625, -0.9375,
                                 1.9375, 0.375, -0.5, -0.9375, 1.25}));
  // SAME_LOWER drops the first row and column instead of the last; so does an output_shape without auto_pad.
  std::vector<double> lower;
  for (size_t i = 1; i < 5; ++i)
    lower.insert(lower.end(), plain.begin() + static_cast<int64_t>(5 * i + 1),
                 plain.begin() + static_cast<int64_t>(5 * i + 5));
  EXPECT_EQ(with(attributes({{"auto_pad", "SAME_LOWER"}}), 4, 4), lower);
  EXPECT_EQ(with(attributes({{"output_shape", Dims{4, 4}}}), 4, 4), lower);
  // output_padding appends elements that no tap reaches.
  std::vector<double> longer = with(attributes({{"output_padding", Dims{1, 0}}}), 6, 5);
  EXPECT_EQ(std::vector<double>(longer.begin(), longer.begin() + 25), plain);
  EXPECT_EQ(std::vector<double>(longer.begin() + 25, longer.end()), std::vector<double>(5, 0));
}

} // namespace
} // namespace recast::reference::test
