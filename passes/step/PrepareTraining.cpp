#include "ir/onnx/Builder.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/Sequences.h"
#include "ir/onnx/TypeInference.h"
#include "mlir/IR/Builders.h"
#include "passes/Passes.h"
#include "passes/gradient/Gradient.h"

namespace recast {
#define GEN_PASS_DEF_PREPARETRAINING
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// Graph inputs with default values become initializers, at the start of the graph and under their names.
void defaultsToInitializers(GraphOp graph) {
  DictionaryAttr info = graph.getInfo();
  auto defaults = info.getAs<ArrayAttr>("defaults");
  if (!defaults)
    return;
  Block &block = graph.getBody().front();
  OpBuilder b = OpBuilder::atBlockBegin(&block);
  SmallVector<StringRef> inputs = stringsIn(info, "inputs"), kept;
  BitVector removed(block.getNumArguments());
  for (BlockArgument argument : block.getArguments()) {
    auto tensor = dyn_cast<TensorAttr>(defaults[argument.getArgNumber()]);
    if (!tensor) {
      kept.push_back(inputs[argument.getArgNumber()]);
      continue;
    }
    OperationState state(b.getUnknownLoc(), InitializerOp::getOperationName());
    state.addAttribute("value", tensor);
    state.addAttribute("onnx.outputs", stringArray(b.getContext(), {inputs[argument.getArgNumber()]}));
    state.addTypes(tensor.getType());
    argument.replaceAllUsesWith(b.create(state)->getResult(0));
    removed.set(argument.getArgNumber());
  }
  block.eraseArguments(removed);
  for (StringRef key : {"defaults", "initializer_order"})
    info = withEntry(info, key, nullptr);
  graph.setInfoAttr(withEntry(info, "inputs", stringArray(b.getContext(), kept)));
}

// The numbers of a list that is put together from constants, as the TorchScript exporter does; nothing if others count.
std::optional<SmallVector<double>> listedNumbers(Value value) {
  if (TensorAttr constant = constantOf(value))
    return asDoubles(constant);
  Operation *op = value.getDefiningOp();
  if (op && isa<IdentityOp, CastOp>(op))
    return listedNumbers(op->getOperand(0));
  if (!op || !isa<ConcatOp>(op))
    return std::nullopt;
  SmallVector<double> numbers;
  for (Value part : op->getOperands()) {
    auto some = listedNumbers(part);
    if (!some)
      return std::nullopt;
    numbers.append(*some);
  }
  return numbers;
}

// Scales of Resize as constants: sizes follow from them only where they are known.
void foldScales(GraphOp graph, TypeInference &types) {
  SmallVector<Operation *> resizes;
  graph.walk([&](Operation *op) {
    if (isNode(op) && (Node(op).is("Resize") || Node(op).is("Upsample")))
      resizes.push_back(op);
  });
  if (resizes.empty())
    return;
  NameScope names(graph);
  NodeBuilder b(graph, names, types);
  for (Operation *op : resizes) {
    unsigned at = Node(op).is("Resize") && Node(op).sinceVersion() >= 11 ? 2 : 1;
    Value scales = Node(op).input(at);
    auto numbers = scales && !constantOf(scales) ? listedNumbers(scales) : std::nullopt;
    if (!numbers)
      continue;
    auto type = RankedTensorType::get(static_cast<int64_t>(numbers->size()), Float32Type::get(op->getContext()));
    SmallVector<char> bytes;
    encode(type.getElementType(), *numbers, bytes);
    op->setOperand(at, b.constant(makeTensor(type, bytes)));
  }
}

LogicalResult resolveSequences(GraphOp graph, TypeInference &types) {
  NameScope names(graph);
  NodeBuilder b(graph, names, types);
  return Sequences(b).resolveAll(graph.getBody().front());
}

// Whatever may be trained: every floating-point initializer and input.
LogicalResult expandFunctions(GraphOp graph, Value objective) {
  SmallVector<Value> sources;
  for (BlockArgument argument : graph.getBody().front().getArguments())
    if (isFloatTensor(argument))
      sources.push_back(argument);
  for (auto initializer : graph.getBody().front().getOps<InitializerOp>())
    if (isFloatTensor(initializer.getResult()))
      sources.push_back(initializer.getResult());
  NameScope names(graph);
  TypeInference types;
  NodeBuilder b(graph, names, types);
  return gradient::expandForDifferentiation(graph, b, objective, sources);
}

struct PrepareTrainingPass : impl::PrepareTrainingBase<PrepareTrainingPass> {
  using PrepareTrainingBase::PrepareTrainingBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    forgetDeclaredTypes(graph);
    defaultsToInitializers(graph);
    TypeInference types;
    foldScales(graph, types);
    if (failed(types.inferAll(graph.getBody())) || failed(resolveSequences(graph, types)))
      return signalPassFailure();
    auto objective = gradient::findLoss(graph, loss);
    if (failed(objective))
      return signalPassFailure();
    if (failed(expandFunctions(graph, *objective)))
      return signalPassFailure();
    objective = gradient::findLoss(graph, loss); // may have been produced by a node that was expanded
    llvm::DenseSet<Value> influencing = gradient::influencingValues(graph, *objective);
    for (auto norm : graph.getBody().front().getOps<BatchNormalizationOp>()) {
      Node node(norm);
      if (node.sinceVersion() >= 14 && node.getInt("training_mode", 0) == 0 && influencing.contains(node.output()))
        norm->emitWarning() << "node " << node.describe() << " is in inference form: it uses its running statistics "
                            << "and does not update them (export the model in training mode)";
    }
  }
};

} // namespace
} // namespace recast
