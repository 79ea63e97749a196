// A training step of a model of the corpus, made by the passes in this process, with the corpus's batches for it.
#pragma once
#include "ir/io/Load.h"
#include "ir/onnx/Node.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "passes/Pipelines.h"
#include "runtime/compile/Compile.h"
#include "runtime/session/Safetensors.h"
#include "tests/unit/Corpus.h"
#include <gtest/gtest.h>

namespace recast::test {

class StepModel {
public:
  /// With `bindsSizes` the passes know the sizes of the data, as with recast-opt's --dim.
  void make(const std::string &name, PipelineOptions options, bool bindsSizes) {
    io::registerDialects(registry);
    context = std::make_unique<mlir::MLIRContext>(registry, mlir::MLIRContext::Threading::DISABLED);
    std::string said;
    mlir::ScopedDiagnosticHandler handler(context.get(), [&](mlir::Diagnostic &diagnostic) {
      said += diagnostic.str() + "\n";
      return mlir::success();
    });
    module = io::loadModel(*context, (kTorch / name / "model.onnx").string());
    ASSERT_TRUE(module) << said;
    micros = options.accumulate;
    auto file = readSafetensors((kTorch / name / "reference.safetensors").string());
    ASSERT_TRUE(file) << file.message();
    data = std::move(*file);
    for (mlir::BlockArgument argument : onnx_ir::mainGraph(*module).getBody().front().getArguments()) {
      auto type = mlir::dyn_cast<mlir::RankedTensorType>(argument.getType());
      auto tensor = data.tensors.find("in." + onnx_ir::nameOf(argument).str());
      for (unsigned i = 0; bindsSizes && type && tensor != data.tensors.end() && i < type.getRank(); ++i)
        if (std::string symbol = onnx_ir::dimSymbol(type, i).str(); type.isDynamicDim(i) && !symbol.empty())
          options.dims.push_back(symbol + "=" + std::to_string(tensor->second.type.dims[i + 1]));
    }
    mlir::PassManager passes(context.get(), mlir::ModuleOp::getOperationName());
    buildPipeline(passes, options);
    ASSERT_TRUE(mlir::succeeded(passes.run(*module))) << said;
  }

  /// Sizes come from the data: 3 batches, of which as many go into a step as it has micro-batches.
  std::unique_ptr<Plan> compile(CompileOptions options) {
    for (mlir::BlockArgument argument : onnx_ir::mainGraph(*module).getBody().front().getArguments()) {
      std::string name = onnx_ir::nameOf(argument).str();
      auto tensor = data.tensors.find("in." + name);
      if (tensor == data.tensors.end())
        continue; // state
      std::vector<int64_t> dims(tensor->second.type.dims.begin() + 1, tensor->second.type.dims.end());
      if (micros > 1)
        dims.insert(dims.begin(), micros);
      options.inputs[name] = {static_cast<DType>(onnx_ir::elementTypeToOnnx(onnx_ir::elementTypeOf(argument))), dims};
    }
    auto plan = compileModule(*module, options);
    if (!plan)
      ADD_FAILURE() << plan.message();
    return plan ? std::move(*plan) : nullptr;
  }

  /// Writes the batch of a step as the plan's input wants it.
  void fill(const Plan &plan, int index, int64_t step, void *to) const {
    const Buffer &buffer = plan.buffers[static_cast<size_t>(index)];
    const HostTensor &from = data.tensors.find("in." + buffer.name)->second;
    int64_t first = step % (from.type.dims[0] - micros + 1), elems = buffer.type.elems() / micros * first;
    std::string bad;
    ASSERT_TRUE(convert(from.type.dtype, from.data + static_cast<size_t>(elems) * byteSize(from.type.dtype),
                        buffer.type.dtype, to, buffer.type.elems(), bad))
        << bad;
  }

private:
  mlir::DialectRegistry registry;
  std::unique_ptr<mlir::MLIRContext> context;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  Safetensors data;
  int64_t micros = 1;
};

} // namespace recast::test
