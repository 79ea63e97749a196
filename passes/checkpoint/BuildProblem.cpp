#include "passes/checkpoint/BuildProblem.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"
#include "passes/step/StepInfo.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::checkpoint {

namespace {

/// Constants, and what is computed from constants and from static shapes: no step of a plan.
class KnownValues {
public:
  bool contains(Operation *op) {
    auto [at, isNew] = known.try_emplace(op, false);
    if (isNew) {
      bool isKnown = find(op); // May move `at`.
      return known[op] = isKnown;
    }
    return at->second;
  }

private:
  bool find(Operation *op) {
    if (!isNode(op))
      return isa<InitializerOp, AbsentOp>(op);
    if (isa<ConstantOp>(op))
      return true;
    if (isa<ShapeOp, SizeOp>(op))
      if (auto type = dyn_cast<RankedTensorType>(op->getOperand(0).getType()); type && type.hasStaticShape())
        return true;
    if (op->getNumRegions() || isa<NodeGenericOp>(op) || cast<NodeInterface>(op).facts().effects)
      return false;
    return op->getNumOperands() && llvm::all_of(op->getOperands(), [&](Value operand) {
             Operation *producer = operand.getDefiningOp();
             return producer && producer->getBlock() == op->getBlock() && contains(producer);
           });
  }

  llvm::DenseMap<Operation *, bool> known;
};

/// What depends on the batch, and not on parameters alone.
llvm::DenseSet<Value> batchValues(Block &block) {
  llvm::DenseSet<Value> found;
  Operation *parent = block.getParentOp();
  unsigned firstSlice = 0;
  if (auto scan = dyn_cast<ScanOp>(parent))
    firstSlice = block.getNumArguments() - static_cast<unsigned>(Node(scan).getInt("num_scan_inputs", 0));
  auto defaults = isa<GraphOp>(parent) ? cast<GraphOp>(parent).getInfo().getAs<ArrayAttr>("defaults") : ArrayAttr();
  for (BlockArgument argument : block.getArguments()) {
    unsigned i = argument.getArgNumber();
    if (i >= firstSlice && !(defaults && i < defaults.size() && isa<TensorAttr>(defaults[i])))
      found.insert(argument);
  }
  for (Operation &op : block)
    if (step::readsAny(&op, found))
      found.insert(op.result_begin(), op.result_end());
  return found;
}

/// Results that depend on tiny differences of their operands as a whole: other runtimes, whose fusions round the second
/// run differently, would route elsewhere.
bool isRouting(Operation *op) {
  Node node(op);
  return isa<TopKOp, ArgMaxOp, ArgMinOp, HardmaxOp>(op) || node.is("NonMaxSuppression") || node.is("Unique");
}

/// True where another run gives the same results and changes nothing.
bool isRepeatable(Operation *op) {
  bool readsKnown = llvm::all_of(op->getOperands(), [](Value v) { return isAbsent(v) || constantOf(v); });
  bool isScaled = llvm::any_of(op->getOperandTypes(), [](Type type) { return isa<train::ScaledType>(type); });
  // Without an operand that differs, other tools would merge the runs.
  if (op->getNumRegions() || isRouting(op) || readsKnown || isScaled)
    return false;
  Node node(op);
  if (isa<NodeGenericOp>(op)) // Operators of ONNX that draw random numbers all have an operation of their own.
    return node.domain().empty() && node.schema();
  // The mask is a function of its key and offset.
  return isa<train::DropoutMaskOp>(op) || !cast<NodeInterface>(op).facts().effects;
}

/// Results that describe the batch for the state: the state takes in one batch once.
bool isStatistic(OpResult result) {
  return result.getResultNumber() > 0 &&
         (isa<BatchNormalizationOp>(result.getOwner()) || isa<train::QuantizeFp8Op>(result.getOwner()));
}

/// A product of two activations, like the scores of attention: many results for few multiplications.
bool isInnerProduct(Operation *op, const llvm::DenseSet<Value> &batch) {
  return isa<MatMulOp, EinsumOp>(op) && op->getNumOperands() == 2 &&
         llvm::all_of(op->getOperands(), [&](Value operand) { return batch.contains(operand); });
}

class Builder {
public:
  Builder(const TrainingBlock &training, const MemoryFacts *facts) : training(training), facts(facts) {
    result.block = training.block;
  }

  FailureOr<GraphProblem> run();

private:
  bool isStep(Operation *op);
  LogicalResult addNode(Operation *op);
  FailureOr<int64_t> bytesOf(OpResult value);
  void findForward();
  void findKept();

  const TrainingBlock &training;
  const MemoryFacts *facts;
  KnownValues known;
  GraphProblem result;
  llvm::DenseMap<Operation *, int> nodeOf;
};

bool Builder::isStep(Operation *op) {
  if (!isNode(op) || isa<ConstantOp>(op))
    return false;
  return facts ? facts->steps.contains(originOf(op)) : !isView(op) && !known.contains(op);
}

/// -1 where the result takes no memory of the arena.
FailureOr<int64_t> Builder::bytesOf(OpResult value) {
  if (isAbsent(value))
    return -1;
  int64_t bytes;
  if (facts) {
    auto size = facts->tensors.find(nameOf(value));
    if (size == facts->tensors.end())
      return -1;
    bytes = size->second;
  } else {
    auto type = dyn_cast<RankedTensorType>(value.getType());
    if (!type || !type.hasStaticShape()) {
      StringRef symbol;
      for (unsigned i = 0; type && i < type.getRank(); ++i)
        if (type.isDynamicDim(i) && symbol.empty())
          symbol = dimSymbol(type, i);
      return value.getOwner()->emitError()
             << "node " << Node(value.getOwner()).describe() << ": the size of '" << nameOf(value)
             << "' is not known, which planning memory needs; give symbolic dimensions a size with --dim="
             << (symbol.empty() ? "NAME" : symbol) << "=N";
    }
    bytes = type.getNumElements() * storageBits(type.getElementType()) / 8;
  }
  return static_cast<int64_t>(
      llvm::alignTo(static_cast<uint64_t>(bytes), static_cast<uint64_t>(facts ? facts->alignmentBytes : 1)));
}

LogicalResult Builder::addNode(Operation *op) {
  nodeOf[op] = static_cast<int>(result.ops.size());
  result.ops.push_back(op);
  remat::Node node;
  node.canRepeat = isRepeatable(op);
  StepFacts own = facts ? facts->steps.lookup(originOf(op)) : StepFacts();
  node.workspaceBytes = own.workspaceBytes;
  llvm::DenseSet<int> seen;
  forEachOperand(op, *training.block, [&](OpOperand &operand) {
    auto tensor = result.tensorOf.find(operand.get());
    if (tensor == result.tensorOf.end() || !seen.insert(tensor->second).second)
      return;
    node.reads.push_back(tensor->second);
    node.cost += result.problem.tensors[tensor->second].bytes;
    if (own.overwrites.contains(nameOf(operand.get())))
      node.overwrites.push_back(tensor->second);
  });
  for (OpResult value : op->getResults()) {
    FailureOr<int64_t> bytes = bytesOf(value);
    if (failed(bytes))
      return failure();
    if (*bytes < 0)
      continue;
    int tensor = static_cast<int>(result.values.size());
    result.values.push_back(value);
    result.problem.tensors.push_back({*bytes, false});
    result.tensorOf[value] = tensor;
    node.writes.push_back(tensor);
    node.cost += *bytes;
    if (isStatistic(value))
      result.alwaysFirst.insert(value);
  }
  result.problem.nodes.push_back(std::move(node));
  return success();
}

void Builder::findForward() {
  llvm::DenseSet<Operation *> reached;
  SmallVector<Value> work{training.loss};
  while (!work.empty()) {
    Operation *op = work.pop_back_val().getDefiningOp();
    if (!op || op->getBlock() != training.block || !reached.insert(op).second)
      continue;
    forEachOperand(op, *training.block, [&](OpOperand &operand) { work.push_back(operand.get()); });
  }
  llvm::DenseSet<Value> batch = batchValues(*training.block);
  for (Operation *op : result.ops) {
    result.roles.isForward.push_back(reached.contains(op));
    result.roles.isCheap.push_back(cast<NodeInterface>(op).facts().cheap || isInnerProduct(op, batch) ||
                                   isa<train::DropoutMaskOp, train::QuantizeFp8Op, train::QuantizeFp8TilesOp,
                                       train::DequantizeFp8Op, train::RoundTf32Op>(op));
  }
}

void Builder::findKept() {
  for (Value output : training.block->getTerminator()->getOperands())
    if (auto tensor = result.tensorOf.find(output); tensor != result.tensorOf.end()) {
      result.problem.tensors[tensor->second].isKept = true;
      result.alwaysFirst.insert(result.values[tensor->second]);
    }
  // Where every result lives to the end (or in the state, which the step overwrites) another run gains nothing.
  for (auto [op, node] : llvm::zip(result.ops, result.problem.nodes))
    node.canRepeat &= llvm::any_of(node.writes, [&](int tensor) { return !result.problem.tensors[tensor].isKept; });
}

FailureOr<GraphProblem> Builder::run() {
  for (Operation &op : *training.block) {
    if (isStep(&op)) {
      if (failed(addNode(&op)))
        return failure();
      continue;
    }
    if (isNode(&op) && isView(&op))
      for (OpResult view : op.getResults())
        if (auto source = result.tensorOf.find(op.getOperand(view.getResultNumber()));
            source != result.tensorOf.end()) {
          int tensor = source->second;
          result.tensorOf[view] = tensor;
        }
  }
  findForward();
  findKept();
  return std::move(result);
}

} // namespace

FailureOr<GraphProblem> buildProblem(const TrainingBlock &training, const MemoryFacts *facts) {
  return Builder(training, facts).run();
}

StringRef originOf(Operation *op) {
  for (Value result : op->getResults())
    if (!isAbsent(result))
      return nameOf(result);
  return "";
}

bool isKnownBeforeRun(const GraphProblem &graph, Value value) {
  Operation *op = value.getDefiningOp();
  if (!op)
    return false;
  if (isAbsent(value) || constantOf(value))
    return true;
  // Of other blocks (around a body) only constants are known to be so; a view of an input is none.
  return op->getBlock() == graph.block && !graph.tensorOf.contains(value) && !isView(op);
}

bool isView(Operation *op) {
  if (!isNode(op) || !op->getNumOperands() || isAbsent(op->getOperand(0)))
    return false;
  if (isa<train::BarrierOp, train::MarkScaledOp>(op) || cast<NodeInterface>(op).facts().view)
    return true;
  return isa<CastOp, CastLikeOp>(op) && op->getOperand(0).getType() == op->getResult(0).getType();
}

void forEachOperand(Operation *op, Block &block, function_ref<void(OpOperand &)> visit) {
  op->walk([&](Operation *inner) {
    for (OpOperand &operand : inner->getOpOperands())
      if (operand.get().getParentBlock() == &block)
        visit(operand);
  });
}

FailureOr<TrainingBlock> findTrainingBlock(ModuleOp module) {
  GraphOp graph = mainGraph(module);
  std::string name = step::StepInfo::of(graph).loss;
  if (name.empty())
    name = getMetadata(module, "recast.loss");
  Value loss = name.empty() ? Value() : step::StepGraph::findIn(graph, name);
  if (!loss)
    return graph.emitError() << "recomputation needs a training graph that recast-opt has built: the model does not "
                                "say which value is the loss";
  TrainingBlock training{&graph.getBody().front(), loss};
  while (Operation *op = training.loss.getDefiningOp()) {
    unsigned i = cast<OpResult>(training.loss).getResultNumber();
    if (isa<ScanOp>(op)) {
      training.block = &op->getRegion(0).front();
      training.loss = training.block->getTerminator()->getOperand(i);
    } else if (isView(op)) {
      training.loss = op->getOperand(i);
    } else {
      break;
    }
  }
  return training;
}

} // namespace recast::checkpoint
