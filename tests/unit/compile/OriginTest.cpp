// Where steps come from, and compiling a module that is in memory.
#include "ir/io/Load.h"
#include "mlir/IR/MLIRContext.h"
#include "tests/unit/compile/CompileTest.h"

namespace recast::test {
namespace {

using Names = std::vector<std::string>;

Names originsOf(const Plan &plan) {
  Names names;
  for (const Step &step : plan.steps)
    names.push_back(step.origin);
  return names;
}

TEST(Origin, IsTheFirstOutputOfTheNodeInTheFile) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[4] x) => (y) {
  [named] a = Neg(x)
  unread, b = Split <num_outputs = 2> (a)
  y = Exp(b)
})");
  ASSERT_TRUE(program);
  EXPECT_EQ(originsOf(*program.plan), (Names{"a", "unread", "y"}));
  EXPECT_EQ(program.plan->steps[0].spec.name, "named");
}

TEST(Origin, OfFunctionsIsTheCall) {
  Program program(R"(
<ir_version: 10, opset_import: ["" : 18, "my" : 1]>
g (float[4] x) => (z) {
  y = my.twice(x)
  z = Shrink <lambd = 1.5, bias = 1.0> (y)
}
<domain: "my", opset_import: ["" : 18, "my" : 1]>
twice (a) => (c) {
  b = my.half(a)
  c = my.half(b)
}
<domain: "my", opset_import: ["" : 18]>
half (a) => (d) {
  e = Exp(a)
  d = Neg(e)
})");
  ASSERT_TRUE(program);
  ASSERT_GT(program.plan->steps.size(), 5u); // Shrink has no kernel.
  for (size_t i = 0; i < program.plan->steps.size(); ++i)
    EXPECT_EQ(program.plan->steps[i].origin, i < 4 ? "y" : "z") << i;
}

TEST(Origin, OfBodiesAndOfWhatIsAddedAroundThem) {
  Program program(R"(
<ir_version: 8, opset_import: ["" : 18]>
g (float[2,3] xs, float[2] start) => (last, sums) {
  last, sums = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
                     body = b (float[2] s, float[2] x) => (float[2] t, float[2] u) {
    t = Add(s, x)
    u = Neg(t)
  }> (start, xs)
})");
  ASSERT_TRUE(program);
  // Transposed, scanned, transposed.
  EXPECT_EQ(originsOf(*program.plan), (Names{"last", "last", "last"}));
  EXPECT_EQ(originsOf(program.plan->steps[1].bodies[0]), (Names{"t", "u"}));
}

constexpr const char *kStep = R"(
<ir_version: 8, opset_import: ["" : 18], metadata_props: ["recast.state" : "{\"w\": \"w_next\"}"]>
g (float[N] x, float[2] w = {1, 2}) => (float[N] y, float[2] w_next) {
  y = Exp(x)
  w_next = Neg(w)
})";

TEST(CompileModule, GivesThePlanOfTheFileAndLeavesTheModule) {
  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  std::filesystem::path path = writeText(kStep);
  auto module = io::loadModel(context, path.string());
  auto loaded = Model::load(path.string());
  std::filesystem::remove(path);
  ASSERT_TRUE(module && loaded);
  CompileOptions options{.dims = {{"N", 3}}};
  auto textOf = [&] {
    std::string text;
    llvm::raw_string_ostream stream(text);
    module->print(stream, mlir::OpPrintingFlags().enableDebugInfo());
    return text;
  };
  std::string before = textOf();
  auto plan = compileModule(*module, options), expected = (*loaded)->compile(options);
  ASSERT_TRUE(plan && expected);
  EXPECT_EQ(print(**plan), print(**expected));
  EXPECT_EQ(textOf(), before);

  auto failed = compileModule(*module, {});
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.message().find("'N' (of input 'x')"), std::string::npos) << failed.message();
}

} // namespace
} // namespace recast::test
