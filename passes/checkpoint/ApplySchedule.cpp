#include "passes/checkpoint/ApplySchedule.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::checkpoint {

namespace {

class Applier {
public:
  Applier(const GraphProblem &graph, ArrayRef<int> runs, NameScope &names)
      : graph(graph), runs(runs), names(names), block(*graph.block), end(block.getTerminator()) {}

  void run();

private:
  bool isStep(Value value) const { return steps.contains(value.getDefiningOp()); }
  void place(Operation *op);
  Value current(Value value);
  void runFirst(Operation *op);
  void runStretch(ArrayRef<int> stretch, Operation *before);
  SmallVector<Value> retainedBy(ArrayRef<int> stretch);
  Value triggerAfter(Operation *before);
  Operation *addBarrier(ArrayRef<Value> values, Value trigger);
  Value addTransfer(StringRef operation, Value from, Value named, StringRef suffix);
  void offload(int tensor);
  void fetch(int tensor);
  void renew(int tensor, Value value, Value fresh);
  Operation *clone(Operation *op, const IRMapping &operands);

  const GraphProblem &graph;
  ArrayRef<int> runs;
  NameScope &names;
  Block &block;
  Operation *end;
  llvm::DenseSet<Operation *> steps;       ///< Operators of the problem; all others are views, or known before the run.
  llvm::DenseSet<Operation *> placed;      ///< In their final place.
  llvm::DenseMap<int, Value> onHost;       ///< Tensors that are fetched: null until they are offloaded.
  llvm::DenseMap<Value, Value> guarded;    ///< Of the stretch: what is behind its barrier.
  llvm::DenseMap<Value, Value> latest;     ///< Of results that have run again, and of views of them.
  std::vector<SmallVector<Value>> sharing; ///< One a tensor: the result and its views.
};

/// Moves an operator that is no step, and those that it needs, to where the order has got to.
void Applier::place(Operation *op) {
  if (!op || op->getBlock() != &block || !placed.insert(op).second)
    return;
  forEachOperand(op, block, [&](OpOperand &operand) { place(operand.get().getDefiningOp()); });
  op->moveBefore(end);
}

/// What a reader gets now that the graph as it was gives `value`.
Value Applier::current(Value value) {
  if (auto known = latest.find(value); known != latest.end())
    return known->second;
  Operation *op = value.getDefiningOp();
  if (!op || op->getBlock() != &block)
    return value;
  bool isPlannedView = !isStep(value) && graph.tensorOf.contains(value);
  if (!isPlannedView || llvm::all_of(op->getOperands(), [&](Value v) { return current(v) == v; })) {
    place(op);
    return value;
  }
  // A view of a result that has run again.
  IRMapping operands;
  for (Value operand : op->getOperands())
    operands.map(operand, current(operand));
  Operation *view = clone(op, operands);
  for (auto [old, fresh] : llvm::zip(op->getResults(), view->getResults()))
    latest[old] = fresh;
  return latest[value];
}

Operation *Applier::clone(Operation *op, const IRMapping &operands) {
  OpBuilder b(end);
  IRMapping mapping = operands;
  Operation *copy = b.clone(*op, mapping);
  for (auto [old, fresh] : llvm::zip(op->getResults(), copy->getResults()))
    if (!isAbsent(old))
      setName(fresh, names.unique((nameOf(old) + kRecomputeSuffix).str()));
  if (StringRef name = Node(op).name(); !name.empty()) {
    bool isResultsName = op->getNumResults() && name == nameOf(op->getResult(0));
    copy->setAttr("onnx.name", b.getStringAttr(isResultsName ? nameOf(copy->getResult(0)).str()
                                                             : names.unique((name + kRecomputeSuffix).str())));
  }
  placed.insert(copy);
  return copy;
}

void Applier::runFirst(Operation *op) {
  forEachOperand(op, block, [&](OpOperand &operand) { operand.set(current(operand.get())); });
  placed.insert(op);
  op->moveBefore(end);
}

/// The values from before the stretch that must not be recognised: with them equal, a clone would be the operator that
/// ran first. Operands that take memory of the plan; where an operator has none, its other operands but constants.
SmallVector<Value> Applier::retainedBy(ArrayRef<int> stretch) {
  llvm::DenseSet<int> written;
  llvm::DenseSet<Value> seen;
  SmallVector<Value> retained;
  for (int run : stretch) {
    if (graph.problem.isFetch(run)) {
      written.insert(graph.problem.fetch(run).tensor);
      continue;
    }
    ValueRange operands = graph.ops[run]->getOperands();
    bool anyPlanned = llvm::any_of(operands, [&](Value operand) { return graph.tensorOf.contains(operand); });
    for (Value operand : operands) {
      auto tensor = graph.tensorOf.find(operand);
      bool isOld =
          tensor != graph.tensorOf.end() ? !written.contains(tensor->second) : !anyPlanned && !graph.isKnown(operand);
      if (isOld && seen.insert(operand).second)
        retained.push_back(operand);
    }
    for (int tensor : graph.problem.nodes[run].writes)
      if (!graph.alwaysFirst.contains(graph.values[tensor]))
        written.insert(tensor);
  }
  return retained;
}

/// A result of the operator that ran last, or of one before it, that standard operators can take a number from.
Value Applier::triggerAfter(Operation *before) {
  for (Operation *op = before; op; op = op->getPrevNode())
    if (steps.contains(op))
      for (Value result : op->getResults()) {
        auto type = dyn_cast<RankedTensorType>(result.getType());
        if (type && type.hasStaticShape() && type.getNumElements() > 0 && storageBits(type.getElementType()) >= 8 &&
            (type.getElementType().isInteger() || type.getElementType().getIntOrFloatBitWidth() >= 16))
          return result;
      }
  return {};
}

Operation *Applier::addBarrier(ArrayRef<Value> values, Value trigger) {
  OpBuilder b(end);
  OperationState state(values.front().getLoc(), train::BarrierOp::getOperationName());
  SmallVector<std::string> results;
  for (Value value : values) {
    state.addTypes(value.getType());
    results.push_back(names.unique((nameOf(value) + ".retained").str()));
  }
  state.addOperands(values);
  if (trigger)
    state.addOperands(trigger);
  state.addAttribute("onnx.name", b.getStringAttr(names.unique("recompute")));
  state.addAttribute("onnx.outputs", stringArray(b.getContext(), llvm::map_to_vector(results, [](const std::string &s) {
                                                   return StringRef(s);
                                                 })));
  Operation *barrier = b.create(state);
  placed.insert(barrier);
  return barrier;
}

/// A copy of `from`, called as `named` with a suffix.
Value Applier::addTransfer(StringRef operation, Value from, Value named, StringRef suffix) {
  OpBuilder b(end);
  OperationState state(named.getLoc(), operation);
  state.addOperands(from);
  state.addTypes(from.getType());
  std::string name = names.unique((nameOf(named) + suffix).str());
  state.addAttribute("onnx.name", b.getStringAttr(name));
  state.addAttribute("onnx.outputs", stringArray(b.getContext(), {StringRef(name)}));
  Operation *copy = b.create(state);
  placed.insert(copy);
  return copy->getResult(0);
}

/// Copies what the tensor holds to the host.
void Applier::offload(int tensor) {
  Value value = graph.values[static_cast<size_t>(tensor)];
  onHost[tensor] = addTransfer(train::OffloadOp::getOperationName(), value, value, kOffloadSuffix);
}

void Applier::fetch(int tensor) {
  Value value = graph.values[static_cast<size_t>(tensor)];
  renew(tensor, value, addTransfer(train::FetchOp::getOperationName(), onHost.at(tensor), value, kFetchSuffix));
}

/// From here on readers of a tensor get what `fresh`, a later run of `value`, gives.
void Applier::renew(int tensor, Value value, Value fresh) {
  // Views of the run before are of no use any more.
  for (Value shared : sharing[static_cast<size_t>(tensor)]) {
    latest.erase(shared);
    guarded.erase(shared);
  }
  latest[value] = fresh;
}

/// Clones and fetches, one after another, between two first runs.
void Applier::runStretch(ArrayRef<int> stretch, Operation *before) {
  SmallVector<Value> retained = retainedBy(stretch), now;
  for (Value value : retained)
    now.push_back(current(value));
  guarded.clear();
  if (!retained.empty()) {
    Operation *barrier = addBarrier(now, triggerAfter(before));
    for (auto [value, result] : llvm::zip(retained, barrier->getResults()))
      guarded[value] = result;
  }
  for (int run : stretch) {
    if (graph.problem.isFetch(run)) {
      fetch(graph.problem.fetch(run).tensor);
      continue;
    }
    Operation *op = graph.ops[run];
    IRMapping operands;
    for (Value operand : op->getOperands()) {
      Value guard = guarded.lookup(operand);
      operands.map(operand, guard ? guard : current(operand));
    }
    Operation *copy = clone(op, operands);
    for (auto [old, fresh] : llvm::zip(op->getResults(), copy->getResults())) {
      auto tensor = graph.tensorOf.find(old);
      if (tensor != graph.tensorOf.end() && !graph.alwaysFirst.contains(old))
        renew(tensor->second, old, fresh);
    }
  }
}

void Applier::run() {
  steps.insert(graph.ops.begin(), graph.ops.end());
  sharing.resize(graph.values.size());
  for (auto &[value, tensor] : graph.tensorOf)
    sharing[tensor].push_back(value);
  SmallVector<Operation *> before = llvm::map_to_vector(block.without_terminator(), [](Operation &op) { return &op; });
  // What stands at the front, as in every file.
  for (Operation *op : before)
    if (isa<InitializerOp, AbsentOp, ConstantOp>(op))
      place(op);
  for (int run : runs)
    if (graph.problem.isFetch(run))
      onHost[graph.problem.fetch(run).tensor] = nullptr;
  llvm::DenseSet<int> hasRun;
  Operation *last = nullptr;
  for (size_t i = 0; i < runs.size();) {
    auto isFirst = [&](int run) { return !graph.problem.isFetch(run) && !hasRun.contains(run); };
    if (isFirst(runs[i])) {
      hasRun.insert(runs[i]);
      last = graph.ops[runs[i]];
      runFirst(last);
      for (int tensor : graph.problem.nodes[runs[i]].writes)
        if (onHost.contains(tensor))
          offload(tensor);
      ++i;
      continue;
    }
    size_t first = i;
    while (i < runs.size() && !isFirst(runs[i]))
      ++i;
    runStretch(runs.slice(first, i - first), last);
  }
  for (Operation *op : before)
    place(op);
}

} // namespace

void applyRuns(const GraphProblem &graph, ArrayRef<int> runs, NameScope &names) { Applier(graph, runs, names).run(); }

} // namespace recast::checkpoint
