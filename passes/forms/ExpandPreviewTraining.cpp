#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/PreviewOptimizers.h"
#include "mlir/Analysis/TopologicalSortUtils.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Passes.h"
#include "passes/gradient/Gradient.h"
#include "passes/step/StepInfo.h"
#include "llvm/ADT/SetVector.h"

namespace recast {
#define GEN_PASS_DEF_EXPANDPREVIEWTRAINING
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// A Gradient node: d y / d xs of the graph that xs and zs, taken as independent, determine.
class GradientNode {
public:
  GradientNode(GraphOp graph, Node node, NodeBuilder &b) : graph(graph), node(node), b(b) {}

  // The gradients, at the end of the graph; null for results that are left out.
  FailureOr<SmallVector<Value>> build() {
    if (failed(resolve()))
      return failure();
    SmallVector<Value> sources(sourcesAt.begin(), sourcesAt.begin() + static_cast<ptrdiff_t>(numDifferentiated));
    Value objective = y;
    bool isInPlace = true;
    for (unsigned i = 0; i < sourcesAt.size(); ++i)
      isInPlace &= node.input(i) == sourcesAt[i];
    b.before(graph.getBody().front().getTerminator());
    if (!isInPlace)
      objective = copyGraph(sources);
    if (!objective)
      return failure();
    if (auto type = dyn_cast<RankedTensorType>(objective.getType()); !type || type.getRank() != 0)
      objective = b.sum(objective, {}, /*keepDims=*/false); // dY/dX of a tensor: of the sum of its elements
    if (b.failed() || failed(gradient::expandForDifferentiation(graph, b, objective, sources)))
      return failure();
    return gradient::differentiate(graph, b, objective, sources);
  }

private:
  InFlightDiagnostic refuse() { return node->emitError() << "node " << node.describe() << ": "; }

  LogicalResult resolve() {
    auto strings = [&](StringRef name) {
      SmallVector<StringRef> list;
      if (auto array = node->getAttrOfType<ArrayAttr>(name))
        for (Attribute item : array)
          list.push_back(cast<StringAttr>(item).getValue());
      return list;
    };
    SmallVector<StringRef> names = strings("xs");
    numDifferentiated = names.size();
    names.append(strings("zs"));
    if (names.size() != node.numInputs() || node.numOutputs() > numDifferentiated)
      return refuse() << "xs and zs name " << names.size() << " tensors, " << numDifferentiated
                      << " of them in xs; as many inputs, and at most as many outputs, are needed, and it has "
                      << node.numInputs() << " and " << node.numOutputs();
    for (StringRef name : names) {
      Value value = step::StepGraph::findIn(graph, name);
      if (!value)
        return refuse() << "'" << name << "' in xs or zs is no tensor of the graph";
      sourcesAt.push_back(value);
    }
    StringRef target = node.getString("y", "");
    y = step::StepGraph::findIn(graph, target);
    if (!y || !isFloatTensor(y))
      return refuse() << "y is '" << target << "', which is no floating-point tensor of the graph";
    return success();
  }

  // The nodes from xs and zs to y once more, for the values that the node's inputs give; `sources` become these.
  // Null after an error.
  Value copyGraph(SmallVectorImpl<Value> &sources) {
    IRMapping values;
    llvm::DenseSet<Value> boundary;
    for (auto [i, source] : llvm::enumerate(sourcesAt)) {
      Value given = b.node("Identity", {node.input(static_cast<unsigned>(i))}); // a value of its own: independent
      values.map(source, given);
      boundary.insert(source);
      if (i < numDifferentiated)
        sources[i] = given;
    }
    llvm::SetVector<Operation *> needed;
    SmallVector<Value> work{y};
    while (!work.empty()) {
      Value value = work.pop_back_val();
      Operation *op = value.getDefiningOp();
      if (!op || boundary.contains(value) || !isNode(op) || !needed.insert(op))
        continue;
      op->walk([&](Operation *inner) { work.append(inner->operand_begin(), inner->operand_end()); });
    }
    for (Operation &op : graph.getBody().front().without_terminator()) {
      if (!needed.contains(&op))
        continue;
      Operation *copy = b.rewriter().clone(op, values);
      b.adopt(copy);
      if (failed(b.inference().infer(copy)))
        return {};
    }
    return values.lookupOrDefault(y);
  }

  GraphOp graph;
  Node node;
  NodeBuilder &b;
  SmallVector<Value> sourcesAt; ///< What xs and then zs name.
  size_t numDifferentiated = 0;
  Value y;
};

struct ExpandPreviewTrainingPass : impl::ExpandPreviewTrainingBase<ExpandPreviewTrainingPass> {
  using ExpandPreviewTrainingBase::ExpandPreviewTrainingBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    Block &block = graph.getBody().front();
    SmallVector<Operation *> found;
    for (Operation &op : block)
      if (isNode(&op) && isPreviewTrainingDomain(Node(&op).domain()))
        found.push_back(&op);
    if (found.empty())
      return;
    forgetDeclaredTypes(graph);
    NameScope names(graph);
    TypeInference types;
    NodeBuilder b(graph, names, types);
    for (Operation &op : block)
      if (isNode(&op) && failed(types.infer(&op)))
        return signalPassFailure();
    for (Operation *op : found) {
      Node node(op);
      b.setScope(node.name().empty() ? node.opType() : node.name());
      SmallVector<Value> outputs;
      if (isPreviewOptimizer(node)) {
        b.before(op);
        if (failed(expandPreviewOptimizer(node, b, outputs)) || b.failed())
          return signalPassFailure();
        ++numOptimizers;
      } else if (node.opType() == "Gradient") {
        auto gradients = GradientNode(graph, node, b).build();
        if (failed(gradients))
          return signalPassFailure();
        outputs = *gradients;
        outputs.resize(node.numOutputs());
        ++numGradients;
      } else {
        op->emitError() << "node " << node.describe() << ": the domain has Gradient, Adam, Adagrad and Momentum";
        return signalPassFailure();
      }
      // Outputs of the graph keep their names, also where a gradient is a value that has another one.
      for (auto [result, value] : llvm::zip(op->getResults(), outputs))
        if (!isAbsent(result))
          value = ownName(b, value);
      replaceWithValues(node, outputs, types);
      // Gradients were built behind the nodes that read them.
      sortTopologically(&block);
    }
    dropDomain();
    TypeInference fresh;
    if (failed(fresh.inferAll(graph.getBody())))
      signalPassFailure();
  }

  // A value that may be renamed.
  static Value ownName(NodeBuilder &b, Value value) {
    if (value.getDefiningOp() && !isa<InitializerOp>(value.getDefiningOp()) && value.use_empty())
      return value;
    if (value.getDefiningOp())
      b.after(value.getDefiningOp());
    else
      b.rewriter().setInsertionPointToStart(value.getParentBlock());
    return b.node("Identity", {value});
  }

  void dropDomain() {
    SmallVector<Attribute> kept;
    for (Attribute entry : getOperation()->getAttrOfType<ArrayAttr>("onnx.opsets"))
      if (!isPreviewTrainingDomain(cast<StringAttr>(cast<ArrayAttr>(entry)[0]).getValue()))
        kept.push_back(entry);
    getOperation()->setAttr("onnx.opsets", ArrayAttr::get(&getContext(), kept));
  }
};

} // namespace
} // namespace recast
