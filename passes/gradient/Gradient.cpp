#include "passes/gradient/Gradient.h"
#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/InlineFunctions.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// Operations between the parameters and the objective, in the graph's order.
SmallVector<Operation *> operationsOnPath(GraphOp graph, Value objective, ArrayRef<Value> parameters,
                                          llvm::DenseSet<Value> &dependent) {
  llvm::DenseSet<Value> influencing = influencingValues(graph, objective);
  dependent = dependentValues(graph, parameters);
  SmallVector<Operation *> path;
  for (Operation &op : graph.getBody().front())
    if (isNode(&op) && llvm::any_of(op.getResults(), [&](Value result) {
          return influencing.contains(result) && dependent.contains(result);
        }))
      path.push_back(&op);
  return path;
}

std::string whyNot(Node node) {
  for (StringRef op : {"If", "Loop", "Scan", "LSTM", "GRU", "RNN"})
    if (node.is(op))
      return (op + " cannot be differentiated yet: control flow and recurrent operators come with a later version")
          .str();
  if (node.domain().empty())
    return ("no gradient rule for " + node.opType() + "-" + Twine(node.sinceVersion())).str();
  return ("no gradient rule for operators of the domain '" + node.domain() + "'").str();
}

// Gradients of values while the graph is walked backwards.
class Accumulator {
public:
  Accumulator(NodeBuilder &b) : b(b) {}

  void add(Value value, Value gradient) { parts[value].push_back(gradient); }
  /// The sum of what has arrived; null if nothing has.
  Value take(Value value) {
    auto found = parts.find(value);
    if (found == parts.end())
      return {};
    Value sum = found->second.front();
    for (Value part : ArrayRef(found->second).drop_front())
      sum = b.add(sum, part);
    found->second.assign(1, sum);
    return sum;
  }

private:
  NodeBuilder &b;
  llvm::DenseMap<Value, SmallVector<Value, 2>> parts;
};

} // namespace

FailureOr<SmallVector<Value>> differentiate(GraphOp graph, NodeBuilder &b, Value objective,
                                            ArrayRef<Value> parameters) {
  llvm::DenseSet<Value> dependent;
  SmallVector<Operation *> path = operationsOnPath(graph, objective, parameters, dependent);
  bool blocked = false;
  for (Operation *op : path) {
    bool untyped = llvm::any_of(op->getResults(), [](Value v) { return isUnknown(v.getType()); });
    if (findRule(op) && !untyped)
      continue;
    op->emitError() << "node " << Node(op).describe() << ": "
                    << (findRule(op) ? "the type of its output cannot be inferred" : whyNot(op));
    blocked = true;
  }
  if (blocked)
    return failure();

  b.before(graph.getBody().front().getTerminator());
  Accumulator gradients(b);
  b.setScope("grad/" + nameOf(objective).str());
  auto objectiveType = cast<RankedTensorType>(objective.getType());
  gradients.add(objective, objectiveType.getRank() == 0 ? b.scalarLike(objective, 1)
                                                        : b.constant(splatTensor(withoutSymbols(objectiveType), 1)));
  auto isWanted = [&](Value value) { return dependent.contains(value); };
  Operation *current = nullptr;
  bool untyped = false;
  auto sink = [&](Value value, Value gradient) {
    if (isUnknown(gradient.getType()) && !std::exchange(untyped, true))
      current->emitError() << "node " << Node(current).describe() << ": the type of its gradient with respect to '"
                           << nameOf(value) << "' cannot be inferred";
    gradients.add(value, gradient);
  };
  for (Operation *op : llvm::reverse(path)) {
    Node node(op);
    current = op;
    SmallVector<Value> outputGradients;
    b.setScope("grad/" + (node.name().empty() ? nameOf(node.output()) : node.name()).str());
    for (Value result : op->getResults())
      outputGradients.push_back(gradients.take(result));
    const Rule *rule = findRule(node);
    if (rule->kind == Kind::Zero || llvm::none_of(outputGradients, [](Value v) { return !!v; }))
      continue;
    RuleContext context(node, b, outputGradients, isWanted, sink);
    Operation *terminator = graph.getBody().front().getTerminator(), *before = terminator->getPrevNode();
    if (failed(rule->apply(context)) || b.failed() || untyped)
      return failure();
    // The products of a gradient run in the precision of their product.
    if (op->hasAttr(kFp8Product))
      for (Operation *made = before->getNextNode(); made != terminator; made = made->getNextNode())
        if (isa<MatMulOp, GemmOp>(made))
          made->setAttr(kFp8Product, op->getAttr(kFp8Product));
  }
  SmallVector<Value> results;
  for (Value parameter : parameters) {
    b.setScope("grad/" + nameOf(parameter).str());
    Value gradient = gradients.take(parameter);
    results.push_back(gradient ? gradient : b.zerosLike(parameter));
  }
  return results;
}

LogicalResult expandForDifferentiation(GraphOp graph, NodeBuilder &b, Value objective, ArrayRef<Value> parameters) {
  // Bodies may hold such operators again; each round goes one level deeper.
  for (;;) {
    llvm::DenseSet<Value> dependent;
    bool changed = false;
    for (Operation *op : operationsOnPath(graph, objective, parameters, dependent)) {
      Node node(op);
      bool isCall = isa<NodeGenericOp>(op) && findFunction(node);
      if (!isCall && (findRule(node) || !hasFunctionBody(node)))
        continue;
      b.before(op);
      b.setScope(node.name().empty() ? nameOf(node.output()) : node.name());
      SmallVector<Value> outputs;
      if (failed(isCall ? inlineFunction(node, b, outputs) : expandFunctionBody(node, b, outputs)) || b.failed())
        return failure();
      replaceWithValues(node, outputs, b.inference());
      changed = true;
    }
    if (!changed)
      return success();
  }
}

} // namespace recast::gradient
