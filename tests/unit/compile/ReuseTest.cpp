// Where results lie: in the memory of operands that die, of states, of other shapes of the same value.
#include "runtime/plan/MemoryUse.h"
#include "runtime/session/NonFinite.h"
#include "tests/unit/compile/CompileTest.h"

namespace recast::test {
namespace {

using Names = std::vector<std::string>;
using Floats = std::vector<float>;
using Pairs = std::vector<std::pair<std::string, std::string>>;

/// "result over operand, ..." of every step, by names.
std::string overwrites(const Plan &plan) {
  std::string text;
  for (const Step &step : plan.steps)
    for (int index : overwritten(plan, step))
      text += (text.empty() ? "" : ", ") + step.origin + " over " + plan.buffers[static_cast<size_t>(index)].name;
  return text;
}

/// The output's buffer is the state's.
bool isInPlace(const Plan &plan, const std::string &name) {
  for (const Output &output : plan.outputs)
    if (output.name == name)
      return plan.rootOf(output.buffer) == output.updates;
  ADD_FAILURE() << "no output " << name;
  return false;
}

constexpr const char *kChain = R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[1000] x) => (float[1000] y)
<int64[2] shape = {10, 100}, int64[1] flat = {-1}>
{
  a = Exp(x)
  b = Neg(a)
  c = Reshape(b, shape)
  d = Sqrt(c)
  e = Reshape(d, flat)
  y = Add(e, e)
})";

TEST(Reuse, AChainTakesOneTensorsMemory) {
  Program program(kChain), apart(kChain, {.inPlace = false});
  ASSERT_TRUE(program && apart);
  EXPECT_EQ(overwrites(*program.plan), "b over a, d over c, y over e");
  EXPECT_EQ(program.plan->arenaBytes, alignedBytes(4000));
  EXPECT_EQ(overwrites(*apart.plan), "");
  EXPECT_EQ(apart.plan->arenaBytes, 2 * alignedBytes(4000));
  EXPECT_NE(print(*program.plan).find("overwrites a"), std::string::npos) << print(*program.plan);
  EXPECT_NE(print(*program.plan).find("c f32[10,100] in b"), std::string::npos) << print(*program.plan);
}

TEST(Reuse, NotOfWhatIsReadLaterNorBroadcastNorOutside) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[8,8] x, float[8] row) => (float[8,8] kept, float[8,8] y)
<int64[1] one = {1}, float[8,8] ones = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}>
{
  kept = Exp(x)
  a = Neg(kept)
  r = Exp(row)
  column = Unsqueeze(r, one)
  b = Mul(r, column)
  c = Add(a, b)
  d = Mul(ones, a)
  y = Sub(c, d)
})");
  ASSERT_TRUE(program);
  // `kept` is an output, `r` is smaller than `b`, `a` is read again; `x` and `ones` do not lie in the arena.
  EXPECT_EQ(overwrites(*program.plan), "c over b, d over a, y over c");
}

TEST(Reuse, AnOperandUnderTwoNumbersIsTakenOnlyIfBothMayBe) {
  // Gemm adds to its third operand where it lies, and reads the first all along.
  const char *text = R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[16,16] x) => (float[16,16] c, float[16,16] y) {
  a = Exp(x)
  b = Exp(x)
  c = Gemm(a, b, b)
  d = Exp(x)
  y = Gemm(x, x, d)
})";
  Program program(text);
  ASSERT_TRUE(program);
  EXPECT_EQ(overwrites(*program.plan), program.plan->steps.back().library == "onednn" ? "y over d" : "");
}

constexpr const char *kCounter = R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"w\": \"w_next\", \"v\": \"v_next\"}"]>
g (float[2] x, int64[1] at, float[2] w = {1, 2}, float[2] v = {3, 4})
  => (float[2] w_next, float[2] v_next, float[2] again, LAST)
{
  scaled = Mul(w, x)
  w_next = Sub(scaled, x)
  v_next = Add(v, w_next)
  again = Identity(w_next)
  LAST
})";

std::string counter(const std::string &output, const std::string &node) {
  std::string text = kCounter;
  text.replace(text.find("LAST"), 4, output);
  return text.replace(text.rfind("LAST"), 4, node);
}

TEST(State, IsWrittenWhereItLies) {
  Program program(counter("float[2] late", "late = Neg(w_next)"));
  ASSERT_TRUE(program);
  // The whole chain that leads to the new value lies there.
  EXPECT_EQ(overwrites(*program.plan), "scaled over w, w_next over scaled, v_next over v");
  EXPECT_TRUE(isInPlace(*program.plan, "w_next") && isInPlace(*program.plan, "v_next"));
  program.set<float>("x", {10, 20});
  program.run();
  program.run();
  EXPECT_EQ(program.get<float>("w"), (Floats{-10, 380}));
  EXPECT_EQ(program.get<float>("w_next"), (Floats{-10, 380}));
  EXPECT_EQ(program.get<float>("again"), (Floats{-10, 380}));
  EXPECT_EQ(program.get<float>("late"), (Floats{10, -380}));
  EXPECT_EQ(program.get<float>("v"), (Floats{-7, 404}));
}

TEST(State, IsCopiedWhereTheOldOneIsReadLater) {
  for (auto [output, node] : {std::pair("float[2] old", "old = Neg(w)"), std::pair("float[2] old", "old = Identity(w)"),
                              std::pair("float[1,2] old", "zero = Constant <value_ints = [0]> ()\n"
                                                          "old = Unsqueeze(w, zero)")}) {
    Program program(counter(output, node));
    ASSERT_TRUE(program);
    EXPECT_FALSE(isInPlace(*program.plan, "w_next")) << node;
    EXPECT_TRUE(isInPlace(*program.plan, "v_next"));
    program.set<float>("x", {10, 20});
    program.run();
    program.run();
    EXPECT_EQ(program.get<float>("w"), (Floats{-10, 380}));
    float sign = std::string_view(node).find("Neg") == std::string_view::npos ? 1 : -1;
    EXPECT_EQ(program.get<float>("old"), (Floats{0 * sign, 20 * sign})) << node; // Not the value after the step.
  }
}

TEST(State, IsCopiedWhereALaterStepMayFail) {
  Program program(counter("float[1] row", "row = Gather(x, at)"));
  ASSERT_TRUE(program);
  EXPECT_FALSE(isInPlace(*program.plan, "w_next") || isInPlace(*program.plan, "v_next"));
  program.set<float>("x", {10, 20});
  program.set<int64_t>("at", {2});
  EXPECT_FALSE(program.executor->run().ok());
  EXPECT_EQ(program.get<float>("w"), (Floats{1, 2}));
  EXPECT_EQ(program.get<float>("v"), (Floats{3, 4}));
  program.set<int64_t>("at", {1});
  program.run();
  EXPECT_EQ(program.get<float>("w"), (Floats{0, 20}));
}

TEST(State, ADivisionOfIntegersMayFailAndOneOfFloatsNot) {
  EXPECT_TRUE(isInPlace(*Program(counter("float[2] q", "q = Div(x, x)")).plan, "w_next"));
  EXPECT_FALSE(isInPlace(*Program(counter("int64[1] q", "q = Div(at, at)")).plan, "w_next"));
}

TEST(State, ASwapIsReadBeforeItIsWritten) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"a\": \"b\", \"b\": \"a_next\"}"]>
g (float[2] a = {1, 2}, float[2] b = {3, 4}) => (float[2] b, float[2] a_next) { a_next = Identity(a) })");
  ASSERT_TRUE(program);
  for (int i = 0; i < 3; ++i)
    program.run();
  EXPECT_EQ(program.get<float>("a"), (Floats{3, 4}));
}

TEST(State, OneValueForTwoStates) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"a\": \"n\", \"b\": \"m\"}"]>
g (float[2] a = {1, 2}, float[2] b = {3, 4}) => (float[2] n, float[2] m) {
  n = Add(a, b)
  m = Identity(n)
})");
  ASSERT_TRUE(program);
  program.run();
  program.run();
  EXPECT_EQ(program.get<float>("a"), (Floats{8, 12}));
  EXPECT_EQ(program.get<float>("b"), (Floats{8, 12}));
}

TEST(View, OfInputsAndStateAndWhatBodiesCaptureIsNoStep) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"w\": \"w_next\"}"]>
g (float[2,3] x, float[6] w = {1, 2, 3, 4, 5, 6}, bool c) => (float[6] flat, float[6] w_next, float[6] chosen)
<int64[1] minus = {-1}, int64[2] two = {2, 3}>
{
  flat = Reshape(x, minus)
  shaped = Reshape(w, two)
  sum = Add(shaped, x)
  w_next = Reshape(sum, minus)
  chosen = If (c) <
    then_branch = t () => (float[6] inside) { inside = Reshape(x, minus) },
    else_branch = e () => (float[6] other) { squared = Mul(x, x)  other = Reshape(squared, minus) }
  >
})");
  ASSERT_TRUE(program);
  EXPECT_EQ(program.ops(), (Names{"Add", "If"}));
  EXPECT_TRUE(program.plan->steps[1].bodies[0].steps.empty());
  EXPECT_EQ(overwrites(*program.plan), "sum over shaped");
  for (bool condition : {true, false}) {
    program.set<float>("x", {1, 2, 3, 4, 5, 6});
    *program.executor->tensor(program.executor->find("c")).as<bool>() = condition;
    program.run();
    EXPECT_EQ(program.get<float>("flat"), (Floats{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(program.get<float>("chosen"), condition ? Floats({1, 2, 3, 4, 5, 6}) : Floats({1, 4, 9, 16, 25, 36}));
  }
  EXPECT_EQ(program.get<float>("w"), (Floats{3, 6, 9, 12, 15, 18}));
}

/// A sum and a product over rows; `start` may be read elsewhere, and `moved` becomes the state of another.
constexpr const char *kScan = R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[3,2] xs, float[2] zero) => (float[2] sum, float[2] last, float[3,2] sums, float[2] outside)
{
  start = Exp(zero)
  sum, last, sums = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] p, float[2] x)
      => (float[2] t, float[2] q, float[2] u) {
    t = Add(s, x)
    q = Identity(s)
    INSIDE
  }> (start, start, xs)
  outside = Neg(OUTSIDE)
})";

std::string scan(const std::string &inside, const std::string &outside) {
  std::string text = kScan;
  text.replace(text.find("INSIDE"), 6, inside);
  return text.replace(text.find("OUTSIDE"), 7, outside);
}

TEST(Carried, StatesAreWrittenWhereTheyLieUnlessTheyMove) {
  Program program(scan("u = Sub(t, p)", "sum"));
  ASSERT_TRUE(program);
  program.set<float>("xs", {1, 2, 3, 4, 5, 6});
  program.set<float>("zero", {0, 0});
  program.run();
  EXPECT_EQ(program.get<float>("sum"), (Floats{10, 13}));
  EXPECT_EQ(program.get<float>("last"), (Floats{5, 7}));
  EXPECT_EQ(program.get<float>("sums"), (Floats{1, 2, 4, 6, 8, 10}));
  // `s` moves to `q`, which is read by then: its copy lies in `p`, and `t` apart.
  EXPECT_EQ(overwrites(program.plan->steps[1].bodies[0]), "s over p");
}

TEST(Carried, ALoopsStateTakesOverItsStart) {
  const char *text = R"(
<ir_version: 8, opset_import: ["" : 18]>
g (int64 n, float[2] x) => (float[2] y, float[2] z)
<bool yes = {1}>
{
  start = Exp(x)
  other = Exp(x)
  y = Loop (n, yes, start) <body = b (int64 i, bool again, float[2] s) => (bool more, float[2] t) {
    more = Identity(again)
    t = Mul(s, x)
  }>
  z = Loop (n, yes, other) <body = c (int64 i, bool again, float[2] s) => (bool more, float[2] t) {
    more = Identity(again)
    t = Mul(s, other)
  }>
})";
  Program program(text);
  ASSERT_TRUE(program);
  // The second body captures the value that its state starts from.
  EXPECT_EQ(overwrites(*program.plan), "y over start");
  for (const Step &step : program.plan->steps)
    for (const Plan &body : step.bodies)
      EXPECT_EQ(overwrites(body), "t over s");
  program.set<int64_t>("n", {3});
  program.set<float>("x", {0, 1});
  program.run();
  float e = std::exp(1.0f);
  EXPECT_EQ(program.get<float>("y"), (Floats{0, e}));
  EXPECT_EQ(program.get<float>("z")[0], 1);
  EXPECT_NEAR(program.get<float>("z")[1], e * e * e * e, 1e-4); // Five roundings of a number below 64.
}

TEST(Executor, RefusesPlansThatWriteOverWhatTheKernelStillReads) {
  Program program(kChain);
  ASSERT_TRUE(program);
  program.plan->steps[1].spec.op = "Softmax";
  program.plan->steps[1].spec.version = 13;
  EXPECT_TRUE(Executor::create(*program.plan)); // It reads a row before it writes it.
  program.plan->steps[1].spec.op = "Hardmax";
  auto refused = Executor::create(*program.plan);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.message().find("'b' where 'a' lies, and the kernel of 'b' (Hardmax) does not work in place"),
            std::string::npos)
      << refused.message();
}

TEST(NonFinite, IsFoundWhereTheOperandIsWrittenOver) {
  Program program(kChain);
  ASSERT_TRUE(program);
  NonFiniteSearch search;
  program.executor->observer = [&](const StepEvent &event) { search.observe(event); };
  program.set<float>("x", Floats(1000, 1)); // Neg makes them negative, and Sqrt NaN of that.
  search.begin(*program.executor);
  program.run();
  std::vector<std::string> findings = search.findings(*program.executor);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_TRUE(findings[0].starts_with("node 'd' (Sqrt) made 'd' non-finite from finite inputs")) << findings[0];
}

TEST(MemoryUse, SaysWhoHoldsTheFullestStep) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"w\": \"w_next\"}"]>
g (float[100] x, float[4,10] s, int64[4] labels, float w = {2})
  => (float[100] early, float loss, float[100] y, float w_next)
{
  early = Exp(x)
  a = Exp(x)
  p = Exp(s)
  loss = SoftmaxCrossEntropyLoss(p, labels)
  y = Neg(a)
  w_next = Neg(w)
})");
  ASSERT_TRUE(program);
  MemoryUse use = memoryUse(*program.plan);
  EXPECT_EQ(use.stateBytes, 4u);
  EXPECT_EQ(use.inputBytes, 400u + 160 + 32);
  EXPECT_EQ(use.constantBytes, 0u);
  // 400 bytes take 448, 160 take 192, the loss and its workspace (a double a label) 64 each.
  EXPECT_EQ(use.liveBytes, (std::vector<size_t>{448, 896, 1088, 1216, 960, 960}));
  EXPECT_EQ(use.fullest, 3);
  EXPECT_EQ(use.valueBytes, 448u + 192);
  EXPECT_EQ(use.outputBytes, 448u + 64);
  EXPECT_EQ(use.workspaceBytes, 64u);
  EXPECT_EQ(use.lostBytes, program.plan->arenaBytes - 1216);
  std::vector<std::tuple<std::string, Holder::Kind, int, int>> holders, expected = {{"early", Holder::Output, 0, 6},
                                                                                    {"a", Holder::Value, 1, 3},
                                                                                    {"p", Holder::Value, 2, 3},
                                                                                    {"loss", Holder::Output, 3, 6},
                                                                                    {"loss", Holder::Workspace, 3, 3}};
  for (const Holder &holder : use.holders)
    holders.emplace_back(holder.name, holder.kind, holder.life.first, holder.life.last);
  EXPECT_EQ(holders, expected); // `y` takes over from `a` afterwards.
}

TEST(MemoryUse, BodiesHaveTheirOwn) {
  Program program(scan("u = Sub(t, p)", "sum"));
  ASSERT_TRUE(program);
  MemoryUse use = memoryUse(*program.plan);
  ASSERT_EQ(use.bodies.size(), 1u);
  EXPECT_EQ(use.bodies[0].step, 1);
  EXPECT_EQ(use.bodies[0].arenaBytes, program.plan->steps[1].workspaceBytes);
  EXPECT_EQ(use.bodies[0].liveBytes.size(), program.plan->steps[1].bodies[0].steps.size());
}

TEST(OriginFacts, AreThoseOfTheModelsOperators) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[1000] x) => (y, z)
<int64[2] shape = {10, 100}>
{
  a = Exp(x)
  b = Reshape(a, shape)
  c = Shrink <lambd = 1.5, bias = 1.0> (b)
  y = Neg(c)
  z = Softmax(y)
})");
  ASSERT_TRUE(program);
  std::map<std::string, OriginFacts> facts = originFacts(*program.plan);
  Names origins;
  for (const auto &[origin, fact] : facts)
    origins.push_back(origin);
  EXPECT_EQ(origins, (Names{"a", "c", "y", "z"})); // A view is no step.
  EXPECT_EQ(facts["y"].inPlace, (Pairs{{"y", "c"}}));
  EXPECT_EQ(facts["z"].inPlace, (Pairs{{"z", "y"}})); // It could, though here `y` is an output.
  EXPECT_EQ(facts["y"].workspaceBytes, 0u);
  // Shrink has no kernel: masks and differences are its workspace.
  EXPECT_GE(facts["c"].workspaceBytes, alignedBytes(4000));
  EXPECT_LE(facts["c"].workspaceBytes, program.plan->arenaBytes); // The last of them takes over the operand.
}

} // namespace
} // namespace recast::test
