// Operations to ask for their costs: one from types and attributes, or those of a model in ONNX's text form.
#pragma once
#include "ir/cost/Cost.h"
#include "ir/io/Load.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/Parser/Parser.h"
#include "llvm/ADT/StringExtras.h"
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace recast::cost::test {

class Graph {
public:
  /// One operation, "onnx.MatMul", whose results are all read. Types are written as in "2x3xf32"; "" is an input that
  /// is left out; "!..." is any other type.
  Graph(llvm::StringRef op, llvm::ArrayRef<std::string> inputs, llvm::ArrayRef<std::string> outputs,
        llvm::StringRef attributes = "") {
    std::vector<std::string> arguments, operands, types, results, values, absents;
    for (const std::string &input : inputs) {
      std::string value = "%x" + std::to_string(operands.size());
      operands.push_back(value);
      types.push_back(typeOf(input));
      if (input.empty())
        absents.push_back(value + " = onnx.absent");
      else
        arguments.push_back(value + ": " + types.back());
    }
    for (const std::string &output : outputs) {
      values.push_back("%y#" + std::to_string(results.size()));
      results.push_back(typeOf(output));
    }
    parse("module attributes {onnx.opsets = [[\"\", 23]]} { onnx.graph attributes {info = {}} {\n^bb0(" +
          llvm::join(arguments, ", ") + "):\n" + llvm::join(absents, "\n") + "\n%y:" + std::to_string(results.size()) +
          " = \"" + op.str() + "\"(" + llvm::join(operands, ", ") + ") {" + attributes.str() + "} : (" +
          llvm::join(types, ", ") + ") -> (" + llvm::join(results, ", ") + ")\nonnx.return " +
          llvm::join(values, ", ") + " : " + llvm::join(results, ", ") + "\n} }");
  }

  /// A model in ONNX's text form.
  explicit Graph(const std::string &text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "recast-XXXXXX").string();
    int descriptor = mkstemp(pattern.data());
    if (descriptor >= 0)
      close(descriptor);
    std::string path = pattern + ".onnxtxt";
    std::filesystem::rename(pattern, path);
    std::ofstream(path) << text;
    module = io::loadModel(context, path);
    std::filesystem::remove(path);
    EXPECT_TRUE(static_cast<bool>(module));
  }

  mlir::Block &block() { return onnx_ir::mainGraph(*module).getBody().front(); }
  /// The last node, which is the only one or the one that the test is about.
  mlir::Operation *op() { return block().getTerminator()->getPrevNode(); }
  Cost cost() { return costOf(op()); }

private:
  static mlir::DialectRegistry registry() {
    mlir::DialectRegistry registry;
    io::registerDialects(registry);
    return registry;
  }
  static std::string typeOf(const std::string &text) {
    return text.empty() ? "!onnx.absent_type" : text.front() == '!' ? text : "tensor<" + text + ">";
  }
  void parse(const std::string &text) {
    module = mlir::parseSourceString<mlir::ModuleOp>(text, mlir::ParserConfig(&context));
    EXPECT_TRUE(static_cast<bool>(module)) << text;
  }

  mlir::MLIRContext context{registry(), mlir::MLIRContext::Threading::DISABLED};
  mlir::OwningOpRef<mlir::ModuleOp> module;
};

} // namespace recast::cost::test
