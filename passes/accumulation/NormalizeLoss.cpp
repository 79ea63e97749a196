#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/step/StepInfo.h"

namespace recast {
#define GEN_PASS_DEF_NORMALIZELOSS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

class Normalization {
public:
  Normalization(ModuleOp module, int64_t microBatches, StringRef by, bool isParallel)
      : s(module), count(microBatches), by(by), isParallel(isParallel) {}
  LogicalResult run(StringRef lossName, const gradient::TrainableOptions &trainable);
  unsigned numTerms = 0;

private:
  LogicalResult analyse(Value loss, const gradient::TrainableOptions &trainable);
  void visit(OpOperand &term, double factor);
  void visitLabelLoss(OpOperand &term, Node node);
  bool visitQuotient(OpOperand &term, Node node);
  bool visitSumOfQuotients(OpOperand &term);
  void average(OpOperand &term);
  Operation *own(OpOperand &term);
  Value windowTotal(Value one);
  Value countLabels(Node loss);
  std::optional<double> constantFactor(Node node, unsigned &tensor) const;
  bool isDivisor(Value value) const;
  Operation *findOwnCount(Value term) const;
  LogicalResult findReduction();

  step::StepGraph s;
  int64_t count;
  StringRef by;
  llvm::DenseSet<Value> ofBatch;      ///< Values that depend on the batch.
  llvm::DenseSet<Value> ofParameters; ///< Values through which a gradient flows.
  Value tokens;                       ///< The window's count: the first that was found.
  std::string meanOfMeans;            ///< A term whose own count is ignored.
  bool isParallel;
  SmallVector<std::string> counts;      ///< What each train.window_sum counts.
  std::string ofMean, ofSum, ofNoBatch; ///< A term of each kind, where there is one.
};

LogicalResult Normalization::analyse(Value loss, const gradient::TrainableOptions &options) {
  auto choices = gradient::chooseTrainable(s.graph, loss, options);
  if (failed(choices))
    return failure();
  SmallVector<Value> parameters;
  for (const gradient::Choice &choice : *choices)
    if (choice.trainable)
      parameters.push_back(choice.value);
  ofParameters = gradient::dependentValues(s.graph, parameters);
  ofParameters.insert(parameters.begin(), parameters.end());
  ofBatch.insert_range(s.batchInputs());
  for (Operation &op : s.graph.getBody().front())
    if (step::readsAny(&op, ofBatch))
      ofBatch.insert(op.result_begin(), op.result_end());
  return success();
}

/// Something that data decides and parameters do not: a count of tokens, the sum of a mask.
bool Normalization::isDivisor(Value value) const {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return ofBatch.contains(value) && !ofParameters.contains(value) && type && type.hasStaticShape() &&
         type.getNumElements() == 1;
}

/// The node of one of the loss's terms that divides by a count of its own, if there is one.
Operation *Normalization::findOwnCount(Value term) const {
  Operation *op = term.getDefiningOp();
  if (!op || !ofBatch.contains(term))
    return nullptr;
  Node node(op);
  if (node.is("SoftmaxCrossEntropyLoss") || node.is("NegativeLogLikelihoodLoss"))
    return node.getString("reduction", "mean") == "mean" && (node.hasAttr("ignore_index") || node.input(2)) ? op
                                                                                                            : nullptr;
  if (node.is("Div") && isDivisor(node.input(1)))
    return op;
  constexpr llvm::StringLiteral linear[] = {"Identity",  "Cast", "Squeeze", "Unsqueeze", "Reshape", "Neg",
                                            "ReduceSum", "Add",  "Sub",     "Sum",       "Mul",     "Div"};
  if (llvm::none_of(linear, [&](StringRef type) { return node.is(type); }))
    return nullptr;
  for (Value operand : op->getOperands())
    if (Operation *found = findOwnCount(operand))
      return found;
  return nullptr;
}

/// The node that gives the term, for this term alone: a copy where others read it too.
Operation *Normalization::own(OpOperand &term) {
  auto result = cast<OpResult>(term.get());
  Operation *op = result.getOwner();
  if (llvm::all_of(op->getResults(), [&](Value v) { return v == result ? v.hasOneUse() : v.use_empty(); }))
    return op;
  s.b.after(op);
  Operation *copy = s.b.rewriter().clone(*op);
  s.b.setScope(nameOf(result));
  s.b.adopt(copy);
  term.set(copy->getResult(result.getResultNumber()));
  return copy;
}

/// The sum over the window. A lower bound, or an epsilon, is applied to the sum and not to each addend.
Value Normalization::windowTotal(Value one) {
  Operation *op = one.getDefiningOp();
  Node node(op);
  s.b.setScope(nameOf(one));
  auto isConstant = [](Value value) { return constantScalar(value).has_value(); };
  if (op && (node.is("Max") || node.is("Add")) && node.numInputs() == 2)
    for (unsigned i : {0u, 1u})
      if (isConstant(node.input(1 - i)))
        return s.b.node(node.opType(), {windowTotal(node.input(i)), node.input(1 - i)});
  if (op && node.is("Clip") && node.numInputs() >= 2)
    return s.b.node("Clip", SmallVector<Value>{windowTotal(node.input(0)), node.input(1)});
  Value total = s.b.node("train.window_sum", {one});
  counts.push_back(nameOf(one).str());
  if (!tokens)
    tokens = total;
  // Without a single token the quotient is 0, and the step is skipped.
  Value zero = s.b.scalarLike(total, 0);
  Value isPositive = s.b.node("Greater", {total, zero}), isNegative = s.b.node("Less", {total, zero});
  return s.b.where(s.b.node("Or", {isPositive, isNegative}), total, s.b.scalarLike(total, 1));
}

/// The number, or the weight, of the labels that the loss does not ignore.
Value Normalization::countLabels(Node loss) {
  Value labels = loss.input(1), weights = loss.input(2), counted;
  Type element =
      elementTypeOf(loss.input(0)).isF64() ? Type(s.b.rewriter().getF64Type()) : Type(s.b.rewriter().getF32Type());
  s.b.setScope(nameOf(loss.output()));
  bool ignores = loss.hasAttr("ignore_index");
  Value ignored =
      ignores ? s.b.scalar(elementTypeOf(labels), static_cast<double>(loss.getInt("ignore_index", 0))) : Value();
  if (ignores)
    counted = s.b.cast(s.b.node("Not", {s.b.node("Equal", {labels, ignored})}), element);
  if (weights) {
    Value known = labels;
    if (ignores) // An ignored label need not be a class.
      known = s.b.where(s.b.node("Equal", {labels, ignored}), s.b.scalar(elementTypeOf(labels), 0), labels);
    Value weight = s.b.cast(s.b.node("Gather", {weights, known}), element);
    counted = counted ? s.b.mul(counted, weight) : weight;
  }
  return s.b.sum(counted, {}, /*keepDims=*/false);
}

void Normalization::average(OpOperand &term) {
  (ofBatch.contains(term.get()) ? ofMean : ofNoBatch) = nameOf(term.get()).str();
  if (count == 1)
    return;
  s.b.before(term.getOwner());
  s.b.setScope(nameOf(term.get()));
  term.set(s.b.mulScalar(term.get(), 1.0 / static_cast<double>(count)));
  ++numTerms;
}

void Normalization::visitLabelLoss(OpOperand &term, Node node) {
  StringRef reduction = node.getString("reduction", "mean");
  if (reduction == "sum") {
    ofSum = nameOf(term.get()).str();
    return;
  }
  bool counts = node.hasAttr("ignore_index") || node.input(2);
  if (!counts || by == "samples") {
    if (counts)
      meanOfMeans = node.describe();
    return average(term);
  }
  Operation *op = own(term);
  op->setAttr("reduction", s.b.attr("", "sum").getValue());
  s.b.after(op);
  Value one = countLabels(Node(op));
  term.set(s.b.div(term.get(), s.b.castLike(windowTotal(one), term.get())));
  ++numTerms;
}

/// a / d with a d that only data decides.
bool Normalization::visitQuotient(OpOperand &term, Node node) {
  if (!isDivisor(node.input(1)))
    return false;
  if (by == "samples") {
    meanOfMeans = node.describe();
    average(term);
    return true;
  }
  Operation *op = own(term);
  s.b.before(op);
  op->setOperand(1, windowTotal(op->getOperand(1)));
  ++numTerms;
  return true;
}

/// ReduceSum(x / d): the same with the division inside.
bool Normalization::visitSumOfQuotients(OpOperand &term) {
  Operation *sum = term.get().getDefiningOp(), *inner = sum->getOperand(0).getDefiningOp();
  if (!inner || !isa<DivOp>(inner) || !isDivisor(inner->getOperand(1)))
    return false;
  OpOperand &operand = own(term)->getOpOperand(0);
  return visitQuotient(operand, Node(operand.get().getDefiningOp()));
}

/// The number that a Mul or Div applies to operand `tensor`.
std::optional<double> Normalization::constantFactor(Node node, unsigned &tensor) const {
  for (unsigned i : {1u, 0u})
    if (auto number = constantScalar(node.input(i)); number && (i == 1 || node.is("Mul"))) {
      tensor = 1 - i;
      return node.is("Div") ? 1 / *number : *number;
    }
  return std::nullopt;
}

/// Weights one term of the loss so that the sum over the micro-batches is what one batch of all samples gives.
/// `factor`: the constants between the loss and this term.
void Normalization::visit(OpOperand &term, double factor) {
  Operation *op = term.get().getDefiningOp();
  if (!op || !ofBatch.contains(term.get()))
    return average(term); // Counted once a step, however many micro-batches there are.
  Node node(op);
  if (node.is("SoftmaxCrossEntropyLoss") || node.is("NegativeLogLikelihoodLoss"))
    return visitLabelLoss(term, node);
  if (node.is("Div") && visitQuotient(term, node))
    return;
  if (node.is("Mul") || node.is("Div")) {
    unsigned tensor;
    if (auto number = constantFactor(node, tensor))
      return visit(own(term)->getOpOperand(tensor), factor * *number);
  }
  if (node.is("Identity") || node.is("Cast") || node.is("Squeeze") || node.is("Unsqueeze") || node.is("Reshape"))
    return visit(own(term)->getOpOperand(0), factor);
  if (node.is("Neg"))
    return visit(own(term)->getOpOperand(0), -factor);
  if (node.is("Add") || node.is("Sub") || node.is("Sum")) {
    for (OpOperand &operand : own(term)->getOpOperands())
      visit(operand, factor);
    return;
  }
  if (node.is("ReduceSum")) {
    if (visitSumOfQuotients(term))
      return;
    // Times the reciprocal of its size, or of the batch's, a sum is a mean.
    auto type = dyn_cast<RankedTensorType>(node.input(0).getType());
    auto isReciprocal = [&](int64_t size) {
      return std::fabs(std::fabs(factor) * static_cast<double>(size) - 1) < 1e-6;
    };
    bool isMean = type && type.hasStaticShape() && type.getRank() > 0 &&
                  (isReciprocal(type.getNumElements()) || isReciprocal(type.getDimSize(0)));
    if (isMean)
      average(term);
    else
      ofSum = nameOf(term.get()).str();
    return;
  }
  average(term);
}

/// How the losses of ranks make one. A term that no batch decides is a mean over anything.
LogicalResult Normalization::findReduction() {
  SmallVector<std::string> kinds;
  for (const std::string &name : counts)
    kinds.push_back("one that is divided by the sum of '" + name + "'");
  if (!ofMean.empty())
    kinds.push_back("the mean over samples '" + ofMean + "'");
  if (!ofSum.empty())
    kinds.push_back("the sum '" + ofSum + "'");
  if (!ofSum.empty() && !ofNoBatch.empty())
    kinds.push_back("'" + ofNoBatch + "', which does not depend on the batch");
  s.info.reduction = !counts.empty() ? "tokens" : !ofSum.empty() ? "sum" : "mean";
  if (!isParallel || kinds.size() < 2)
    return success();
  return s.graph.emitError()
         << "--data-parallel: the ranks' losses have no one divisor: the loss has terms of different "
         << "kinds, " << kinds[0] << " and " << kinds[1]
         << (counts.empty() ? "" : "; --normalize=samples averages all of them");
}

LogicalResult Normalization::run(StringRef lossName, const gradient::TrainableOptions &trainable) {
  auto found = gradient::findLoss(s.graph, lossName);
  if (failed(found) || failed(analyse(*found, trainable)))
    return failure();
  Value loss = *found;
  std::string name = nameOf(loss).str();
  // A term of its own: what else reads the loss keeps it.
  Operation *end = s.graph.getBody().front().getTerminator();
  s.b.before(end);
  s.b.setScope(name);
  Value root = s.b.node("Identity", {loss});
  OpOperand &term = root.getDefiningOp()->getOpOperand(0);
  for (OpOperand &output : end->getOpOperands())
    if (output.get() == loss)
      output.set(root);
  if (by == "micro-batches") {
    if (Operation *divides = findOwnCount(loss))
      meanOfMeans = Node(divides).describe();
    average(term);
  } else {
    visit(term, 1);
  }
  setName(loss, s.names.unique(name + "/alone"));
  setName(root, name);
  if (by == "tokens" && !tokens)
    return s.graph.emitError() << "--normalize=tokens: the loss '" << name << "' counts nothing: it has neither an "
                               << "ignore_index nor a divisor that depends on the data; use --normalize=samples";
  if (!meanOfMeans.empty())
    s.graph.emitWarning() << "--normalize=" << by << ": node " << meanOfMeans << " divides by its own count in each "
                          << "micro-batch; the mean of these means is not the mean over the step wherever the counts "
                          << "differ; --normalize=tokens is exact";
  if (failed(findReduction()))
    return failure();
  s.info.loss = s.info.objective = name;
  if (tokens) {
    setName(tokens, s.claim("tokens"));
    s.info.tokens = nameOf(tokens).str();
    s.info.metrics.push_back(s.info.tokens);
    s.addOutput(tokens);
  }
  setMetadata(s.graph->getParentOfType<ModuleOp>(), "recast.normalize",
              tokens                  ? "tokens"
              : by == "micro-batches" ? "micro-batches"
                                      : "samples");
  if (s.b.failed())
    return failure();
  s.finish();
  return success();
}

struct NormalizeLossPass : impl::NormalizeLossBase<NormalizeLossPass> {
  using NormalizeLossBase::NormalizeLossBase;

  void runOnOperation() override {
    Normalization normalization(getOperation(), microBatches, by, dataParallel);
    if (failed(normalization.run(loss, {{train.begin(), train.end()}, {freeze.begin(), freeze.end()}})))
      return signalPassFailure();
    numTerms += normalization.numTerms;
  }
};

} // namespace
} // namespace recast
