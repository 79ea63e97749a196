#include "CompileTest.h"
#include <unistd.h>

namespace recast::test {
namespace {

using Names = std::vector<std::string>;
using Floats = std::vector<float>;
using Dims = std::vector<int64_t>;

bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }
#define EXPECT_HAS(text, part) EXPECT_TRUE(has(text, part)) << text

constexpr const char *kLinear = R"(
<ir_version: 8, opset_import: ["" : 18]>
linear (float[batch,3] x, float[batch,2] target) => (float[batch,2] y)
<float[3,2] w = {1, 2, 3, 4, 5, 6}>
{
  product = MatMul(x, w)
  y = Sub(product, target)
})";

TEST(Bind, SizesFromFlagsAndFromData) {
  Program flags(kLinear, {.dims = {{"batch", 2}}});
  ASSERT_TRUE(flags);
  flags.set<float>("x", {1, 0, 0, 0, 1, 0});
  flags.set<float>("target", {1, 1, 1, 1});
  flags.run();
  EXPECT_EQ(flags.get<float>("y"), (Floats{0, 1, 2, 3}));

  Program data(kLinear, {.inputs = {{"x", {DType::F32, {5, 3}}}}});
  ASSERT_TRUE(data);
  EXPECT_EQ(data.dims("target"), (Dims{5, 2}));
  EXPECT_EQ(data.dims("y"), (Dims{5, 2}));
}

TEST(Bind, OneModelForSeveralSizes) {
  auto model = loadText(kLinear);
  ASSERT_TRUE(model.ok());
  ASSERT_EQ((*model)->inputs().size(), 2u);
  EXPECT_EQ((*model)->inputs()[0].type, (TensorType{DType::F32, {-1, 3}}));
  EXPECT_EQ((*model)->inputs()[0].symbols, (Names{"batch", ""}));
  EXPECT_EQ((*model)->outputs(), Names{"y"});
  auto two = (*model)->compile({.dims = {{"batch", 2}}}), seven = (*model)->compile({.dims = {{"batch", 7}}});
  auto again = (*model)->compile({.dims = {{"batch", 2}}});
  ASSERT_TRUE(two.ok() && seven.ok() && again.ok());
  EXPECT_EQ((*seven)->buffers[0].type.dims, (Dims{7, 3}));
  EXPECT_EQ(print(**two), print(**again));
}

TEST(Bind, ErrorsNameInputsAndSizes) {
  std::string unbound = errorOf(kLinear);
  EXPECT_HAS(unbound, "'batch' (of input 'x', 'target')");
  EXPECT_HAS(unbound, "--dim=NAME=N");
  EXPECT_HAS(errorOf(kLinear, {.dims = {{"bach", 2}}}), "'batch'");
  EXPECT_HAS(errorOf(kLinear, {.dims = {{"batch", -2}}}), "not negative");
  std::string rank = errorOf(kLinear, {.inputs = {{"x", {DType::F32, {5, 3, 1}}}}});
  EXPECT_HAS(rank, "'x' is f32[batch,3] in the model, but the data gives f32[5,3,1]");
  EXPECT_HAS(errorOf(kLinear, {.inputs = {{"x", {DType::F32, {5, 4}}}}}), "f32[5,4]");
  EXPECT_HAS(errorOf(kLinear, {.inputs = {{"x", {DType::F64, {5, 3}}}}}), "f64[5,3]");
  std::string twice = errorOf(kLinear, {.inputs = {{"x", {DType::F32, {5, 3}}}, {"target", {DType::F32, {4, 2}}}}});
  EXPECT_HAS(twice, "'batch' is 4 by input 'target' (f32[4,2]), but 5 by input 'x'");
  EXPECT_HAS(errorOf(kLinear, {.dims = {{"batch", 3}}, .inputs = {{"x", {DType::F32, {5, 3}}}}}), "3 by --dim");
  EXPECT_HAS(errorOf(kLinear, {.inputs = {{"z", {DType::F32, {5, 3}}}}}), "no input 'z'");
  EXPECT_HAS(errorOf(kLinear, {.dims = {{"batch", int64_t(1) << 50}}}), "larger than any memory");
}

TEST(Bind, AnInputWithADefaultIsAConstantUnlessItIsGiven) {
  const char *text = R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, float[2] w = {10, 20}) => (float[2] y) { y = Add(x, w) })";
  Program constant(text);
  ASSERT_TRUE(constant);
  EXPECT_EQ(constant.plan->inputs.size(), 1u);
  constant.set<float>("x", {1, 2});
  constant.run();
  EXPECT_EQ(constant.get<float>("y"), (Floats{11, 22}));
  Program given(text, {.inputs = {{"w", {DType::F32, {2}}}}});
  ASSERT_TRUE(given);
  EXPECT_EQ(given.plan->inputs.size(), 2u);
}

TEST(Fold, ShapeArithmeticLeavesNoSteps) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[N,2,3] x) => (y)
<int64 zero = {0}, int64[1] axis = {0}, int64[1] rest = {-1}>
{
  shape = Shape(x)
  n = Gather(shape, zero)
  doubled = Add(n, n)
  first = Unsqueeze(doubled, axis)
  target = Concat <axis = 0> (first, rest)
  positive = Relu(x)
  viewed = Reshape(positive, target)
  y = Neg(viewed)
})",
                  {.dims = {{"N", 4}}});
  ASSERT_TRUE(program);
  EXPECT_EQ(program.dims("y"), (Dims{8, 3}));
  EXPECT_EQ(program.ops(), (Names{"Relu", "Neg"}));
  // The view shares its operand's memory.
  EXPECT_EQ(program.plan->steps[0].outputs.size(), 1u);
  EXPECT_EQ(program.plan->rootOf(program.plan->steps[1].inputs[0]), program.plan->steps[0].outputs[0]);
}

TEST(Fold, OldExportersRanges) {
  // arange(N), as older exporters write it.
  Program program(R"(
<ir_version: 8, opset_import: ["" : 12]>
g (float[N,2] x) => (y)
{
  shape = Shape(x)
  first = Constant <value = int64[1] {0}> ()
  last = Constant <value = int64[1] {1}> ()
  n = Slice(shape, first, last)
  ones = ConstantOfShape <value = int64[1] {1}> (n)
  where = NonZero(ones)
  columns = Transpose(where)
  range = Squeeze <axes = [1]> (columns)
  positions = Cast <to = 1> (range)
  column = Unsqueeze <axes = [1]> (positions)
  y = Add(x, column)
})",
                  {.dims = {{"N", 3}}});
  ASSERT_TRUE(program);
  EXPECT_EQ(program.ops(), Names{"Add"});
  program.set<float>("x", {0, 0, 0, 0, 0, 0});
  program.run();
  EXPECT_EQ(program.get<float>("y"), (Floats{0, 0, 1, 1, 2, 2}));
}

TEST(Fold, LargeConstants) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[N,1] x) => (y, z)
<int64[2] shape = {300, 400}, int64[2] turned = {400, 300}>
{
  filled = ConstantOfShape <value = float[1] {2.5}> (shape)
  viewed = Reshape(filled, turned)
  y = Mul(x, filled)
  z = Mul(x, viewed)
})",
                  {.dims = {{"N", 1}}});
  ASSERT_TRUE(program);
  EXPECT_EQ(program.ops(), (Names{"Mul", "Mul"}));
  program.set<float>("x", {2});
  program.run();
  EXPECT_EQ(program.get<float>("y"), Floats(120000, 5));
  EXPECT_EQ(program.dims("z"), (Dims{400, 300}));
}

TEST(Fold, RandomNumbersAndBadDataAreLeftForTheRun) {
  EXPECT_HAS(errorOf(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x) => (y) <float[2] c = {1, 2}> { r = RandomNormalLike(c)  y = Add(x, r) })"),
             "RandomNormalLike");
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x) => (y) <int64[2] a = {1, 2}, int64[2] zero = {0, 1}> {
  q = Div(a, zero)
  f = Cast <to = 1> (q)
  y = Add(x, f)
})");
  ASSERT_TRUE(program);
  Status status = program.executor->run();
  ASSERT_FALSE(status.ok());
  EXPECT_HAS(status.message(), "'q'");
}

TEST(Simplify, DeadOperationsAreDropped) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[4] x) => (y) {
  found = NonZero(x)
  other = Exp(x)
  kept, mask = Dropout(x)
  y = Neg(kept)
})");
  ASSERT_TRUE(program);
  EXPECT_EQ(program.ops(), Names{"Neg"});
}

TEST(Simplify, OutputsThatNobodyReadsAreNotComputed) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2,3] x) => (y) <float[3] s = {1, 1, 1}> { y, mean, deviation = LayerNormalization(x, s) })");
  ASSERT_TRUE(program);
  EXPECT_EQ(program.plan->steps[0].outputs[1], -1);
  program.set<float>("x", {1, 2, 3, 4, 5, 6});
  program.run();
  EXPECT_NEAR(program.get<float>("y")[0], -1.2247, 1e-3);
}

TEST(Functions, LocalFunctionsWithAttributes) {
  Program program(R"(
<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
g (float[2] x) => (y) {
  y = my.twice <alpha = 3.0> (x)
}
<domain: "my", opset_import: ["" : 18, "my" : 1]>
twice <alpha: float> (a) => (c) {
  b = my.scale <by: float = @alpha> (a)
  c = my.scale <by: float = @alpha> (b)
}
<domain: "my", opset_import: ["" : 18]>
scale <by: float> (a) => (c) {
  factor = Constant <value_float: float = @by> ()
  c = Mul(a, factor)
})");
  ASSERT_TRUE(program);
  EXPECT_EQ(program.ops(), (Names{"Mul", "Mul"}));
  program.set<float>("x", {1, 2});
  program.run();
  EXPECT_EQ(program.get<float>("y"), (Floats{9, 18}));
}

TEST(Functions, OperatorsWithoutAKernelAreExpanded) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[4] x) => (y) { y = Shrink <lambd = 1.5, bias = 1.0> (x) })");
  ASSERT_TRUE(program);
  program.set<float>("x", {-2, -1, 1, 2});
  program.run();
  EXPECT_EQ(program.get<float>("y"), (Floats{-1, 0, 0, 1}));
}

constexpr const char *kCounter = R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"w\": \"w_next\", \"step\": \"step_next\"}"]>
g (float[2] x, float[2] w = {1, 2}, int64 step = {0})
  => (float[2] w_next, int64 step_next, float[2] before, float[2] x_out)
<int64 one = {1}>
{
  w_next = Add(w, x)
  step_next = Add(step, one)
  before = Identity(w)
  x_out = Identity(x)
})";

TEST(State, IsKeptFromRunToRun) {
  Program program(kCounter);
  ASSERT_TRUE(program);
  EXPECT_EQ(program.plan->inputs.size(), 1u);
  for (const Buffer &buffer : program.plan->buffers)
    EXPECT_EQ(buffer.place == Place::State, buffer.name == "w" || buffer.name == "step") << buffer.name;
  program.set<float>("x", {10, 10});
  program.run();
  program.run();
  EXPECT_EQ(program.get<float>("w"), (Floats{21, 22}));
  EXPECT_EQ(program.get<int64_t>("step"), std::vector<int64_t>{2});
  EXPECT_EQ(program.get<float>("before"), (Floats{11, 12})); // Not the value after the step.
  EXPECT_EQ(program.get<float>("x_out"), (Floats{10, 10}));
  EXPECT_TRUE(program.plan->metadata.contains("recast.state"));
}

TEST(State, IsListedAndChecked) {
  auto model = loadText(kCounter);
  ASSERT_TRUE(model.ok());
  ASSERT_EQ((*model)->inputs().size(), 3u);
  EXPECT_FALSE((*model)->inputs()[0].isState);
  EXPECT_TRUE((*model)->inputs()[1].isState);
  auto replaced = [](std::string from, std::string to) {
    std::string text = kCounter;
    text.replace(text.find(from), from.size(), to);
    return errorOf(text);
  };
  EXPECT_HAS(replaced(R"(\"w_next\")", R"(\"nowhere\")"), "'nowhere'");
  EXPECT_HAS(replaced(R"(\"w_next\")", R"(\"step_next\")"), "updates both");
  EXPECT_HAS(replaced(R"(\"w_next\")", R"(7)"), "recast.state");
  EXPECT_HAS(replaced("w_next = Add(w, x)", "w_next = Unsqueeze(w, one)"), "f32[2,1]");
  EXPECT_HAS(errorOf(kCounter, {.inputs = {{"w", {DType::F32, {3}}}}}), "f32[3]");
}

TEST(Errors, NameTheNode) {
  std::string control = errorOf(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, int64 n) => (y) {
  [grow] y = Loop (n, , x) <body = b (int64 i, bool c, float[k] s) => (bool c, float[m] t) {
    t = Concat <axis = 0> (s, s)
  }>
})");
  EXPECT_HAS(control, "'grow' (Loop)");
  EXPECT_HAS(control, "another type");
  std::string branches = errorOf(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2] x, bool c) => (float[2] y) {
  [branch] y = If (c) <then_branch = a () => (p) { p = Neg(x) },
                       else_branch = b () => (q) { axes = Constant <value_ints = [0]> () q = Unsqueeze(x, axes) }>
})");
  EXPECT_HAS(branches, "'branch' (If)");
  EXPECT_HAS(branches, "both branches must give one shape");
  std::string dynamic = errorOf(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[4] x) => (y) { y = NonZero(x) })");
  EXPECT_HAS(dynamic, "'y' (NonZero)");
  EXPECT_HAS(dynamic, "depends on data");
  std::string narrow = errorOf(R"(
<ir_version: 10, opset_import: ["" : 21]>
g (int4[4] x) => (float[4] y) { y = Cast <to = 1> (x) })");
  EXPECT_HAS(narrow, "'x'");
  EXPECT_HAS(narrow, "INT4");
  std::string mismatch = errorOf(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3] x, float[4,2] w) => (y) { y = MatMul(x, w) })",
                                 {.dims = {{"N", 2}}});
  EXPECT_HAS(mismatch, "'y' (MatMul)");
  EXPECT_HAS(errorOf("this is no model"), ".onnxtxt");
  auto missing = Model::load("/nonexistent/model.onnx");
  ASSERT_FALSE(missing.ok());
  EXPECT_HAS(missing.message(), "/nonexistent/model.onnx");
}

TEST(Plan, ALongChainNeedsOneBufferInPlaceAndTwoApart) {
  std::string text = "<ir_version: 8, opset_import: [\"\" : 18]> g (float[N,64] x) => (y) {\n";
  constexpr int kNodes = 8000;
  for (int i = 0; i < kNodes; ++i)
    text += (i + 1 < kNodes ? "v" + std::to_string(i) : "y") + (i % 2 ? " = Neg(" : " = Relu(") +
            (i ? "v" + std::to_string(i - 1) : "x") + ")\n";
  for (bool inPlace : {true, false}) {
    Program program(text + "}", {.dims = {{"N", 4}}, .inPlace = inPlace});
    ASSERT_TRUE(program);
    EXPECT_EQ(program.plan->steps.size(), static_cast<size_t>(kNodes));
    EXPECT_EQ(program.plan->arenaBytes, (inPlace ? 1u : 2u) * 4 * 64 * 4);
  }
}

} // namespace
} // namespace recast::test
