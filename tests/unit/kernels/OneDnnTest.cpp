// Every oneDNN kernel against the reference evaluator, over shapes and types.
#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/kernels/Parallel.h"
#include "tests/unit/reference/ReferenceTest.h"

namespace recast::onednn::test {
namespace {

using reference::test::Array;
using reference::test::attributes;
using reference::test::Op;
using reference::test::randomArray;
using reference::test::specOf;
using Dims = std::vector<int64_t>;

/// A type whose kernel a machine may lack: there the entry refuses, and that is all there is to test.
bool optional(DType type) { return type != DType::F32; }

/// Relative spacing of the type's numbers.
double ulp(DType type) { return type == DType::F32 ? 0x1p-23 : type == DType::F16 ? 0x1p-10 : 0x1p-7; }

/// Null, with a failed test, where the entry refuses a step that it must take.
std::unique_ptr<Kernel> make(const StepSpec &spec) {
  std::string refusal;
  std::unique_ptr<Kernel> kernel = create(spec, refusal);
  if (!kernel && !optional(spec.outputs[0].dtype))
    ADD_FAILURE() << spec.op << " was refused: " << refusal;
  return kernel;
}

Array execute(Kernel &kernel, const std::vector<Array> &inputs, const TensorType &output) {
  Array y(output.dtype, output.dims);
  std::fill(y.bytes.begin(), y.bytes.end(), std::byte(0x7f));
  std::vector<TensorRef> inputRefs, outputRefs = {y.ref()};
  for (const Array &input : inputs)
    inputRefs.push_back(input.ref());
  // A guard behind the workspace: nothing may be written past its end.
  constexpr std::byte kGuard{0x5a};
  size_t bytes = kernel.workspaceBytes();
  std::vector<std::byte> memory(bytes + 64 + 64, kGuard);
  auto *start = reinterpret_cast<std::byte *>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  for (int round = 0; round < 2; ++round) {
    Status status = kernel.run({inputRefs, outputRefs, {start, bytes}});
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.message());
  }
  EXPECT_EQ(start[bytes], kGuard);
  return y;
}

/// Runs the step in f32, bf16 and f16 and compares with the reference evaluator, which sums in double. `terms` is the
/// length of the longest sum. Rounding errors of a sum of n random terms in f32 grow as sqrt(n) 2^-24; the bound is
/// 1e-5 sqrt(n) for terms below 1 in magnitude. A 16-bit result may then round to a neighbour: two of its spacings.
void compare(const Op &op, const std::vector<Dims> &inputs, const Dims &output, double terms) {
  for (DType type : {DType::F32, DType::BF16, DType::F16}) {
    std::vector<Array> arrays;
    for (const Dims &dims : inputs)
      arrays.push_back(randomArray(type, dims, 7 + arrays.size()));
    TensorType outputType{type, output};
    StepSpec spec = specOf(op, arrays, {outputType});
    SCOPED_TRACE(op.name + " " + toString(spec.inputs[0]) + " -> " + toString(outputType));
    std::unique_ptr<Kernel> kernel = make(spec);
    if (!kernel)
      continue;
    Array got = execute(*kernel, arrays, outputType), want = reference::test::run(op, arrays, {outputType})[0];
    reference::test::expectInPlace(*kernel, arrays, {outputType}, {got});
    double absolute = 1e-5 * std::sqrt(terms), relative = type == DType::F32 ? 0 : 2 * ulp(type);
    for (size_t i = 0; i < static_cast<size_t>(got.type.elems()); ++i)
      ASSERT_LE(std::fabs(got.get(i) - want.get(i)), absolute + relative * std::fabs(want.get(i)))
          << "element " << i << ": " << got.get(i) << " instead of " << want.get(i);
  }
}

TEST(OneDnnMatMul, AgreesWithReference) {
  struct {
    Dims a, b, y;
  } const shapes[] = {
      {{1, 1}, {1, 1}, {1, 1}},
      {{64, 100}, {100, 33}, {64, 33}},
      {{300}, {300}, {}},
      {{30}, {30, 5}, {5}},
      {{5, 30}, {30}, {5}},
      {{2, 3, 16, 24}, {24, 8}, {2, 3, 16, 8}},
      {{2, 3, 16, 24}, {2, 3, 24, 8}, {2, 3, 16, 8}},
      {{2, 1, 16, 24}, {1, 3, 24, 8}, {2, 3, 16, 8}},
      {{16, 24}, {4, 24, 8}, {4, 16, 8}},
      {{3, 16, 24}, {2, 3, 24, 8}, {2, 3, 16, 8}},
      {{4, 16, 24}, {24}, {4, 16}},
  };
  for (const auto &s : shapes)
    compare({"MatMul", 13}, {s.a, s.b}, s.y, static_cast<double>(s.a.back()));
}

TEST(OneDnnGemm, AgreesWithReference) {
  constexpr int64_t m = 17, n = 40, k = 60;
  for (int64_t transA : {0, 1})
    for (int64_t transB : {0, 1})
      for (float scale : {1.0f, 0.5f})
        for (Dims c : {Dims{n}, Dims{}, Dims{1, n}, Dims{m, 1}, Dims{m, n}}) {
          Op op{"Gemm", 13,
                attributes({{"transA", transA}, {"transB", transB}, {"alpha", scale}, {"beta", 2 * scale - 1}})};
          compare(op, {transA ? Dims{k, m} : Dims{m, k}, transB ? Dims{n, k} : Dims{k, n}, c}, {m, n}, k);
          compare(op, {transA ? Dims{k, m} : Dims{m, k}, transB ? Dims{n, k} : Dims{k, n}}, {m, n}, k);
        }
  StepSpec sum = specOf({"Gemm", 13}, {Array(DType::F32, {m, k}), Array(DType::F32, {k, n}), Array(DType::F32, {m, n})},
                        {{DType::F32, {m, n}}});
  EXPECT_EQ(make(sum)->inPlace().size(), 1u);
}

/// A convolution x[n, c, in] * w[m, c/group, kernel] -> y[n, m, out].
struct Shape {
  Dims x, w, y;
  int64_t group;
  Dims strides, pads, dilations;

  Attributes attrs() const {
    return attributes({{"strides", strides},
                       {"pads", pads},
                       {"dilations", dilations},
                       {"group", group},
                       {"kernel_shape", Dims(w.begin() + 2, w.end())},
                       {"input_spatial", Dims(x.begin() + 2, x.end())}});
  }
};

const Shape kShapes[] = {
    {{2, 3, 17}, {8, 3, 5}, {2, 8, 9}, 1, {2}, {2, 2}, {1}},
    {{2, 1, 28, 28}, {6, 1, 5, 5}, {2, 6, 28, 28}, 1, {1, 1}, {2, 2, 2, 2}, {1, 1}},
    {{4, 16, 14, 14}, {32, 16, 3, 3}, {4, 32, 7, 7}, 1, {2, 2}, {1, 1, 1, 1}, {1, 1}},
    {{4, 16, 14, 14}, {32, 16, 1, 1}, {4, 32, 7, 7}, 1, {2, 2}, {0, 0, 0, 0}, {1, 1}},
    {{2, 24, 12, 12}, {24, 1, 3, 3}, {2, 24, 6, 6}, 24, {2, 2}, {1, 1, 1, 1}, {1, 1}},
    {{2, 12, 9, 9}, {24, 4, 3, 3}, {2, 24, 9, 9}, 3, {1, 1}, {1, 1, 1, 1}, {1, 1}},
    {{1, 8, 12, 11}, {10, 8, 3, 3}, {1, 10, 12, 9}, 1, {1, 1}, {2, 0, 2, 2}, {2, 2}},
    {{2, 8, 7, 7}, {4, 8, 4, 4}, {2, 4, 3, 3}, 1, {2, 2}, {1, 1, 0, 0}, {1, 1}},
    {{1, 4, 6, 7, 8}, {6, 2, 3, 3, 3}, {1, 6, 6, 4, 8}, 2, {1, 2, 1}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}},
};

double product(const Dims &dims) { return static_cast<double>(elementCount(dims)); }

TEST(OneDnnConv, AgreesWithReference) {
  for (const Shape &s : kShapes) {
    double terms = product(s.w) / static_cast<double>(s.w[0]);
    compare({"Conv", 11, s.attrs()}, {s.x, s.w}, s.y, terms);
    compare({"Conv", 11, s.attrs()}, {s.x, s.w, {s.w[0]}}, s.y, terms);
  }
}

TEST(OneDnnConv, AutoPad) {
  compare({"Conv", 11, attributes({{"auto_pad", "SAME_LOWER"}, {"strides", Dims{2, 2}}})}, {{1, 3, 9, 8}, {4, 3, 4, 4}},
          {1, 4, 5, 4}, 48);
}

TEST(OneDnnConvGradInput, AgreesWithReference) {
  for (const Shape &s : kShapes)
    compare({"conv_grad_input", 1, s.attrs(), "recast"}, {s.y, s.w}, s.x, product(s.w) / static_cast<double>(s.w[1]));
}

TEST(OneDnnConvGradWeight, AgreesWithReference) {
  for (const Shape &s : kShapes)
    compare({"conv_grad_weight", 1, s.attrs(), "recast"}, {s.x, s.y}, s.w, product(s.y) / static_cast<double>(s.y[1]));
}

TEST(OneDnnConvTranspose, AgreesWithReference) {
  for (const Shape &s : kShapes) {
    Op op{"ConvTranspose", 11, s.attrs()};
    double terms = product(s.w) / static_cast<double>(s.w[1]);
    compare(op, {s.y, s.w}, s.x, terms);
    compare(op, {s.y, s.w, {s.x[1]}}, s.x, terms);
  }
}

TEST(OneDnnConvTranspose, OutputShapeAndPadding) {
  compare({"ConvTranspose", 11, attributes({{"strides", Dims{2, 2}}, {"output_padding", Dims{1, 1}}})},
          {{2, 6, 5, 5}, {6, 4, 3, 3}, {4}}, {2, 4, 12, 12}, 54);
  compare({"ConvTranspose", 11, attributes({{"strides", Dims{2, 2}}, {"output_shape", Dims{10, 9}}})},
          {{2, 6, 5, 5}, {6, 4, 3, 3}}, {2, 4, 10, 9}, 54);
}

struct Pool {
  Dims x, y;
  Attributes attrs;
};
std::vector<Pool> pools() {
  return {
      {{2, 16, 8, 8}, {2, 16, 4, 4}, attributes({{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}})},
      {{2, 5, 9, 7},
       {2, 5, 5, 4},
       attributes({{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 2}}, {"pads", Dims{1, 1, 1, 1}}})},
      {{2, 3, 8, 8},
       {2, 3, 4, 4},
       attributes({{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 2}}, {"ceil_mode", int64_t(1)}})},
      {{1, 20, 15}, {1, 20, 13}, attributes({{"kernel_shape", Dims{3}}})},
      {{1, 4, 4, 6, 6}, {1, 4, 2, 3, 3}, attributes({{"kernel_shape", Dims{2, 2, 2}}, {"strides", Dims{2, 2, 2}}})},
  };
}

TEST(OneDnnPool, AgreesWithReference) {
  for (const Pool &p : pools()) {
    compare({"MaxPool", 12, p.attrs}, {p.x}, p.y, 1);
    compare({"AveragePool", 11, p.attrs}, {p.x}, p.y, 27);
    if (!p.attrs.has("ceil_mode")) {
      Attributes counting = p.attrs;
      counting.set("count_include_pad", int64_t(1));
      compare({"AveragePool", 11, counting}, {p.x}, p.y, 27);
    }
    Dims global(p.x.size(), 1);
    global[0] = p.x[0], global[1] = p.x[1];
    compare({"GlobalAveragePool", 1}, {p.x}, global, product(p.x) / static_cast<double>(p.x[0] * p.x[1]));
  }
}

TEST(OneDnnPool, GradientsAgreeWithReference) {
  for (const Pool &p : pools()) {
    compare({"max_pool_grad", 1, p.attrs, "recast"}, {p.y, p.x}, p.x, 27);
    compare({"average_pool_grad", 1, p.attrs, "recast"}, {p.y}, p.x, 27);
  }
}

TEST(OneDnnPool, TheFirstMaximumGetsTheGradient) {
  Attributes attrs = attributes({{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}});
  for (DType type : {DType::F32, DType::BF16}) {
    Array x(type, {1, 1, 2, 4}, {0, 5, 0, 0, 5, 5, 0, 0}), dy(type, {1, 1, 1, 2}, {3, 4});
    StepSpec spec = specOf({"max_pool_grad", 1, attrs, "recast"}, {dy, x}, {x.type});
    if (auto kernel = make(spec))
      reference::test::expectEqual(execute(*kernel, {dy, x}, x.type), {0, 3, 4, 0, 0, 0, 0, 0});
  }
}

TEST(OneDnnPool, NaNReachesTheOutput) {
  Attributes attrs = attributes({{"kernel_shape", Dims{2, 2}}});
  for (DType type : {DType::F32, DType::BF16, DType::F16})
    for (size_t place = 0; place < 4; ++place) {
      Array x(type, {1, 1, 2, 2}, {1, 2, 3, INFINITY});
      x.set(place, NAN);
      TensorType y{type, {1, 1, 1, 1}};
      if (auto kernel = make(specOf({"MaxPool", 12, attrs}, {x}, {y})))
        EXPECT_TRUE(std::isnan(execute(*kernel, {x}, y).get(0))) << place;
    }
}

TEST(OneDnn, RunsRepeatBitForBit) {
  const Shape &s = kShapes[2];
  Array x = randomArray(DType::F32, s.x, 1), y = randomArray(DType::F32, s.y, 2);
  TensorType w{DType::F32, s.w};
  auto kernel = make(specOf({"conv_grad_weight", 1, s.attrs(), "recast"}, {x, y}, {w}));
  ASSERT_TRUE(kernel);
  EXPECT_EQ(execute(*kernel, {x, y}, w).bytes, execute(*kernel, {x, y}, w).bytes);
}

std::string whyNot(const Op &op, const std::vector<Array> &inputs, const std::vector<TensorType> &outputs) {
  std::string refusal;
  EXPECT_FALSE(create(specOf(op, inputs, outputs), refusal));
  return refusal;
}

TEST(OneDnn, RefusalsSayWhy) {
  Array f64(DType::F64, {2, 2}), empty(DType::F32, {0, 2}), f32(DType::F32, {2, 2}), image(DType::F32, {1, 1, 4, 4});
  EXPECT_EQ(whyNot({"MatMul", 13}, {f64, f64}, {{DType::F64, {2, 2}}}), "f64 is not supported");
  EXPECT_EQ(whyNot({"MatMul", 13}, {empty, f32}, {{DType::F32, {0, 2}}}), "an empty tensor");
  EXPECT_EQ(whyNot({"Relu", 14}, {f32}, {{DType::F32, {2, 2}}}), "Relu is not one of its operators");
  Dims one{1, 1, 3, 3};
  EXPECT_EQ(whyNot({"MaxPool", 12, attributes({{"kernel_shape", Dims{2, 2}}})}, {image},
                   {{DType::F32, one}, {DType::I64, one}}),
            "the output Indices");
  // A padding that its library does not know: its own words.
  Op odd{"Conv", 11, attributes({{"pads", Dims{-1, 0, 0, 0}}})};
  EXPECT_EQ(
      whyNot(odd, {image, Array(DType::F32, {1, 1, 1, 1})}, {{DType::F32, {1, 1, 3, 4}}}),
      "could not create a primitive descriptor for a convolution forward propagation primitive (invalid arguments)");
}

TEST(KernelList, LibraryFirstReferenceLast) {
  TensorType f32{DType::F32, {2, 2}}, f64{DType::F64, {2, 2}};
  StepSpec spec{"step", "", "MatMul", 13, {}, {f32, f32}, {f32}, {}};
  KernelChoice choice = chooseCpuKernel(spec, false);
  EXPECT_EQ(choice.library, "onednn");
  EXPECT_TRUE(choice.kernel && choice.refusals.empty());
  choice = chooseCpuKernel(spec, true);
  EXPECT_EQ(choice.library, "reference");
  EXPECT_TRUE(choice.refusals.empty());
  spec.inputs = {f64, f64}, spec.outputs = {f64};
  choice = chooseCpuKernel(spec, false);
  EXPECT_EQ(choice.library, "reference");
  EXPECT_EQ(choice.refusals, std::vector<std::string>{"onednn: f64 is not supported"});
}

TEST(KernelList, NoEntryTakesAnUnknownOperator) {
  StepSpec spec{"step", "", "NoSuchOperator", 1, {}, {}, {}, {}};
  KernelChoice choice = chooseCpuKernel(spec, false);
  EXPECT_FALSE(choice.kernel);
  EXPECT_EQ(choice.refusals.size(), 2u);
}

} // namespace
} // namespace recast::onednn::test
