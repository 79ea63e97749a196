#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_REDUCEACROSSRANKS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

class Reduction {
public:
  explicit Reduction(ModuleOp module) : s(module) {}
  LogicalResult run();
  unsigned numGradients = 0;

private:
  /// A value of the step, and what takes its name and its place after the reduction.
  struct Item {
    Value old;
    unsigned operand; ///< Of the all_reduce.
  };
  unsigned addOperand(Value value) {
    operands.push_back(value);
    return operands.size() - 1;
  }
  void buildAfter(Value value);
  void addWeighted(Value value);
  Value divisor(Value tokens, Value ranks);
  void replace(Value from, Value to);

  step::StepGraph s;
  Value weight; ///< What this rank's mean counts; null: as much as any other's.
  SmallVector<Value> operands;
  SmallVector<Item> means;
  llvm::DenseMap<Value, Value> replaced;
};

/// As soon as the value is known: then a region that computes it can weigh it as well, and ranks can sum it while the
/// backward goes on.
void Reduction::buildAfter(Value value) {
  Operation *last = value.getDefiningOp(), *counted = weight ? weight.getDefiningOp() : nullptr;
  if (!last || (counted && last->isBeforeInBlock(counted)))
    last = counted;
  if (last)
    s.b.after(last);
  else
    s.b.before(s.graph.getBody().front().getTerminator());
}

/// Sums of many gradients need more digits than the gradients have.
void Reduction::addWeighted(Value value) {
  auto mark = value.getDefiningOp<train::MarkScaledOp>();
  Value wide = mark ? mark->getOperand(0) : value;
  buildAfter(wide);
  if (!elementTypeOf(wide).isF64())
    wide = s.b.cast(wide, s.b.rewriter().getF32Type());
  if (weight)
    wide = s.b.mul(wide, s.b.castLike(weight, wide));
  means.push_back({value, addOperand(wide)});
}

/// What the sums over all ranks are divided by; null: they stay sums.
Value Reduction::divisor(Value tokens, Value ranks) {
  if (s.info.reduction == "sum")
    return {};
  if (!tokens)
    return ranks;
  Value zero = s.b.scalarLike(tokens, 0);
  Value counts = s.b.node("Or", {s.b.node("Greater", {tokens, zero}), s.b.node("Less", {tokens, zero})});
  return s.b.where(counts, tokens, s.b.scalarLike(tokens, 1));
}

void Reduction::replace(Value from, Value to) {
  std::string name = nameOf(from).str();
  setName(from, s.names.unique(name + "/rank"));
  setName(to, name);
  replaced[from] = to;
}

LogicalResult Reduction::run() {
  SmallVector<Value> gradients = s.gradients();
  Value loss = s.find(s.info.loss), tokens = s.info.tokens.empty() ? Value() : s.find(s.info.tokens);
  if (s.info.reduction == "tokens")
    weight = tokens;
  s.b.setScope("ranks");
  for (Value gradient : gradients)
    addWeighted(gradient);
  addWeighted(loss);
  s.b.before(s.graph.getBody().front().getTerminator());
  numGradients = gradients.size();
  std::optional<unsigned> counted;
  if (tokens)
    counted = addOperand(tokens);
  SmallVector<Item> statistics, maxima;
  for (const auto &[input, next] : s.info.pending)
    if (Value value = s.find(next); isa<FloatType>(elementTypeOf(value)))
      statistics.push_back({value, addOperand(value)});
  unsigned one = addOperand(s.b.scalar(s.b.rewriter().getF32Type(), 1));
  auto firstMaximum = static_cast<int64_t>(operands.size());
  for (const step::Fp8Tensor &tensor : s.info.fp8)
    if (Value amax = s.find(tensor.amax))
      maxima.push_back({amax, addOperand(amax)});

  Operation *all =
      s.b.node("train.all_reduce", operands, static_cast<unsigned>(operands.size()), s.b.attr("maxima", firstMaximum));
  Value ranks = all->getResult(one);
  Value by = divisor(weight ? all->getResult(*counted) : Value(), ranks);
  for (const Item &item : means) {
    Value mean = all->getResult(item.operand);
    if (by)
      mean = s.b.div(mean, s.b.castLike(by, mean));
    if (item.old == loss)
      mean = s.b.castLike(mean, loss);
    else if (!s.info.lossScale.empty())
      mean = s.b.node("train.mark_scaled", {mean});
    replace(item.old, mean);
  }
  if (tokens)
    replace(tokens, all->getResult(*counted));
  for (const Item &item : statistics)
    replace(item.old, s.b.div(all->getResult(item.operand), s.b.castLike(ranks, item.old)));
  for (const Item &item : maxima)
    replace(item.old, all->getResult(item.operand));

  SmallVector<Value> outputs;
  for (Value output : s.outputs())
    outputs.push_back(replaced.contains(output) ? replaced[output] : output);
  s.setOutputs(outputs);
  for (Value gradient : gradients)
    if (auto mark = gradient.getDefiningOp<train::MarkScaledOp>())
      mark->erase();
  s.b.setScope("");
  if (s.b.failed())
    return failure();
  s.finish();
  setMetadata(s.graph->getParentOfType<ModuleOp>(), "recast.data_parallel", "true");
  return success();
}

struct ReduceAcrossRanksPass : impl::ReduceAcrossRanksBase<ReduceAcrossRanksPass> {
  using ReduceAcrossRanksBase::ReduceAcrossRanksBase;

  void runOnOperation() override {
    Reduction reduction(getOperation());
    if (failed(reduction.run()))
      return signalPassFailure();
    numGradients += reduction.numGradients;
  }
};

} // namespace
} // namespace recast
