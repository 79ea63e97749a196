#include "passes/checkpoint/BuildProblem.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"
#include "passes/step/StepInfo.h"
#include "llvm/Support/MathExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::checkpoint {

namespace {

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
  bool isScaled = llvm::any_of(op->getOperandTypes(), [](Type type) { return isa<train::ScaledType>(type); });
  if (op->getNumRegions() || isRouting(op) || isScaled || isa<train::OffloadOp, train::FetchOp>(op))
    return false;
  Node node(op);
  if (isa<NodeGenericOp>(op)) // Operators of ONNX that draw random numbers all have an operation of their own.
    return node.domain().empty() && node.schema();
  return !hasEffects(op);
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
  Builder(const TrainingBlock &training, const MemoryFacts &facts, const cost::Profile *profile, bool offloads)
      : training(training), facts(facts), profile(profile), offloads(offloads) {
    result.block = training.block;
  }

  GraphProblem run();

private:
  void addNode(Operation *op);
  int64_t bytesOf(OpResult value) const;
  void findForward();
  void findKept();
  void findFetches();

  const TrainingBlock &training;
  const MemoryFacts &facts;
  const cost::Profile *profile;
  bool offloads;
  GraphProblem result;
  llvm::StringMap<int> named; ///< Tensors by the names of results and views.
  llvm::DenseMap<Operation *, int> nodeOf;
};

/// -1 where the result takes no memory of the arena.
int64_t Builder::bytesOf(OpResult value) const {
  auto size = isAbsent(value) ? facts.tensors.end() : facts.tensors.find(nameOf(value));
  if (size == facts.tensors.end())
    return -1;
  return static_cast<int64_t>(
      llvm::alignTo(static_cast<uint64_t>(size->second), static_cast<uint64_t>(facts.alignmentBytes)));
}

void Builder::addNode(Operation *op) {
  nodeOf[op] = static_cast<int>(result.ops.size());
  result.ops.push_back(op);
  remat::Node node;
  // Without an operand that differs, other tools would merge the runs.
  node.canRepeat = isRepeatable(op) && !llvm::all_of(op->getOperands(), [&](Value v) { return result.isKnown(v); });
  StepFacts own = facts.steps.lookup(originOf(op));
  node.workspaceBytes = own.workspaceBytes;
  llvm::DenseSet<int> seen;
  forEachOperand(op, *training.block, [&](OpOperand &operand) {
    auto tensor = result.tensorOf.find(operand.get());
    if (tensor == result.tensorOf.end() || !seen.insert(tensor->second).second)
      return;
    node.reads.push_back(tensor->second);
  });
  for (OpResult value : op->getResults()) {
    int64_t bytes = bytesOf(value);
    if (bytes < 0)
      continue;
    int tensor = static_cast<int>(result.values.size());
    result.values.push_back(value);
    result.problem.tensors.push_back({bytes, false});
    result.tensorOf[value] = tensor;
    named[nameOf(value)] = tensor;
    node.writes.push_back(tensor);
    if (isStatistic(value))
      result.alwaysFirst.insert(value);
  }
  result.flops.push_back(0);
  if (profile) {
    node.cost = std::max<int64_t>(1, std::llround(cost::timeNs(op, *profile)));
    result.flops.back() = cost::costOf(op).flops;
  }
  // Each result takes over one operand.
  llvm::DenseSet<int> taking;
  for (const auto &[output, operand] : own.inPlace) {
    auto from = named.find(operand), to = named.find(output);
    if (from == named.end() || to == named.end() || !seen.contains(from->second) ||
        result.problem.tensors[from->second].bytes != result.problem.tensors[to->second].bytes ||
        llvm::is_contained(node.overwrites, from->second) || !taking.insert(to->second).second)
      continue;
    node.overwrites.push_back(from->second);
  }
  result.problem.nodes.push_back(std::move(node));
}

void Builder::findForward() {
  llvm::DenseSet<Operation *> reached;
  SmallVector<Value> work;
  if (training.loss)
    work.push_back(training.loss);
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
                                   isa<train::DropoutMaskOp, train::RandomUniformOp, train::QuantizeFp8Op,
                                       train::QuantizeFp8TilesOp, train::DequantizeFp8Op, train::RoundTf32Op>(op));
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

/// Values that are worth a copy: below a size most of what it takes is the latency.
void Builder::findFetches() {
  result.problem.copiesOverlap = profile->hostCopiesOverlap;
  for (auto [i, value] : llvm::enumerate(result.values)) {
    const remat::Tensor &tensor = result.problem.tensors[i];
    Operation *op = value.getDefiningOp();
    auto ns = std::llround(cost::transferNs(tensor.bytes, *profile));
    // A product of what dequantize_fp8 gives is one of 8-bit floats (Fp8Products.cpp) only where it reads that itself.
    if (isa<train::OffloadOp, train::FetchOp, train::DequantizeFp8Op>(op) || !isa<RankedTensorType>(value.getType()) ||
        tensor.isKept || result.alwaysFirst.contains(value) || static_cast<double>(ns) < 2 * profile->hostLatencyNs)
      continue;
    result.problem.fetches.push_back({static_cast<int>(i), ns, ns});
  }
}

GraphProblem Builder::run() {
  for (Operation &op : *training.block) {
    if (isNode(&op) && facts.steps.contains(originOf(&op))) {
      addNode(&op);
      continue;
    }
    for (OpResult value : op.getResults()) {
      Value source = isView(&op) ? op.getOperand(value.getResultNumber()) : Value();
      if (auto tensor = result.tensorOf.find(source); tensor != result.tensorOf.end()) {
        int shared = tensor->second;
        result.tensorOf[value] = shared;
        named[nameOf(value)] = shared;
      } else if (!source || result.isKnown(source)) {
        result.known.insert(value);
      }
    }
  }
  findForward();
  findKept();
  if (offloads)
    findFetches();
  return std::move(result);
}

} // namespace

GraphProblem buildProblem(const TrainingBlock &training, const MemoryFacts &facts, const cost::Profile *profile,
                          bool offloads) {
  return Builder(training, facts, profile, offloads).run();
}

bool GraphProblem::isKnown(Value value) const { return isAbsent(value) || known.contains(value) || constantOf(value); }

StringRef originOf(Operation *op) {
  for (Value result : op->getResults())
    if (!isAbsent(result))
      return nameOf(result);
  return "";
}

bool hasEffects(Operation *op) {
  return cast<NodeInterface>(op).facts().effects &&
         !isa<train::DropoutMaskOp, train::RandomUniformOp, train::OffloadOp, train::FetchOp>(op);
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

SmallVector<TrainingBlock, 2> stepBlocks(ModuleOp module) {
  Block *main = &mainGraph(module).getBody().front();
  SmallVector<TrainingBlock, 2> blocks;
  // Without a loss there is one block, of which all is forward.
  ScopedDiagnosticHandler quiet(module.getContext(), [](Diagnostic &) { return success(); });
  auto training = findTrainingBlock(module);
  if (succeeded(training) && training->block != main)
    blocks.push_back(*training);
  blocks.push_back({main, succeeded(training) && training->block == main ? training->loss : Value()});
  return blocks;
}

} // namespace recast::checkpoint
