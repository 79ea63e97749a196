#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/IRMapping.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"

namespace recast {
#define GEN_PASS_DEF_ACCUMULATEMICROBATCHES
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

/// A value that goes from micro-batch to micro-batch.
struct Carried {
  Value initial;    ///< Outside.
  Value next;       ///< Inside.
  BlockArgument in; ///< Argument of the body.
  Value result;     ///< Of the Scan.
};

class Accumulation {
public:
  Accumulation(ModuleOp module, int64_t microBatches)
      : s(module), block(s.graph.getBody().front()), count(microBatches) {}

  LogicalResult run();
  unsigned numInside = 0, numOutside = 0;

private:
  void findBatch();
  void findInside();
  void replaceWindowSums();
  void dropOtherOutputs();
  Block *openBody();
  Operation *createScan(ArrayRef<Carried> states, StringRef name, Block *body);
  BlockArgument addArgument(Block *body, SmallVectorImpl<std::string> &names, StringRef hint, Type type);
  void nameArguments(Operation *scan, ArrayRef<std::string> names);
  Type sumType(Value gradient);
  Value largerOf(Value before, Value value);
  void warnAboutStatistics();

  step::StepGraph s;
  Block &block;
  int64_t count;
  llvm::SetVector<BlockArgument> batch; ///< Inputs that become a stack of micro-batches.
  llvm::DenseSet<Value> varying;        ///< Values that differ from micro-batch to micro-batch.
  llvm::SetVector<Operation *> inside;  ///< In order.
};

bool hasEffects(Operation *op) {
  if (isa<NodeGenericOp>(op))
    return true;
  return isNode(op) && cast<NodeInterface>(op).facts().effects;
}

/// Inputs without a default value are the batch; state that the micro-batches update varies with them.
void Accumulation::findBatch() {
  batch.insert_range(s.batchInputs());
  varying.insert(batch.begin(), batch.end());
  for (const auto *pairs : {&s.info.state, &s.info.pending})
    for (const auto &[input, next] : *pairs)
      varying.insert(s.find(input));
}

void Accumulation::findInside() {
  for (Operation &op : block) {
    // The total of a window is the same in all of its micro-batches.
    if (!isNode(&op) || isa<train::WindowSumOp>(op))
      continue;
    if (!hasEffects(&op) && !step::readsAny(&op, varying)) {
      ++numOutside;
      continue;
    }
    inside.insert(&op);
    varying.insert(op.result_begin(), op.result_end());
  }
  numInside = inside.size();
}

BlockArgument Accumulation::addArgument(Block *body, SmallVectorImpl<std::string> &names, StringRef hint, Type type) {
  names.push_back(s.names.unique(hint));
  return body->addArgument(type, s.graph.getLoc());
}

/// A body to fill. Until createScan() it belongs to a node without results: what is built in it looks up its opset.
Block *Accumulation::openBody() {
  OperationState state(s.graph.getLoc(), ScanOp::getOperationName());
  state.addRegion()->emplaceBlock();
  return &s.b.rewriter().create(state)->getRegion(0).front();
}

/// The node, where the body was opened; its body's terminator gives the next states.
Operation *Accumulation::createScan(ArrayRef<Carried> states, StringRef name, Block *body) {
  MLIRContext *context = s.graph.getContext();
  OpBuilder &b = s.b.rewriter();
  OperationState state(s.graph.getLoc(), ScanOp::getOperationName());
  SmallVector<std::string> results;
  for (const Carried &carried : states) {
    state.addOperands(carried.initial);
    state.addTypes(carried.next.getType());
    results.push_back(s.names.unique((nameOf(carried.next) + "/window").str()));
  }
  state.addOperands(llvm::map_to_vector(batch, [](BlockArgument a) { return Value(a); }));
  state.addAttribute("num_scan_inputs", b.getI64IntegerAttr(static_cast<int64_t>(batch.size())));
  state.addAttribute("onnx.name", b.getStringAttr(s.names.unique(name)));
  state.addAttribute("onnx.outputs", stringArray(context, llvm::map_to_vector(results, [](const std::string &text) {
                                                   return StringRef(text);
                                                 })));
  auto info = b.getDictionaryAttr(
      {b.getNamedAttr("attribute", b.getStringAttr("body")),
       b.getNamedAttr("rest", b.getDictionaryAttr(b.getNamedAttr("name", b.getStringAttr("micro_batch"))))});
  state.addAttribute("onnx.graphs", b.getArrayAttr({info}));
  OpBuilder inner = OpBuilder::atBlockEnd(body);
  ReturnOp::create(inner, s.graph.getLoc(),
                   llvm::map_to_vector(states, [](const Carried &carried) { return carried.next; }));
  Operation *holder = body->getParentOp();
  state.addRegion()->takeBody(holder->getRegion(0));
  b.setInsertionPoint(holder);
  Operation *scan = b.create(state);
  holder->erase();
  return scan;
}

void Accumulation::nameArguments(Operation *scan, ArrayRef<std::string> names) {
  SmallVector<StringRef> list(names.begin(), names.end());
  Region &body = scan->getRegion(0);
  setGraphInfo(body, withEntry(graphInfo(body), "inputs", stringArray(s.graph.getContext(), list)));
}

/// Each total is the result of a Scan over what it is computed from.
void Accumulation::replaceWindowSums() {
  for (auto op : llvm::make_early_inc_range(block.getOps<train::WindowSumOp>())) {
    Value one = op->getOperand(0), total;
    s.b.before(op);
    if (!varying.contains(one)) {
      total = s.b.mulScalar(one, static_cast<double>(count));
    } else {
      llvm::DenseSet<Operation *> needed;
      SmallVector<Operation *> work{one.getDefiningOp()};
      while (!work.empty()) {
        Operation *next = work.pop_back_val();
        if (!next || !inside.contains(next) || !needed.insert(next).second)
          continue;
        for (Value operand : next->getOperands())
          work.push_back(operand.getDefiningOp());
      }
      Block *body = openBody();
      SmallVector<std::string> names;
      IRMapping mapping;
      Carried sum{s.b.scalarLike(one, 0), {}, {}, {}};
      sum.in = addArgument(body, names, nameOf(one).str() + "/before", one.getType());
      for (BlockArgument input : batch)
        mapping.map(input, addArgument(body, names, s.name(input) + "/counted", input.getType()));
      s.b.rewriter().setInsertionPointToEnd(body);
      for (Operation *inner : inside)
        if (needed.contains(inner))
          s.b.adopt(s.b.rewriter().clone(*inner, mapping));
      sum.next = s.b.add(sum.in, mapping.lookup(one));
      Operation *scan = createScan(sum, "count", body);
      nameArguments(scan, names);
      total = scan->getResult(0);
    }
    std::string name = nameOf(op->getResult(0)).str();
    op->getResult(0).replaceAllUsesWith(total);
    op->erase();
    setName(total, name);
  }
}

/// What is neither the loss nor a gradient nor state cannot leave a micro-batch.
void Accumulation::dropOtherOutputs() {
  llvm::StringSet<llvm::MallocAllocator> wanted;
  wanted.insert(s.info.loss);
  for (const std::string &gradient : s.info.gradients)
    wanted.insert(gradient);
  for (const auto &[input, next] : s.info.state)
    wanted.insert(next);
  if (!s.info.tokens.empty())
    wanted.insert(s.info.tokens);
  SmallVector<Value> kept;
  for (Value output : s.outputs())
    if (wanted.contains(s.name(output)))
      kept.push_back(output);
  s.setOutputs(kept);
}

/// Sums of many gradients need more digits than the gradients have.
Type Accumulation::sumType(Value gradient) {
  auto type = cast<RankedTensorType>(gradient.getType());
  return type.getElementType().isF64() ? type : withElementType(type, Float32Type::get(s.graph.getContext()));
}

/// A NaN among the two is the result: runtimes differ in what Max makes of it.
Value Accumulation::largerOf(Value before, Value value) {
  Value keepsNaN = s.b.where(s.b.node("IsNaN", {before}), before, value);
  return s.b.where(s.b.node("LessOrEqual", {value, before}), before, keepsNaN);
}

void Accumulation::warnAboutStatistics() {
  SmallVector<std::string> nodes;
  std::string samples;
  for (Operation *op : inside)
    if (Node node(op); isa<BatchNormalizationOp>(op) && node.getInt("training_mode", 0) != 0) {
      nodes.push_back(node.describe());
      if (auto type = dyn_cast<RankedTensorType>(node.input(0).getType()); type && !type.isDynamicDim(0))
        samples = " of " + std::to_string(type.getDimSize(0)) + " samples";
    }
  if (nodes.empty())
    return;
  size_t more = nodes.size() > 3 ? nodes.size() - 3 : 0;
  nodes.resize(nodes.size() - more);
  s.graph.emitWarning() << "with --accumulate=" << count << ", BatchNormalization normalises by the statistics of each "
                        << "micro-batch" << samples << ", and the result differs from one batch of all samples ("
                        << llvm::join(nodes, ", ") << (more ? " and " + std::to_string(more) + " more" : "")
                        << "); running statistics are updated " << count << " times a step";
}

LogicalResult Accumulation::run() {
  if (s.b.opset() < 9)
    return s.graph.emitError() << "--accumulate needs Scan as opset 9 defines it, and the model has opset "
                               << s.b.opset() << ": export it with a newer one";
  dropOtherOutputs();
  findBatch();
  if (batch.empty())
    return s.graph.emitError() << "--accumulate=" << count << ": the model has no batch input to split";
  findInside();
  replaceWindowSums();
  warnAboutStatistics();

  SmallVector<std::string> names;
  SmallVector<Carried> states;
  Operation *end = block.getTerminator();
  s.b.before(end);
  Block *body = openBody();
  bool isScaled = !s.info.lossScale.empty();
  Value loss = s.find(s.info.loss);
  SmallVector<Value> gradients;
  for (Value gradient : s.gradients()) {
    auto mark = gradient.getDefiningOp<train::MarkScaledOp>();
    gradients.push_back(mark ? mark->getOperand(0) : gradient);
  }
  s.b.setScope("micro_batches");
  // Sums start from zero.
  auto addSum = [&](Value value, Type type, StringRef name) {
    s.b.before(body->getParentOp());
    auto ranked = cast<RankedTensorType>(type);
    if (!ranked.hasStaticShape())
      return failure();
    Carried sum;
    sum.initial = ranked.getRank() == 0 ? s.b.scalar(ranked.getElementType(), 0)
                                        : s.b.filled(s.b.ints(ranked.getShape()), ranked.getElementType(), 0);
    sum.in = addArgument(body, names, (name + "/before").str(), type);
    sum.next = value; // The addend, until the nodes are in the body.
    states.push_back(sum);
    return success();
  };
  for (auto [gradient, parameter] : llvm::zip(gradients, s.info.parameters))
    if (failed(addSum(gradient, sumType(gradient), "grad.sum." + parameter)))
      return s.graph.emitError() << "--accumulate: the shape of the gradient of '" << parameter << "' is not known";
  if (failed(addSum(loss, sumType(loss), s.info.loss)))
    return s.graph.emitError() << "--accumulate: the shape of the loss '" << s.info.loss << "' is not known";
  size_t numSums = states.size();
  // Of the amaxes that fp8 scales are derived from, the largest counts.
  SmallVector<Value> amaxes;
  for (const step::Fp8Tensor &tensor : s.info.fp8)
    if (Value amax = s.find(tensor.amax); inside.contains(amax.getDefiningOp())) {
      if (failed(addSum(amax, amax.getType(), tensor.amax)))
        return failure();
      amaxes.push_back(amax);
    }
  size_t numFolded = states.size();
  for (const auto *pairs : {&s.info.state, &s.info.pending})
    for (const auto &[input, next] : *pairs) {
      Value initial = s.find(input);
      states.push_back({initial, s.find(next), addArgument(body, names, input + "/before", initial.getType()), {}});
    }
  SmallVector<BlockArgument> slices;
  for (BlockArgument input : batch)
    slices.push_back(addArgument(body, names, s.name(input) + "/micro_batch", input.getType()));

  for (Operation *op : inside)
    if (!isa<train::MarkScaledOp>(op))
      op->moveBefore(body, body->end());
  auto isInside = [&](OpOperand &use) {
    Operation *user = use.getOwner();
    while (user && user->getBlock() != body)
      user = user->getParentOp();
    return user != nullptr;
  };
  for (auto [input, slice] : llvm::zip(batch, slices))
    Value(input).replaceUsesWithIf(slice, isInside);
  for (auto [i, carried] : llvm::enumerate(states)) {
    if (i >= numFolded) {
      carried.initial.replaceUsesWithIf(carried.in, isInside);
      continue;
    }
    // As soon as it is known: then its memory is free for the rest of the backward.
    if (Operation *op = carried.next.getDefiningOp(); op && op->getBlock() == body)
      s.b.after(op);
    else
      s.b.rewriter().setInsertionPointToEnd(body);
    if (i >= numSums)
      carried.next = largerOf(carried.in, carried.next);
    else
      carried.next = s.b.add(carried.in, s.b.castLike(carried.next, carried.in));
  }
  Operation *scan = createScan(states, "micro_batches", body);
  nameArguments(scan, names);
  for (auto [carried, result] : llvm::zip(states, scan->getResults()))
    carried.result = result;

  // Results take over the names and places of what they sum.
  SmallVector<Value> outputs;
  llvm::DenseMap<Value, Value> replaced;
  auto rename = [&](Value from, Value to, StringRef label) {
    std::string name = nameOf(from).str();
    setName(from, s.names.unique((name + "/" + label).str()));
    setName(to, name);
  };
  SmallVector<Value> old = s.gradients();
  s.b.after(scan);
  for (size_t i = 0; i < gradients.size(); ++i) {
    Value sum = states[i].result;
    auto mark = old[i].getDefiningOp<train::MarkScaledOp>();
    if (isScaled)
      sum = s.b.node("train.mark_scaled", {sum});
    rename(old[i], sum, "micro_batch");
    replaced[old[i]] = sum;
    if (mark) {
      setName(gradients[i], nameOf(old[i]));
      setName(states[i].result, s.names.unique(nameOf(sum).str() + "/sum"));
    }
  }
  rename(loss, states[gradients.size()].result, "micro_batch");
  replaced[loss] = states[gradients.size()].result;
  for (auto [amax, carried] : llvm::zip(amaxes, ArrayRef(states).slice(numSums, amaxes.size())))
    rename(amax, carried.result, "micro_batch");
  for (const Carried &carried : ArrayRef(states).drop_front(numFolded)) {
    rename(carried.next, carried.result, "micro_batch");
    replaced[carried.next] = carried.result;
  }
  for (Value output : s.outputs())
    outputs.push_back(replaced.contains(output) ? replaced[output] : output);
  s.setOutputs(outputs);
  for (Operation *op : inside)
    if (isa<train::MarkScaledOp>(op))
      op->erase();

  for (Value input : batch) {
    auto type = cast<RankedTensorType>(input.getType());
    SmallVector<int64_t> dims{count};
    SmallVector<StringRef> symbols{""};
    for (int64_t i = 0; i < type.getRank(); ++i) {
      dims.push_back(type.getDimSize(i));
      symbols.push_back(dimSymbol(type, i));
    }
    input.setType(tensorType(dims, symbols, type.getElementType()));
  }
  forgetDeclaredTypes(s.graph);
  if (s.b.failed())
    return failure();
  s.finish();
  setMetadata(s.graph->getParentOfType<ModuleOp>(), "recast.accumulate", std::to_string(count));
  return success();
}

struct AccumulateMicroBatchesPass : impl::AccumulateMicroBatchesBase<AccumulateMicroBatchesPass> {
  using AccumulateMicroBatchesBase::AccumulateMicroBatchesBase;

  void runOnOperation() override {
    Accumulation accumulation(getOperation(), microBatches);
    if (failed(accumulation.run()))
      return signalPassFailure();
    numInside += accumulation.numInside;
    numOutside += accumulation.numOutside;
  }
};

} // namespace
} // namespace recast
