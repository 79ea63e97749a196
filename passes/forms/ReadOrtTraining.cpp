#include "ir/onnx/InlineFunctions.h"
#include "passes/Passes.h"
#include "passes/forms/OrtOperators.h"
#include "passes/forms/RaiseOpset.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringSet.h"

namespace recast {
#define GEN_PASS_DEF_READORTTRAINING
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// What a graph says about training in ONNX Runtime's form.
struct OrtForm {
  llvm::SetVector<Value> parameters; ///< Inputs and initializers that have a gradient.
  SmallVector<Value> outputs;        ///< Outputs of the forward.
};

bool isOrt(Operation *op, std::initializer_list<StringRef> types) {
  Node node(op);
  return op && isNode(op) && node.domain() == "com.microsoft" && llvm::is_contained(types, node.opType());
}

// The name of the gradient that an output is or accumulates; "" where it is none.
StringRef gradientName(Value output) {
  Operation *op = output.getDefiningOp();
  if (isOrt(op, {"InPlaceAccumulatorV2", "InPlaceAccumulator", "GradientAccumulator"}) && op->getNumOperands() > 1)
    return nameOf(op->getOperand(1));
  return nameOf(output);
}

OrtForm recognise(GraphOp graph) {
  OrtForm form;
  Block &block = graph.getBody().front();
  llvm::StringMap<Value> sources;
  for (BlockArgument argument : block.getArguments())
    if (isFloatTensor(argument))
      sources[nameOf(argument)] = argument;
  for (auto initializer : block.getOps<InitializerOp>())
    if (isFloatTensor(initializer.getResult()))
      sources[nameOf(initializer.getResult())] = initializer.getResult();
  bool hasOrtNodes =
      llvm::any_of(block, [](Operation &op) { return isNode(&op) && forms::isOrtDomain(Node(&op).domain()); });
  if (!hasOrtNodes)
    return form;
  for (Value output : block.getTerminator()->getOperands()) {
    StringRef name = gradientName(output);
    Value source = name.consume_back("_grad") ? sources.lookup(name) : Value();
    if (!source)
      form.outputs.push_back(output);
    else if (auto type = dyn_cast<RankedTensorType>(source.getType()); type && type.hasStaticShape())
      form.parameters.insert(source);
  }
  // ORTModule hands the forward's outputs to PyTorch here, and gets their gradients back.
  for (Operation &op : block)
    if (isOrt(&op, {"YieldOp"}))
      for (Value value : op.getOperands())
        if (!isAbsent(value) && !llvm::is_contained(form.outputs, value))
          form.outputs.push_back(value);
  return form;
}

// Drops what no output depends on: the backward, and the inputs that it alone has read.
void keepSliceOf(GraphOp graph, ArrayRef<Value> outputs) {
  Block &block = graph.getBody().front();
  block.getTerminator()->setOperands(outputs);
  for (Operation &op : llvm::make_early_inc_range(llvm::reverse(block)))
    if (!op.hasTrait<OpTrait::IsTerminator>() && op.use_empty() && (isNode(&op) || isa<InitializerOp>(op)))
      op.erase();
  DictionaryAttr info = graph.getInfo();
  SmallVector<StringRef> names = stringsIn(info, "inputs"), kept;
  SmallVector<Attribute> defaults;
  auto given = info.getAs<ArrayAttr>("defaults");
  BitVector unused(block.getNumArguments());
  for (BlockArgument argument : block.getArguments()) {
    unsigned i = argument.getArgNumber();
    if (argument.use_empty()) {
      unused.set(i);
      continue;
    }
    kept.push_back(names[i]);
    defaults.push_back(given ? given[i] : UnitAttr::get(graph.getContext()));
  }
  block.eraseArguments(unused);
  info = withEntry(info, "inputs", stringArray(graph.getContext(), kept));
  if (given)
    info = withEntry(info, "defaults", ArrayAttr::get(graph.getContext(), defaults));
  graph.setInfoAttr(info);
}

LogicalResult expandOrtOperators(GraphOp graph) {
  NameScope names(graph);
  TypeInference types;
  NodeBuilder b(graph, names, types);
  for (Operation &op : llvm::make_early_inc_range(graph.getBody().front())) {
    Node node(&op);
    if (!isNode(&op) || !forms::isOrtDomain(node.domain()) || findFunction(node)) {
      if (isNode(&op) && failed(types.infer(&op)))
        return failure();
      continue;
    }
    b.before(&op);
    b.setScope(node.name().empty() ? node.opType() : node.name());
    SmallVector<Value> outputs;
    if (failed(forms::expandOrtOperator(node, b, outputs)))
      return failure();
    replaceWithValues(node, outputs, types);
  }
  return success();
}

// Imports of domains that no node has any more.
void dropUnusedDomains(ModuleOp module) {
  llvm::StringSet<> used{""};
  module.walk([&](Operation *op) {
    if (isNode(op))
      used.insert(Node(op).domain());
  });
  SmallVector<Attribute> kept;
  for (Attribute entry : module->getAttrOfType<ArrayAttr>("onnx.opsets"))
    if (used.contains(normalDomain(cast<StringAttr>(cast<ArrayAttr>(entry)[0]).getValue())))
      kept.push_back(entry);
  module->setAttr("onnx.opsets", ArrayAttr::get(module.getContext(), kept));
}

struct ReadOrtTrainingPass : impl::ReadOrtTrainingBase<ReadOrtTrainingPass> {
  using ReadOrtTrainingBase::ReadOrtTrainingBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    OrtForm form = recognise(graph);
    if (form.parameters.empty())
      return;
    if (form.outputs.empty()) {
      graph.emitError() << "a training graph of ONNX Runtime, in which every output is a gradient: the loss is missing";
      return signalPassFailure();
    }
    SmallVector<StringRef> parameters;
    for (Value parameter : form.parameters)
      parameters.push_back(nameOf(parameter));
    graph->setAttr(gradient::kParameters, stringArray(&getContext(), parameters));
    numParameters += parameters.size();
    forgetDeclaredTypes(graph);
    keepSliceOf(graph, form.outputs);
    giveValues(graph, parameters);
    if (failed(forms::raiseOpset(getOperation())) || failed(expandOrtOperators(graph)))
      return signalPassFailure();
    dropUnusedDomains(getOperation());
  }

  // ONNX Runtime keeps the values of parameters in a checkpoint beside the model.
  static void giveValues(GraphOp graph, ArrayRef<StringRef> parameters) {
    llvm::StringSet<> isParameter;
    for (StringRef name : parameters)
      isParameter.insert(name);
    DictionaryAttr info = graph.getInfo();
    Block &block = graph.getBody().front();
    SmallVector<Attribute> defaults(block.getNumArguments(), UnitAttr::get(graph.getContext()));
    if (auto given = info.getAs<ArrayAttr>("defaults"))
      defaults.assign(given.begin(), given.end());
    SmallVector<StringRef> zeros;
    for (BlockArgument argument : block.getArguments()) {
      Attribute &value = defaults[argument.getArgNumber()];
      if (isa<TensorAttr>(value) || !isParameter.contains(nameOf(argument)))
        continue;
      value = splatTensor(withoutSymbols(cast<RankedTensorType>(argument.getType())), 0);
      zeros.push_back(nameOf(argument));
    }
    graph.setInfoAttr(withEntry(info, "defaults", ArrayAttr::get(graph.getContext(), defaults)));
    if (!zeros.empty())
      graph.emitWarning() << zeros.size() << " of " << parameters.size() << " parameters, the first '" << zeros.front()
                          << "', have no values in this file of ONNX Runtime, which keeps them in a checkpoint: they "
                          << "start as zeros; give values with --state-in=FILE.safetensors";
  }
};

} // namespace
} // namespace recast
