#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/FiniteDifference.h"

namespace recast::reference::test {
namespace {

/// 0, 1, 2, ...
Array counting(DType dtype, std::vector<int64_t> dims) {
  Array array(dtype, std::move(dims));
  for (size_t i = 0; i < static_cast<size_t>(array.type.elems()); ++i)
    array.set(i, static_cast<double>(i));
  return array;
}

TensorType type(DType dtype, std::vector<int64_t> dims) { return {dtype, std::move(dims)}; }

TEST(Shape, ViewsKeepTheBytes) {
  Array x = counting(DType::F16, {2, 3});
  for (const char *op : {"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
    expectEqual(run({op, 13}, {x, i64({2}, {3, 2})}, {type(DType::F16, {3, 2})})[0], x.values());
}

TEST(Shape, ViewInPlaceDoesNothing) {
  Array x = counting(DType::F32, {2, 3});
  StepSpec spec = specOf({"Reshape", 14}, {x}, {x.type});
  std::string refusal;
  TensorRef ref = x.ref();
  ASSERT_TRUE(create(spec, refusal)->run({{&ref, 1}, {&ref, 1}, {}}).ok());
  expectEqual(x, {0, 1, 2, 3, 4, 5});
}

TEST(Shape, TransposeOfEveryElementSize) {
  for (DType dtype : {DType::U8, DType::BF16, DType::F32, DType::I64})
    expectEqual(run({"Transpose", 13, attributes({{"perm", std::vector<int64_t>{1, 0}}})}, {counting(dtype, {2, 3})},
                    {type(dtype, {3, 2})})[0],
                {0, 3, 1, 4, 2, 5});
}

TEST(Shape, TransposeLargerThanATile) {
  // Odd sizes around the tile of 32, with batch dimensions on either side.
  const std::vector<int64_t> dims = {3, 67, 2, 45}, perm = {3, 0, 2, 1};
  Array x = randomArray(DType::F32, dims, 1);
  for (int threads : {1, 2}) {
    setThreadCount(threads);
    Array y = run({"Transpose", 13, attributes({{"perm", perm}})}, {x}, {type(DType::F32, {45, 3, 2, 67})})[0];
    size_t at = 0;
    for (int64_t d = 0; d < 45; ++d)
      for (int64_t a = 0; a < 3; ++a)
        for (int64_t c = 0; c < 2; ++c)
          for (int64_t b = 0; b < 67; ++b)
            ASSERT_EQ(y.get(at++), x.get(static_cast<size_t>(((a * 67 + b) * 2 + c) * 45 + d)));
  }
  setThreadCount(1);
}

TEST(Shape, TransposeWithoutPermReverses) {
  expectEqual(run({"Transpose", 1}, {counting(DType::I32, {1, 2, 3})}, {type(DType::I32, {3, 2, 1})})[0],
              {0, 3, 1, 4, 2, 5});
}

TEST(Shape, ConcatAndSplitAreInverse) {
  Array a = f32({2, 1}, {1, 2}), b = f32({2, 0}, {}), c = f32({2, 2}, {3, 4, 5, 6});
  Op concat{"Concat", 13, attributes({{"axis", int64_t(-1)}})};
  Array y = run(concat, {a, b, c}, {type(DType::F32, {2, 3})})[0];
  expectEqual(y, {1, 3, 4, 2, 5, 6});
  Op split{"Split", 13, attributes({{"axis", int64_t(1)}})};
  std::vector<Array> parts = run(split, {y, i64({3}, {1, 0, 2})}, {a.type, b.type, c.type});
  expectEqual(parts[0], a.values());
  expectEqual(parts[2], c.values());
  // An output that nothing reads is absent.
  expectEqual(run(split, {y, i64({2}, {1, 2})}, {TensorType(), c.type})[1], c.values());
  // num_outputs: the last part is shorter.
  Op equal{"Split", 18, attributes({{"axis", int64_t(1)}, {"num_outputs", int64_t(2)}})};
  expectEqual(run(equal, {y}, {c.type, a.type})[1], {4, 6});
}

TEST(Shape, SliceClampsAndSteps) {
  Array x = counting(DType::F32, {3, 4});
  struct Case {
    std::vector<double> starts, ends, axes, steps;
    std::vector<int64_t> dims;
    std::vector<double> want;
  } cases[] = {
      {{1}, {100}, {0}, {1}, {2, 4}, {4, 5, 6, 7, 8, 9, 10, 11}},
      {{-1}, {-9223372036854775807.0}, {1}, {-2}, {3, 2}, {3, 1, 7, 5, 11, 9}},
      {{-100, 3}, {2, 0}, {0, -1}, {1, -2}, {2, 2}, {3, 1, 7, 5}},
      {{2}, {1}, {0}, {1}, {0, 4}, {}},
      {{0}, {3}, {0}, {1e18}, {1, 4}, {0, 1, 2, 3}},
  };
  for (const Case &c : cases) {
    auto list = [](const std::vector<double> &values) { return i64({static_cast<int64_t>(values.size())}, values); };
    Array y = run({"Slice", 13}, {x, list(c.starts), list(c.ends), list(c.axes), list(c.steps)},
                  {type(DType::F32, c.dims)})[0];
    expectEqual(y, c.want);
  }
  Op attributesForm{"Slice", 1,
                    attributes({{"starts", std::vector<int64_t>{1}},
                                {"ends", std::vector<int64_t>{-1}},
                                {"axes", std::vector<int64_t>{1}}})};
  expectEqual(run(attributesForm, {x}, {type(DType::F32, {3, 2})})[0], {1, 2, 5, 6, 9, 10});
}

TEST(Shape, SliceThatDoesNotFitThePlanIsAnError) {
  Status status = Status::success();
  tryRun({"Slice", 13}, {f32({4}, {0, 1, 2, 3}), i64({1}, {0}), i64({1}, {3})}, {type(DType::F32, {2})}, status);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("'step'"), std::string::npos);
  tryRun({"Slice", 13}, {f32({4}, {0, 1, 2, 3}), i64({1}, {0}), i64({1}, {3}), i64({1}, {0}), i64({1}, {0})},
         {type(DType::F32, {3})}, status);
  EXPECT_FALSE(status.ok());
}

TEST(Shape, SliceGradient) {
  std::vector<Array> list = {i64({2}, {-1, 1}), i64({2}, {-100, 4}), i64({2}, {0, 1}), i64({2}, {-2, 2})};
  Array x = pattern({3, 5}), dy = pattern({2, 2}, 3);
  Array dx =
      run({"slice_grad", 1, {}, "recast"}, {dy, i64({2}, {3, 5}), list[0], list[1], list[2], list[3]}, {x.type})[0];
  expectGradient({"Slice", 13}, {x, list[0], list[1], list[2], list[3]}, 0, {dy.type}, dy, dx);
}

/// Values from numpy.pad.
TEST(Shape, PadModes) {
  Array x = f32({3}, {1, 2, 3});
  struct Case {
    const char *mode;
    std::vector<double> want;
  } cases[] = {{"constant", {9, 9, 9, 1, 2, 3, 9, 9}},
               {"reflect", {2, 3, 2, 1, 2, 3, 2, 1}},
               {"edge", {1, 1, 1, 1, 2, 3, 3, 3}},
               {"wrap", {1, 2, 3, 1, 2, 3, 1, 2}}};
  for (const Case &c : cases)
    expectEqual(run({"Pad", 19, attributes({{"mode", std::string(c.mode)}})}, {x, i64({2}, {3, 2}), f32({}, {9})},
                    {type(DType::F32, {8})})[0],
                c.want);
  // Only the axes given, a negative pad that removes, and the attributes of version 2.
  Array square = counting(DType::I64, {2, 3});
  expectEqual(run({"Pad", 18}, {square, i64({2}, {-1, 1}), Array(), i64({1}, {-1})}, {type(DType::I64, {2, 3})})[0],
              {1, 2, 0, 4, 5, 0});
  Op old{"Pad", 2, attributes({{"pads", std::vector<int64_t>{0, 1, 0, 0}}, {"value", 7.0f}})};
  expectEqual(run(old, {f32({1, 2}, {1, 2})}, {type(DType::F32, {1, 3})})[0], {7, 1, 2});
  EXPECT_NE(refusalOf({"Pad", 19, attributes({{"mode", std::string("mirror")}})}, {x}, {x.type}), "");
}

TEST(Shape, PadGradients) {
  for (const char *mode : {"constant", "reflect", "edge", "wrap"}) {
    Op forward{"Pad", 19, attributes({{"mode", std::string(mode)}})}, backward{"pad_grad", 1, forward.attrs, "recast"};
    Array x = pattern({2, 3, 4}), pads = i64({6}, {0, 2, 1, 0, 1, 5}), dy = pattern({2, 6, 10}, 4);
    Array dx = run(backward, {dy, i64({3}, {2, 3, 4}), pads}, {x.type})[0];
    expectGradient(forward, {x, pads}, 0, {dy.type}, dy, dx);
  }
}

TEST(Shape, ExpandAndTile) {
  expectEqual(run({"Expand", 13}, {f32({2, 1}, {1, 2}), i64({3}, {2, 1, 3})}, {type(DType::F32, {2, 2, 3})})[0],
              {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2});
  expectEqual(run({"Tile", 13}, {f32({2, 2}, {1, 2, 3, 4}), i64({2}, {2, 2})}, {type(DType::F32, {4, 4})})[0],
              {1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4});
}

TEST(Shape, ShapeSizeAndRange) {
  Array x(DType::F32, {2, 3, 4});
  Op part{"Shape", 15, attributes({{"start", int64_t(-2)}, {"end", int64_t(100)}})};
  expectEqual(run(part, {x}, {type(DType::I64, {2})})[0], {3, 4});
  expectEqual(run({"Size", 13}, {x}, {type(DType::I64, {})})[0], {24});
  expectEqual(run({"Range", 11}, {i64({}, {5}), i64({}, {0}), i64({}, {-2})}, {type(DType::I64, {3})})[0], {5, 3, 1});
  expectNear(run({"Range", 11}, {f32({}, {0}), f32({}, {1}), f32({}, {0.25})}, {type(DType::F32, {4})})[0],
             {0, 0.25, 0.5, 0.75}, 0);
}

TEST(Shape, TriluAndEyeLike) {
  Array x = f32({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  auto trilu = [&](int64_t upper, double k) {
    return run({"Trilu", 14, attributes({{"upper", upper}})}, {x, i64({}, {k})}, {x.type})[0];
  };
  expectEqual(trilu(1, 0), {1, 2, 3, 0, 5, 6});
  expectEqual(trilu(1, 2), {0, 0, 3, 0, 0, 0});
  expectEqual(trilu(0, 0), {1, 0, 0, 4, 5, 0});
  expectEqual(trilu(0, -9223372036854775807.0), {0, 0, 0, 0, 0, 0});
  expectEqual(
      run({"EyeLike", 9, attributes({{"k", int64_t(-1)}})}, {Array(DType::F32, {3, 2})}, {type(DType::I32, {3, 2})})[0],
      {0, 0, 1, 0, 0, 1});
}

TEST(Shape, DepthAndSpace) {
  Array x = counting(DType::F32, {1, 8, 1, 2});
  auto op = [](const char *name, const char *mode) {
    return Op{name, 13, attributes({{"blocksize", int64_t(2)}, {"mode", std::string(mode)}})};
  };
  Array dcr = run(op("DepthToSpace", "DCR"), {x}, {type(DType::F32, {1, 2, 2, 4})})[0];
  expectEqual(dcr, {0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15});
  Array crd = run(op("DepthToSpace", "CRD"), {x}, {type(DType::F32, {1, 2, 2, 4})})[0];
  expectEqual(crd, {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
  expectEqual(run(op("SpaceToDepth", "DCR"), {dcr}, {x.type})[0], x.values());
  expectEqual(run(op("SpaceToDepth", "CRD"), {crd}, {x.type})[0], x.values());
}

TEST(Shape, ReverseSequence) {
  Array x = counting(DType::F32, {3, 2});
  expectEqual(run({"ReverseSequence", 10}, {x, i64({2}, {3, 2})}, {x.type})[0], {4, 3, 2, 1, 0, 5});
  Status status = Status::success();
  tryRun({"ReverseSequence", 10}, {x, i64({2}, {3, 4})}, {x.type}, status);
  EXPECT_FALSE(status.ok());
}

TEST(Shape, EmptyTensors) {
  expectEqual(run({"Transpose", 13}, {Array(DType::F32, {0, 3})}, {type(DType::F32, {3, 0})})[0], {});
  expectEqual(run({"Pad", 19}, {Array(DType::F32, {0}), i64({2}, {1, 1})}, {type(DType::F32, {2})})[0], {0, 0});
}

} // namespace
} // namespace recast::reference::test
