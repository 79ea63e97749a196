#include "passes/precision/FunctionTypes.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/TypeInference.h"
#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/MapVector.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

// One type that both have: sizes that differ are left open. Null where they differ otherwise.
Type common(Type a, Type b) {
  auto x = dyn_cast<TensorType>(a), y = dyn_cast<TensorType>(b);
  if (a == b)
    return a;
  if (!x || !y || x.getElementType() != y.getElementType())
    return {};
  return UnrankedTensorType::get(x.getElementType());
}

// Follows the calls in the order of execution: a call's results have the types that the function's body gives.
class CallTyper {
public:
  void visit(Operation *holder, TypeInference &types);
  std::vector<TypedFunction> callersFirst();

private:
  void visitCall(Operation *call, FunctionOp function);
  std::string joinArguments(Operation *call, FunctionOp function, bool &isChanged);

  llvm::MapVector<Operation *, std::string> problems; ///< Of each function, in the order in which they were done.
  llvm::DenseSet<Operation *> isTyped;
};

void CallTyper::visit(Operation *holder, TypeInference &types) {
  holder->walk<WalkOrder::PostOrder>([&](Operation *op) {
    if (op == holder || !isNode(op))
      return;
    bool isOpen = llvm::any_of(op->getResultTypes(), [](Type type) { return isUnknown(type); });
    if (FunctionOp function = isa<NodeGenericOp>(op) && !op->getNumRegions() ? findFunction(Node(op)) : FunctionOp())
      visitCall(op, function);
    else if (isOpen)
      (void)types.infer(op);
  });
}

// The arguments' types over all calls so far; a message where there are none.
std::string CallTyper::joinArguments(Operation *call, FunctionOp function, bool &isChanged) {
  for (BlockArgument argument : function.getBody().front().getArguments()) {
    unsigned i = argument.getArgNumber();
    Type given = i < call->getNumOperands() ? call->getOperand(i).getType() : Type();
    if (!given || isAbsent(call->getOperand(i)) || isUnknown(given))
      return "a call leaves the type of '" + nameOf(argument).str() + "' open";
    Type joined = isTyped.contains(function) ? common(argument.getType(), given) : given;
    if (!joined)
      return "its calls give '" + nameOf(argument).str() + "' different types";
    isChanged |= joined != argument.getType();
    argument.setType(joined);
  }
  return "";
}

void CallTyper::visitCall(Operation *call, FunctionOp function) {
  std::string &problem = problems[function];
  bool isChanged = !isTyped.contains(function);
  if (!problem.empty())
    return;
  problem = joinArguments(call, function, isChanged);
  isTyped.insert(function);
  if (problem.empty() && isChanged) {
    function.getBody().walk([&](Operation *op) {
      for (Value result : op->getResults())
        if (isNode(op) && !isAbsent(result))
          result.setType(UnknownType::get(op->getContext()));
    });
    std::string message;
    ScopedDiagnosticHandler quiet(function.getContext(), [&](Diagnostic &diagnostic) { message = diagnostic.str(); });
    TypeInference types;
    visit(function, types);
    problems[function] = message; // `problem` may have moved
  }
  for (auto [result, value] : llvm::zip(call->getResults(), function.getBody().front().getTerminator()->getOperands()))
    if (isUnknown(result.getType()) && problems[function].empty())
      result.setType(value.getType());
}

std::vector<TypedFunction> CallTyper::callersFirst() {
  std::vector<TypedFunction> functions;
  for (auto &[function, problem] : problems)
    functions.push_back({cast<FunctionOp>(function), problem});
  return functions;
}

} // namespace

std::vector<TypedFunction> typeCalledFunctions(GraphOp graph) {
  if (graph->getParentOfType<ModuleOp>().getOps<FunctionOp>().empty())
    return {};
  CallTyper typer;
  TypeInference types;
  typer.visit(graph, types);
  return typer.callersFirst();
}

} // namespace recast::precision
