// Sizes that come out of arithmetic on constants, as exporters write it.
#include "ir/onnx/TypeInference.h"
#include "ir/io/Load.h"
#include "ir/onnx/Node.h"
#include "mlir/IR/MLIRContext.h"
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace recast::onnx_ir {
namespace {

/// Calls use(the graph's first output); false where the graph is not read.
bool withOutput(const std::string &nodes, llvm::function_ref<void(mlir::Value)> use) {
  mlir::DialectRegistry registry;
  io::registerDialects(registry);
  mlir::MLIRContext context(registry, mlir::MLIRContext::Threading::DISABLED);
  std::string pattern = (std::filesystem::temp_directory_path() / "recast-XXXXXX").string();
  int descriptor = mkstemp(pattern.data());
  if (descriptor >= 0)
    close(descriptor);
  std::string path = pattern + ".onnxtxt";
  std::filesystem::rename(pattern, path);
  std::ofstream(path) << "<ir_version: 8, opset_import: [\"\" : 17]> g (float[2,3] x) => (y) {" << nodes << "}";
  auto module = io::loadModel(context, path);
  std::filesystem::remove(path);
  if (module)
    use(mainGraph(*module).getBody().front().getTerminator()->getOperand(0));
  return static_cast<bool>(module);
}

std::string outputType(const std::string &nodes) {
  std::string text;
  withOutput(nodes, [&](mlir::Value output) { llvm::raw_string_ostream(text) << output.getType(); });
  return text;
}

TEST(TypeInference, SizesPassThroughCastsReshapeAndDivision) {
  std::string constants = "zero = Constant<value_int = 0>() four = Constant<value_int = 4>() one = "
                          "Constant<value_int = 1>() ";
  EXPECT_EQ(outputType(constants + "end = CastLike(four, zero) y = Range(zero, end, one)"), "tensor<4xi64>");
  EXPECT_EQ(outputType(constants + "flat = Constant<value_ints = [-1]>() ends = Reshape(one, flat) starts = "
                                   "Reshape(zero, flat) y = Slice(x, starts, ends)"),
            "tensor<1x3xf32>");
  EXPECT_EQ(outputType(constants + "two = Constant<value_float = 2.0>() start = CastLike(two, zero) y = Range(start, "
                                   "four, one)"),
            "tensor<2xi64>");
  EXPECT_EQ(outputType("s = Shape(x) three = Constant<value_ints = [3]>() q = Div(s, three) y = ConstantOfShape(q)"),
            "tensor<0x1xf32>");
  EXPECT_EQ(outputType("s = Shape(x) none = Constant<value_ints = [0]>() q = Div(s, none) y = ConstantOfShape(q)"),
            "tensor<?x?xf32>");
  // The larger of both sizes where it is a multiple, as attention repeats heads.
  EXPECT_EQ(outputType("s = Shape(x) two = Constant<value_ints = [2]>() m = Mod(s, two) zero = Constant<value_ints = "
                       "[0]>() even = Equal(m, zero) q = Div(s, two) n = Where(even, q, s) y = ConstantOfShape(n)"),
            "tensor<1x3xf32>");
  EXPECT_EQ(outputType("s = Shape(x) zero = Constant<value_int = 0>() n = Gather(s, zero) one = "
                       "Constant<value_int = 1>() y = Range(zero, n, one)"),
            "tensor<2xi64>");
}

TEST(TypeInference, EqualTypesWithOtherValuesAreAnotherSize) {
  EXPECT_EQ(outputType("zero = Constant<value_float = 0.0>() one = Constant<value_float = 1.0>() two = "
                       "Constant<value_float = 2.0>() four = Constant<value_float = 4.0>() "
                       "short = Range(zero, two, one) y = Range(zero, four, one)"),
            "tensor<4xf32>");
}

TEST(TypeInference, ValuesBehindLongChainsFitTheStack) {
  std::string nodes = "one = Constant<value_int = 1>() a0 = ArgMax<axis = 0, keepdims = 0>(x) ", last = "a0";
  for (int i = 1; i <= 40'000; ++i) {
    std::string next = "a" + std::to_string(i);
    nodes += next + " = Add(" + last + ", one) ";
    last = next;
  }
  // Types are known; the values are asked for anew.
  EXPECT_TRUE(withOutput(nodes + "y = Add(" + last + ", one)", [](mlir::Value output) {
    TypeInference types;
    const onnx::TensorShapeProto *known = types.knownInts(output);
    ASSERT_TRUE(known);
    EXPECT_EQ(known->dim_size(), 3);
    EXPECT_FALSE(known->dim(0).has_dim_value());
  }));
}

TEST(TypeInference, ListsOfIntegersArePutTogether) {
  std::string parts = "none = Constant<value_ints = [0]>() empty = ConstantOfShape<value = int64[1] {7}>(none) "
                      "square = Constant<value = int64[2,2] {1,2,3,4}>() flat = Constant<value_ints = [-1]>() "
                      "list = Reshape(square, flat) ";
  auto valuesOf = [&](const std::string &nodes) {
    std::vector<int64_t> values;
    withOutput(parts + nodes, [&](mlir::Value output) {
      TypeInference types;
      if (const onnx::TensorShapeProto *known = types.knownInts(output))
        for (const auto &dim : known->dim())
          values.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
    });
    return values;
  };
  EXPECT_EQ(valuesOf("y = Cast<to = 7>(list)"), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(valuesOf("all = Concat<axis = 0>(empty, list) y = Cast<to = 7>(all)"), (std::vector<int64_t>{1, 2, 3, 4}));
  // A type that does not hold the numbers changes them.
  EXPECT_EQ(valuesOf("truth = Cast<to = 9>(list) y = Cast<to = 7>(truth)"), (std::vector<int64_t>{-1, -1, -1, -1}));
}

} // namespace
} // namespace recast::onnx_ir
