#include "ir/onnx/Node.h"
#include "ir/onnx/TypeInference.h"
#include "passes/Passes.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

namespace recast {
#define GEN_PASS_DEF_BINDDIMENSIONS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

struct BindDimensionsPass : impl::BindDimensionsBase<BindDimensionsPass> {
  using BindDimensionsBase::BindDimensionsBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    llvm::StringMap<int64_t> sizes;
    for (const std::string &entry : dims) {
      auto [name, value] = StringRef(entry).split('=');
      int64_t size;
      if (name.empty() || value.getAsInteger(10, size) || size < 0) {
        graph.emitError() << "--dim=" << entry << ": NAME=N with N from 0 up is needed";
        return signalPassFailure();
      }
      sizes[name] = size;
    }
    if (sizes.empty())
      return;
    forgetDeclaredTypes(graph);
    llvm::StringSet<> found;
    for (BlockArgument argument : graph.getBody().front().getArguments())
      argument.setType(bind(argument.getType(), sizes, found));
    for (const auto &entry : sizes)
      if (!found.contains(entry.getKey())) {
        graph.emitError() << "--dim=" << entry.getKey() << ": no input has a dimension of that name; the model's are "
                          << (symbols.empty() ? "none" : llvm::join(symbols, ", "));
        return signalPassFailure();
      }
    TypeInference types;
    if (failed(types.inferAll(graph.getBody(), /*fresh=*/true)))
      signalPassFailure();
  }

  Type bind(Type type, const llvm::StringMap<int64_t> &sizes, llvm::StringSet<> &found) {
    auto tensor = dyn_cast<RankedTensorType>(type);
    if (!tensor)
      return type;
    SmallVector<int64_t> shape(tensor.getShape());
    SmallVector<StringRef> kept;
    for (unsigned i = 0; i < shape.size(); ++i) {
      StringRef symbol = dimSymbol(tensor, i);
      kept.push_back(symbol);
      if (symbol.empty())
        continue;
      if (!llvm::is_contained(symbols, symbol))
        symbols.push_back(symbol.str());
      if (auto size = sizes.find(symbol); size != sizes.end()) {
        shape[i] = size->second;
        found.insert(symbol);
      }
    }
    return tensorType(shape, kept, tensor.getElementType());
  }

  std::vector<std::string> symbols;
};

} // namespace
} // namespace recast
