// Operators that run bodies: Scan, Loop, If, calls of functions.
#include "tests/unit/cost/CostTest.h"

namespace recast::cost {
namespace {

using test::Graph;

constexpr int64_t kProduct = 2 * 2 * 3 * 3; // [2, 3] by [3, 3]

TEST(Bodies, AScanCostsItsBodyTimesItsLength) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] h, float[5,2,3] xs, float[3,3] w) => (float[2,3] last, float[5,2,3] all) {
      last, all = Scan <num_scan_inputs = 1, body = step (float[2,3] state, float[2,3] x) => (float[2,3] next, float[2,3] copy) {
        p = MatMul(x, w)
        next = Add(state, p)
        copy = Identity(next)
      }> (h, xs)
    })");
  Cost cost = graph.cost();
  EXPECT_EQ(cost.known, Known::Yes);
  EXPECT_EQ(cost.flops, 5 * (kProduct + 6));
  EXPECT_EQ(cost.work, Work::Control);
  int64_t visited = 0;
  visitParts(graph.op(), [&](mlir::Operation *op, const Cost &, int64_t times) {
    EXPECT_NE(op, graph.op());
    EXPECT_EQ(times, 5);
    ++visited;
  });
  EXPECT_EQ(visited, 3);
}

TEST(Bodies, AScanAlongAnotherAxisHasThatLength) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] h, float[2,7] xs) => (float[2] last) {
      last = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = step (float[2] state, float[2] x) => (float[2] next) {
        next = Add(state, x)
      }> (h, xs)
    })");
  EXPECT_EQ(graph.cost().flops, 7 * 2);
}

TEST(Bodies, ANestedScanMultiplies) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] h, float[3,4,2] xs) => (float[2] last) {
      last = Scan <num_scan_inputs = 1, body = outer (float[2] a, float[4,2] x) => (float[2] b) {
        b = Scan <num_scan_inputs = 1, body = inner (float[2] c, float[2] y) => (float[2] d) { d = Mul(c, y) }> (a, x)
      }> (h, xs)
    })");
  EXPECT_EQ(graph.cost().flops, 3 * 4 * 2);
}

TEST(Bodies, AScanOfOpenLengthIsOpen) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] h, float[n,2] xs) => (float[2] last) {
      last = Scan <num_scan_inputs = 1, body = step (float[2] state, float[2] x) => (float[2] next) {
        next = Add(state, x)
      }> (h, xs)
    })");
  EXPECT_EQ(graph.cost().known, Known::OpenSizes);
}

std::string loop(const std::string &count, const std::string &condition) {
  return R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x, float[3,3] w, int64 n, bool go) => (float[2,3] y) <int64 six = {6}> {
      y = Loop <body = step (int64 i, bool c, float[2,3] state) => (bool d, float[2,3] next) {
        next = MatMul(state, w)
        )" +
         condition + R"(
      }> ()" +
         count + R"(, , x)
    })";
}

TEST(Bodies, ALoopWithAKnownCount) {
  Cost cost = Graph(loop("six", "d = Identity(c)")).cost();
  EXPECT_EQ(cost.known, Known::Yes);
  EXPECT_EQ(cost.flops, 6 * kProduct);
}

TEST(Bodies, ALoopWhoseCountDependsOnDataIsNotKnown) {
  for (const std::string &text : {loop("n", "d = Identity(c)"), loop("six", "d = Not(c)")}) {
    Graph graph(text);
    Cost cost = graph.cost();
    EXPECT_EQ(cost.known, Known::BytesOnly);
    EXPECT_GE(cost.flops, kProduct);
    bool isNamed = false;
    visitParts(graph.op(), [&](mlir::Operation *op, const Cost &part, int64_t) {
      isNamed |= op == graph.op() && part.known == Known::BytesOnly;
    });
    EXPECT_TRUE(isNamed);
  }
}

TEST(Bodies, AnIfCostsItsDearerBranch) {
  for (bool isFirstDearer : {true, false}) {
    std::string dear = "p = MatMul(x, w)", cheap = "p = Relu(x)";
    Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (bool c, float[2,3] x, float[3,3] w) => (float[2,3] y) {
        y = If (c) <then_branch = a () => (float[2,3] p) { )" +
                (isFirstDearer ? dear : cheap) + R"( }, else_branch = b () => (float[2,3] p) { )" +
                (isFirstDearer ? cheap : dear) + R"( }>
      })");
    EXPECT_EQ(graph.cost().flops, kProduct);
    EXPECT_EQ(graph.cost().bytes(), 24 + 36 + 24);
  }
}

constexpr const char *kFunctions = R"(<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2,3] x, float[3,3] w) => (float[2,3] y) { y = my.twice(x, w) }
    <opset_import: ["" : 17, "my" : 1], domain: "my"> twice (x, w) => (z) { y = my.layer(x, w) z = my.layer(y, w) }
    <opset_import: ["" : 17], domain: "my"> layer (x, w) => (y) { p = MatMul(x, w) y = Tanh(p) })";

TEST(Bodies, ACallCostsItsFunctionsBody) {
  Graph graph(kFunctions);
  auto before = std::distance(graph.block().begin(), graph.block().end());
  Cost cost = graph.cost();
  EXPECT_EQ(cost.known, Known::Yes);
  EXPECT_EQ(cost.flops, 2 * (kProduct + 6 * onnx_ir::TanhOp::facts().flops));
  // Asking leaves no trace.
  EXPECT_EQ(std::distance(graph.block().begin(), graph.block().end()), before);
}

TEST(Bodies, WhatOnnxDefinesByOthersCostsTheirs) {
  // x - mean over sqrt(mean of squares - squared mean), by the standard's own function.
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (double[2,3,4,4] x) => (double[2,3,4,4] y) { y = MeanVarianceNormalization(x) })");
  Cost cost = graph.cost();
  EXPECT_EQ(cost.known, Known::Yes);
  // Two means, a power, a difference and a quotient of every element, and some of every channel.
  int64_t elems = 2 * 3 * 4 * 4;
  int64_t each = 2 + onnx_ir::PowOp::facts().flops + 1 + onnx_ir::DivOp::facts().flops;
  EXPECT_GE(cost.flops, elems * each);
  EXPECT_LT(cost.flops, elems * (each + 10));
}

} // namespace
} // namespace recast::cost
