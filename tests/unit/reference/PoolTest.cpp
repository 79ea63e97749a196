// Pools, their gradients, and Resize. Literals come from onnx.reference.
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

using Dims = std::vector<int64_t>;
using List = std::initializer_list<std::pair<const char *, Attributes::Value>>;

// Sums of a few terms in double, and the literals' 15 digits.
constexpr double kTolerance = 1e-14;

Array pool(const char *op, List attrs, const Array &x, Dims out) {
  return run({op, 22, attributes(attrs)}, {x}, {{x.type.dtype, std::move(out)}})[0];
}

TEST(MaxPool, IndicesAreFlatInTheWholeTensor) {
  auto both = [](List attrs, Dims out) {
    return run({"MaxPool", 12, attributes(attrs)}, {pattern({1, 2, 3, 4})}, {{DType::F64, out}, {DType::I64, out}});
  };
  auto padded = both({{"kernel_shape", Dims{2, 2}}, {"pads", Dims{1, 1, 0, 0}}, {"strides", Dims{2, 2}}}, {1, 2, 2, 2});
  expectEqual(padded[0], {-1.25, 0.5, 0.25, 1, 0.5, 1.25, 0.75, 1});
  expectEqual(padded[1], {0, 1, 4, 6, 12, 14, 20, 17});
  auto columns =
      both({{"kernel_shape", Dims{2, 2}}, {"strides", Dims{1, 2}}, {"storage_order", int64_t(1)}}, {1, 2, 2, 2});
  expectEqual(columns[0], {0.5, 1.25, 0.75, 1, 1, 1.25, 1, 0.5});
  expectEqual(columns[1], {3, 9, 5, 7, 16, 18, 16, 23});
}

TEST(MaxPool, CeilModeAndDilations) {
  expectEqual(
      pool(
          "MaxPool",
          {{"kernel_shape", Dims{2, 2}}, {"dilations", Dims{2, 2}}, {"strides", Dims{2, 2}}, {"ceil_mode", int64_t(1)}},
          pattern({1, 1, 5, 5}), {1, 1, 2, 2}),
      {0.5, 1.25, 0.75, 1.25});
}

TEST(MaxPool, TheFirstMaximumWinsAndNaNIsTheLargest) {
  auto places = [](const std::vector<double> &values) {
    return run({"MaxPool", 12, attributes({{"kernel_shape", Dims{4}}})}, {f32({1, 1, 4}, values)},
               {{DType::F32, {1, 1, 1}}, {DType::I64, {1, 1, 1}}});
  };
  expectEqual(places({1, 3, 3, 2})[1], {1});
  expectNear(places({1, NAN, 3, NAN})[0], {NAN}, 0);
  expectEqual(places({1, NAN, 3, NAN})[1], {1});
  expectEqual(places({-INFINITY, -INFINITY, -INFINITY, -INFINITY})[1], {0});
  EXPECT_EQ(places({-INFINITY, -INFINITY, -INFINITY, -INFINITY})[0].get(0), -INFINITY);
}

TEST(MaxPool, SmallIntegers) {
  Op op{"MaxPool", 12, attributes({{"kernel_shape", Dims{2}}})};
  expectEqual(run(op, {{DType::I8, {1, 1, 3}, {-128, -128, -5}}}, {{DType::I8, {1, 1, 2}}})[0], {-128, -5});
}

TEST(AveragePool, CountsPaddingOnlyWhenAsked) {
  Array x = pattern({1, 1, 4, 4});
  expectNear(pool("AveragePool", {{"kernel_shape", Dims{3, 3}}, {"pads", Dims{1, 1, 1, 1}}, {"strides", Dims{2, 2}}}, x,
                  {1, 1, 2, 2}),
             {-0.3125, 0.25, -0.125, 0.0555555555555556}, kTolerance);
  // With ceil_mode the last window passes the padding's end; what lies beyond is not counted.
  expectNear(pool("AveragePool",
                  {{"kernel_shape", Dims{3, 3}},
                   {"pads", Dims{1, 1, 1, 1}},
                   {"strides", Dims{2, 2}},
                   {"ceil_mode", int64_t(1)},
                   {"count_include_pad", int64_t(1)}},
                  x, {1, 1, 3, 3}),
             {-0.138888888888889, 0.166666666666667, 0.208333333333333, -0.0833333333333333, 0.0555555555555556,
              -0.166666666666667, 0, 0.166666666666667, 0.0625},
             kTolerance);
}

TEST(LpPool, IsANorm) {
  expectNear(pool("LpPool", {{"kernel_shape", Dims{2, 2}}, {"p", int64_t(3)}}, pattern({1, 1, 3, 3}), {1, 1, 2, 2}),
             {1.59357777198227, 0.882587083831516, 1.43722426973621, 1.1285893588685}, kTolerance);
}

TEST(GlobalPool, ReducesEachChannel) {
  Array x = f64({1, 2, 2, 2}, {1, 2, 3, 6, -1, -2, -2, 0});
  expectEqual(pool("GlobalAveragePool", {}, x, {1, 2, 1, 1}), {3, -1.25});
  expectEqual(pool("GlobalMaxPool", {}, x, {1, 2, 1, 1}), {6, 0});
  expectNear(pool("GlobalLpPool", {}, x, {1, 2, 1, 1}), {std::sqrt(50.0), 3}, kTolerance);
}

TEST(Pool, EmptyBatch) {
  Array none(DType::F32, {0, 2, 4});
  for (const char *op : {"MaxPool", "AveragePool", "LpPool"})
    expectEqual(pool(op, {{"kernel_shape", Dims{2}}}, none, {0, 2, 3}), {});
}

struct PoolShape {
  Dims in, out;
  List attrs;
};
const PoolShape kPools[] = {
    {{2, 1, 6}, {2, 1, 3}, {{"kernel_shape", Dims{2}}, {"strides", Dims{2}}}},
    {{1, 2, 5, 4}, {1, 2, 3, 4}, {{"kernel_shape", Dims{3, 2}}, {"strides", Dims{2, 1}}, {"pads", Dims{1, 1, 1, 0}}}},
    {{1, 1, 7, 6},
     {1, 1, 4, 3},
     {{"kernel_shape", Dims{2, 3}}, {"strides", Dims{2, 2}}, {"ceil_mode", int64_t(1)}, {"pads", Dims{0, 0, 0, 1}}}},
    {{1, 1, 3, 4, 3}, {1, 1, 2, 3, 1}, {{"kernel_shape", Dims{2, 2, 2}}, {"dilations", Dims{1, 1, 2}}}},
};

TEST(MaxPoolGrad, IsTheDerivative) {
  for (const PoolShape &p : kPools) {
    // Distinct values more than two difference steps apart, so that no maximum moves.
    Array x(DType::F64, p.in);
    for (int64_t i = 0; i < x.type.elems(); ++i)
      x.set(static_cast<size_t>(i), static_cast<double>(i * 37 % 101) * 0.01);
    Array dy = pattern(p.out, 4);
    Op grad{"max_pool_grad", 1, attributes(p.attrs), "recast"};
    Array dx = run(grad, {dy, x}, {{DType::F64, p.in}})[0];
    expectGradient({"MaxPool", 12, attributes(p.attrs)}, {x}, 0, {{DType::F64, p.out}}, dy, dx);
  }
}

TEST(MaxPoolGrad, GoesToTheFirstOfEqualMaxima) {
  auto grad = [](Dims kernel, Dims strides, const Array &dy, const Array &x) {
    return run({"max_pool_grad", 1, attributes({{"kernel_shape", kernel}, {"strides", strides}}), "recast"}, {dy, x},
               {{DType::F16, x.type.dims}})[0];
  };
  Array x(DType::F16, {1, 1, 2, 4}, {0, 5, 1, 1, 5, 5, 1, 1});
  expectEqual(grad({2, 2}, {2, 2}, {DType::F16, {1, 1, 1, 2}, {3, 4}}, x), {0, 3, 4, 0, 0, 0, 0, 0});
  // Overlapping windows: 2048 + 1 + 1 in double is 2050; sums rounded to f16 one by one would stay at 2048.
  Array peak(DType::F16, {1, 1, 5}, {0, 0, 9, 0, 0});
  expectEqual(grad({3}, {1}, {DType::F16, {1, 1, 3}, {2048, 1, 1}}, peak), {0, 0, 2050, 0, 0});
}

TEST(AveragePoolGrad, IsTheDerivative) {
  for (const PoolShape &p : kPools)
    for (int64_t countPadding : {0, 1}) {
      Attributes attrs = attributes(p.attrs);
      attrs.set("count_include_pad", countPadding);
      attrs.set("input_spatial", Dims(p.in.begin() + 2, p.in.end()));
      Array x = pattern(p.in), dy = pattern(p.out, 4);
      Array dx = run({"average_pool_grad", 1, attrs, "recast"}, {dy}, {{DType::F64, p.in}})[0];
      expectGradient({"AveragePool", 22, attrs}, {x}, 0, {{DType::F64, p.out}}, dy, dx);
    }
}

// Resize ------------------------------------------------------------------------------------------------------------

Array resize(List attrs, const Array &x, const std::vector<double> &scales, Dims out) {
  Array s(DType::F32, {static_cast<int64_t>(scales.size())}, scales);
  return run({"Resize", 19, attributes(attrs)}, {x, Array(), s}, {{x.type.dtype, std::move(out)}})[0];
}

TEST(Resize, Interpolates) {
  Array x = pattern({1, 1, 2, 3});
  std::vector<double> scales = {1, 1, 1.5, 2};
  expectEqual(
      resize({{"mode", "nearest"}}, x, scales, {1, 1, 3, 6}),
      {-1.25, -1.25, 0.5, 0.5, -0.5, -0.5, -1.25, -1.25, 0.5, 0.5, -0.5, -0.5, 1.25, 1.25, 0.25, 0.25, -0.75, -0.75});
  expectNear(resize({{"mode", "linear"}}, x, scales, {1, 1, 3, 6}),
             {-1.25, -0.8125, 0.0625, 0.25, -0.25, -0.5, 0, 0.09375, 0.28125, 0.125, -0.375, -0.625, 1.25, 1, 0.5, 0,
              -0.5, -0.75},
             kTolerance);
  expectNear(
      resize({{"mode", "linear"}, {"coordinate_transformation_mode", "align_corners"}}, x, scales, {1, 1, 3, 6}),
      {-1.25, -0.55, 0.15, 0.3, -0.1, -0.5, 0, 0.15, 0.3, 0.175, -0.225, -0.625, 1.25, 0.85, 0.45, 0.05, -0.35, -0.75},
      kTolerance);
  expectNear(
      resize({{"mode", "cubic"}, {"antialias", int64_t(1)}}, pattern({1, 1, 4, 4}), {1, 1, 0.5, 0.75}, {1, 1, 2, 3}),
      {-0.507907329264383, 0.083392329519477, 0.356052039437523, -0.1258412966059, 0.387980887378841,
       -0.168256458409674},
      kTolerance);
}

TEST(Resize, SizesOfSomeAxes) {
  Op op{"Resize", 19, attributes({{"mode", "linear"}, {"axes", Dims{2, 3}}, {"exclude_outside", int64_t(1)}})};
  Array sizes = i64({2}, {3, 2});
  expectNear(run(op, {pattern({1, 1, 2, 3}), Array(), Array(), sizes}, {{DType::F64, {1, 1, 3, 2}}})[0],
             {-0.8125, -0.25, 0.09375, -0.375, 1, -0.5}, kTolerance);
}

TEST(Upsample, RepeatsElements) {
  Array x = f32({1, 1, 1, 2}, {1, 2}), scales = f32({4}, {1, 1, 2, 2});
  expectEqual(run({"Upsample", 9}, {x, scales}, {{DType::F32, {1, 1, 2, 4}}})[0], {1, 1, 2, 2, 1, 1, 2, 2});
  Op old{"Upsample", 7, attributes({{"scales", std::vector<float>{1, 1, 2, 2}}})};
  expectEqual(run(old, {x}, {{DType::F32, {1, 1, 2, 4}}})[0], {1, 1, 2, 2, 1, 1, 2, 2});
}

} // namespace
} // namespace recast::reference::test
