// FLOPs and bytes of each class against formulas worked out by hand.
#include "tests/unit/cost/CostTest.h"

namespace recast::cost {
namespace {

using test::Graph;

int64_t flops(llvm::StringRef op, std::vector<std::string> inputs, std::vector<std::string> outputs,
              llvm::StringRef attributes = "") {
  Cost cost = Graph(op, inputs, outputs, attributes).cost();
  EXPECT_EQ(cost.known, Known::Yes) << op.str();
  return cost.flops;
}

TEST(Cost, Products) {
  EXPECT_EQ(flops("onnx.MatMul", {"5x2x3xf32", "3x4xf32"}, {"5x2x4xf32"}), 2 * 5 * 2 * 3 * 4);
  EXPECT_EQ(flops("onnx.MatMul", {"3xf32", "3xf32"}, {"f32"}), 2 * 3);
  EXPECT_EQ(flops("onnx.Gemm", {"3x2xf32", "4x3xf32", "4xf32"}, {"2x4xf32"}, "transA = 1 : i64, transB = 1 : i64"),
            2 * 2 * 3 * 4);
  EXPECT_EQ(flops("onnx.node", {"3x2xf32", "3x4xf32"}, {"2x4xf32"},
                  "onnx.op_type = \"FusedMatMul\", onnx.domain = \"com.microsoft\", transA = 1 : i64"),
            2 * 2 * 3 * 4);
  // Two directions of four gates: input weights [4 * 5, 3] and recurrent ones [4 * 5, 5], over 7 steps of 2 samples.
  EXPECT_EQ(flops("onnx.node", {"7x2x3xf32", "2x20x3xf32", "2x20x5xf32"}, {"7x2x2x5xf32"}, "onnx.op_type = \"LSTM\""),
            2 * 7 * 2 * 2 * 20 * (3 + 5));
}

TEST(Cost, Einsum) {
  auto einsum = [](llvm::StringRef equation, std::vector<std::string> inputs, std::string output) {
    return flops("onnx.Einsum", inputs, {output}, ("equation = \"" + equation + "\"").str());
  };
  EXPECT_EQ(einsum("bhqd,bhkd->bhqk", {"2x3x4x5xf32", "2x3x6x5xf32"}, "2x3x4x6xf32"), 2 * 2 * 3 * 4 * 6 * 5);
  EXPECT_EQ(einsum("ij,jk", {"2x3xf32", "3x4xf32"}, "2x4xf32"), 2 * 2 * 3 * 4);
  EXPECT_EQ(einsum("...ij, ...jk -> ...ik", {"7x2x3xf32", "1x3x4xf32"}, "7x2x4xf32"), 2 * 7 * 2 * 3 * 4);
  // (2x3 by 3x4) and then (2x4 by 4x5).
  EXPECT_EQ(einsum("ij,jk,kl->il", {"2x3xf32", "3x4xf32", "4x5xf32"}, "2x5xf32"), 2 * (2 * 3 * 4 + 2 * 4 * 5));
  EXPECT_EQ(einsum("ij->i", {"2x3xf32"}, "2xf32"), 2 * 3);
  EXPECT_EQ(einsum("ij->ji", {"2x3xf32"}, "3x2xf32"), 0);
}

TEST(Cost, Convolutions) {
  // x [2, 6, 9, 9], two groups, 8 channels out, a 3x3 kernel: y [2, 8, 7, 7].
  int64_t each = 2 * (2 * 8 * 7 * 7) * (6 / 2 * 3 * 3);
  EXPECT_EQ(flops("onnx.Conv", {"2x6x9x9xf32", "8x3x3x3xf32"}, {"2x8x7x7xf32"}, "group = 2 : i64"), each);
  EXPECT_EQ(flops("train.conv_grad_input", {"2x8x7x7xf32", "8x3x3x3xf32"}, {"2x6x9x9xf32"},
                  "group = 2 : i64, input_spatial = array<i64: 9, 9>"),
            each);
  EXPECT_EQ(flops("train.conv_grad_weight", {"2x6x9x9xf32", "2x8x7x7xf32"}, {"8x3x3x3xf32"},
                  "group = 2 : i64, kernel_shape = array<i64: 3, 3>"),
            each);
  EXPECT_EQ(flops("onnx.ConvTranspose", {"2x8x7x7xf32", "8x3x3x3xf32"}, {"2x6x9x9xf32"}, "group = 2 : i64"), each);
}

TEST(Cost, Attention) {
  int64_t softmax = onnx_ir::SoftmaxOp::facts().flops;
  // 2 samples, 4 heads, 5 queries, 7 keys, size 8 for queries and keys, 6 for values.
  int64_t want = 2 * 4 * 5 * 7 * (2 * 8 + 2 * 6 + softmax);
  EXPECT_EQ(flops("onnx.Attention", {"2x4x5x8xf32", "2x2x7x8xf32", "2x2x7x6xf32"}, {"2x4x5x6xf32"}), want);
  EXPECT_EQ(flops("onnx.Attention", {"2x5x32xf32", "2x7x16xf32", "2x7x12xf32"}, {"2x5x24xf32"},
                  "q_num_heads = 4 : i64, kv_num_heads = 2 : i64"),
            want);
  // 3 of the 7 keys come from before.
  EXPECT_EQ(flops("onnx.Attention", {"2x4x5x8xf32", "2x2x4x8xf32", "2x2x4x6xf32", "", "2x2x3x8xf32", "2x2x3x6xf32"},
                  {"2x4x5x6xf32", "2x2x7x8xf32", "2x2x7x6xf32"}),
            want);
}

TEST(Cost, ElementwiseCountsResultsAndReductionsCountOperands) {
  EXPECT_EQ(flops("onnx.Add", {"2x3xf32", "3xf32"}, {"2x3xf32"}), 6);
  EXPECT_EQ(flops("onnx.Exp", {"2x3xf32"}, {"2x3xf32"}), 6 * onnx_ir::ExpOp::facts().flops);
  EXPECT_EQ(flops("onnx.Sum", {"4xf32", "4xf32", "4xf32"}, {"4xf32"}), 2 * 4);
  EXPECT_EQ(flops("onnx.Max", {"4xf32"}, {"4xf32"}), 0);
  EXPECT_EQ(flops("onnx.ReduceSum", {"2x3xf32"}, {"2xf32"}), 6);
  EXPECT_EQ(flops("onnx.Softmax", {"2x3xf32"}, {"2x3xf32"}), 6 * onnx_ir::SoftmaxOp::facts().flops);
  EXPECT_EQ(flops("onnx.MaxPool", {"1x2x8x8xf32"}, {"1x2x4x4xf32"}, "kernel_shape = array<i64: 3, 3>"), 2 * 4 * 4 * 9);
  EXPECT_EQ(flops("train.average_pool_grad", {"1x2x4x4xf32"}, {"1x2x8x8xf32"},
                  "kernel_shape = array<i64: 2, 2>, input_spatial = array<i64: 8, 8>"),
            2 * 4 * 4 * 4);
  EXPECT_EQ(flops("onnx.Resize", {"1x2x4x4xf32"}, {"1x2x8x8xf32"}, "mode = \"linear\""), 2 * 8 * 8 * 2 * 2 * 2);
  EXPECT_EQ(flops("onnx.Resize", {"1x2x4x4xf32"}, {"1x2x8x8xf32"}), 0);
}

TEST(Cost, OperatorsOverManyTensorsCountAllOfThem) {
  int64_t each = 2 * 3 + 5;
  EXPECT_EQ(flops("train.grad_norm", {"2x3xf32", "5xf32"}, {"f32"}), 2 * each);
  EXPECT_EQ(flops("train.clip_grad_norm", {"2x3xf32", "5xf32", "f64"}, {"2x3xf32", "5xf32", "f32"}), 3 * (each + 1));
  EXPECT_EQ(flops("train.unscale", {"!train.scaled<tensor<2x3xf32>>", "!train.scaled<tensor<5xf32>>", "f32"},
                  {"2x3xf32", "5xf32", "i1"}),
            2 * (each + 1));
}

TEST(Cost, OptimizersCountParameters) {
  Graph graph("train.adamw",
              {"i1", "2x3xf32", "2x3xf32", "2x3xf32", "2x3xf32", "i64", "f64", "f64", "f64", "f64", "f64"},
              {"2x3xf32", "2x3xf32", "2x3xf32"});
  Cost cost = graph.cost();
  EXPECT_EQ(cost.flops % 6, 0);
  EXPECT_GT(cost.flops, 0);
  EXPECT_EQ(cost.bytesRead, 1 + 4 * 24 + 6 * 8);
  EXPECT_EQ(cost.bytesWritten, 3 * 24);
  EXPECT_EQ(cost.arithmetic, "f32");
}

TEST(Cost, Bytes) {
  auto bytes = [](llvm::StringRef op, std::vector<std::string> inputs, std::vector<std::string> outputs,
                  llvm::StringRef attributes = "") {
    Cost cost = Graph(op, inputs, outputs, attributes).cost();
    return std::pair(cost.bytesRead, cost.bytesWritten);
  };
  using Bytes = std::pair<int64_t, int64_t>;
  EXPECT_EQ(bytes("onnx.MatMul", {"2x3xf32", "3x4xf32"}, {"2x4xf32"}), Bytes(24 + 48, 32));
  EXPECT_EQ(bytes("onnx.Cast", {"2x3xf32"}, {"2x3xbf16"}), Bytes(24, 12));
  EXPECT_EQ(bytes("onnx.Expand", {"3xf32", "2xi64"}, {"5x3xf32"}), Bytes(12 + 16, 60));
  // A look-up reads what it picks, not the table.
  EXPECT_EQ(bytes("onnx.Gather", {"1000x3xf32", "2xi64"}, {"2x3xf32"}), Bytes(24 + 16, 24));
  EXPECT_EQ(bytes("onnx.NegativeLogLikelihoodLoss", {"4x100xf32", "4xi64"}, {"f32"}), Bytes(16 + 32, 4));
  // Views, constants and barriers move nothing.
  EXPECT_EQ(bytes("onnx.Reshape", {"2x3xf32", "1xi64"}, {"6xf32"}), Bytes(0, 0));
  EXPECT_EQ(bytes("onnx.Shape", {"2x3xf32"}, {"2xi64"}), Bytes(0, 0));
  EXPECT_EQ(bytes("train.barrier", {"2x3xf32"}, {"2x3xf32"}), Bytes(0, 0));
  // Half a byte an element, rounded up.
  EXPECT_EQ(bytes("onnx.Transpose", {"3x1xi4"}, {"1x3xi4"}), Bytes(2, 2));
}

TEST(Cost, WhatNothingReadsIsNotWritten) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x, float[3] s) => (float[2,3] y) { y, mean, deviation = LayerNormalization(x, s) })");
  EXPECT_EQ(graph.cost().bytesWritten, 24);
}

TEST(Cost, AnOperandThatIsThereTwiceIsReadOnce) {
  Graph graph(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Mul(x, x) })");
  EXPECT_EQ(graph.cost().bytesRead, 16);
}

TEST(Cost, TypeOfTheArithmetic) {
  EXPECT_EQ(Graph("onnx.MatMul", {"2x3xbf16", "3x4xbf16"}, {"2x4xbf16"}).cost().arithmetic, "bf16");
  EXPECT_EQ(Graph("onnx.Less", {"2xf64", "2xf64"}, {"2xi1"}).cost().arithmetic, "f64");
  EXPECT_EQ(Graph("onnx.Where", {"2xi1", "2xf16", "2xf16"}, {"2xf16"}).cost().arithmetic, "f16");
  EXPECT_EQ(Graph("onnx.Add", {"2xi64", "2xi64"}, {"2xi64"}).cost().arithmetic, "i64");
}

TEST(Cost, OpenSizesAreNoNumbers) {
  for (auto [op, inputs, outputs] :
       {std::tuple("onnx.MatMul", std::vector<std::string>{"?x3xf32", "3x4xf32"}, "?x4xf32"),
        std::tuple("onnx.Relu", std::vector<std::string>{"?xf32"}, "?xf32"),
        std::tuple("onnx.ReduceSum", std::vector<std::string>{"*xf32"}, "f32")})
    EXPECT_EQ(Graph(op, inputs, {outputs}).cost().known, Known::OpenSizes) << op;
  // Views cost nothing, whatever their size.
  EXPECT_EQ(Graph("onnx.Identity", {"?xf32"}, {"?xf32"}).cost().known, Known::Yes);
}

TEST(Cost, OperatorsWithoutARuleAreCountedByBytes) {
  Cost cost = Graph("onnx.node", {"2x3xf32"}, {"4xf32"}, "onnx.op_type = \"Any\", onnx.domain = \"other\"").cost();
  EXPECT_EQ(cost.known, Known::BytesOnly);
  EXPECT_EQ(cost.flops, 0);
  EXPECT_EQ(cost.bytes(), 24 + 16);
  EXPECT_EQ(Graph("onnx.node", {"2x3xf32"}, {"!onnx.unknown"}, "onnx.op_type = \"Any\", onnx.domain = \"other\"")
                .cost()
                .known,
            Known::BytesOnly);
}

TEST(Cost, NumbersDoNotOverflow) {
  std::string huge = "1099511627776x1099511627776xf32"; // 2^80 elements
  Cost cost = Graph("onnx.MatMul", {huge, huge}, {huge}).cost();
  EXPECT_EQ(cost.flops, INT64_MAX);
  EXPECT_EQ(cost.bytes(), INT64_MAX);
  cost.add(cost, INT64_MAX);
  EXPECT_EQ(cost.flops, INT64_MAX);
}

} // namespace
} // namespace recast::cost
