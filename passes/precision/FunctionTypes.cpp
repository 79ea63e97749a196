#include "passes/precision/FunctionTypes.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/TypeInference.h"
#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

struct Calls {
  llvm::DenseMap<Operation *, SmallVector<Operation *>> of; ///< Calls of a function.
  llvm::SetVector<Operation *> calleesFirst;
};

void collect(Operation *holder, Calls &calls) {
  holder->walk([&](NodeGenericOp op) {
    if (op->getNumRegions())
      return;
    FunctionOp function = findFunction(Node(op));
    if (!function)
      return;
    bool isNew = calls.of[function].empty();
    calls.of[function].push_back(op);
    if (isNew) {
      collect(function, calls);
      calls.calleesFirst.insert(function);
    }
  });
}

// One type that all have: sizes that differ are left open. Null where they differ otherwise.
Type common(Type a, Type b) {
  auto x = dyn_cast<TensorType>(a), y = dyn_cast<TensorType>(b);
  if (a == b)
    return a;
  if (!x || !y || x.getElementType() != y.getElementType())
    return {};
  return UnrankedTensorType::get(x.getElementType());
}

std::string typeArguments(FunctionOp function, ArrayRef<Operation *> calls) {
  for (BlockArgument argument : function.getBody().front().getArguments()) {
    unsigned i = argument.getArgNumber();
    Type type;
    for (Operation *call : calls) {
      Type given = i < call->getNumOperands() ? call->getOperand(i).getType() : Type();
      if (!given || isAbsent(call->getOperand(i)) || isUnknown(given))
        return "a call leaves the type of '" + nameOf(argument).str() + "' open";
      type = type ? common(type, given) : given;
      if (!type)
        return "its calls give '" + nameOf(argument).str() + "' different types";
    }
    argument.setType(type);
  }
  return "";
}

std::string typeBody(FunctionOp function) {
  std::string problem;
  ScopedDiagnosticHandler quiet(function.getContext(), [&](Diagnostic &diagnostic) { problem = diagnostic.str(); });
  return succeeded(TypeInference().inferAll(function.getBody(), /*fresh=*/true)) ? "" : problem;
}

} // namespace

std::vector<TypedFunction> typeCalledFunctions(GraphOp graph) {
  std::vector<TypedFunction> functions;
  if (graph->getParentOfType<ModuleOp>().getOps<FunctionOp>().empty())
    return functions;
  Calls calls;
  collect(graph, calls);
  for (Operation *op : llvm::reverse(calls.calleesFirst)) {
    auto function = cast<FunctionOp>(op);
    std::string problem = typeArguments(function, calls.of[op]);
    if (problem.empty())
      problem = typeBody(function);
    functions.push_back({function, problem});
  }
  return functions;
}

} // namespace recast::precision
