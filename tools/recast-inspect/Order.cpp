#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "tools/recast-inspect/Inspect.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

bool isUpdate(Operation *op) {
  return isa<train::AdamWOp, train::AdamOp, train::NAdamOp, train::RAdamOp, train::AdagradOp, train::RmsPropOp,
             train::LionOp, train::SgdOp>(op);
}

std::string label(Operation *op) { return (Node(op).domain() == "recast" ? "" : "onnx.") + Node(op).opType().str(); }

// The overflow check among what decides about a skip: a window without tokens may be another reason.
Operation *checkOf(Value skip) {
  Operation *op = skip.getDefiningOp();
  if (!op || isa<train::UnscaleOp, train::CheckFiniteOp>(op))
    return op;
  if (Node(op).is("Or") || Node(op).is("Identity"))
    for (Value operand : op->getOperands())
      if (Operation *check = checkOf(operand); check && isa<train::UnscaleOp, train::CheckFiniteOp>(check))
        return check;
  return nullptr;
}

// The sum over the ranks that the value is, or is a quotient of; null if it is neither.
Value reducedBy(Value value) {
  if (Operation *op = value.getDefiningOp(); isa<DivOp>(op))
    value = op->getOperand(0);
  return value.getDefiningOp<train::AllReduceOp>() ? value : Value();
}

// From the gradient operand of an update back to the operator that computes the gradient, in the order of execution.
std::vector<std::string> chainOf(Operation *update, bool &isScaled, bool &isChecked) {
  std::vector<std::string> chain{label(update)};
  Value value = update->getOperand(2);
  Operation *check = checkOf(update->getOperand(0));
  isChecked = check != nullptr;
  bool inCheck = false;
  for (;;) {
    Operation *op = value.getDefiningOp();
    if (isChecked && llvm::is_contained(check->getOperands(), value))
      inCheck = true;
    if (!op)
      break;
    if (isa<train::ClipGradNormOp, train::ClipGradValueOp, train::UnscaleOp>(op)) {
      unsigned index = cast<OpResult>(value).getResultNumber();
      isScaled |= isa<train::UnscaleOp>(op);
      inCheck |= op == check;
      chain.push_back(isa<train::UnscaleOp>(op) ? "check, unscale" : label(op));
      value = op->getOperand(index);
    } else if (isa<train::MarkScaledOp>(op) || Node(op).is("Identity")) {
      value = op->getOperand(0);
    } else if (Value sum = reducedBy(value)) {
      chain.push_back("all_reduce");
      value = sum.getDefiningOp()->getOperand(cast<OpResult>(sum).getResultNumber());
      if (Operation *weighted = value.getDefiningOp(); weighted && isa<MulOp>(weighted))
        value = weighted->getOperand(0);
    } else {
      chain.push_back((isa<ScanOp>(op) ? "backward, accumulate: " : "backward: ") + Node(op).describe());
      break;
    }
  }
  isChecked &= inCheck;
  std::reverse(chain.begin(), chain.end());
  return chain;
}

} // namespace

FailureOr<llvm::json::Object> explainOrder(ModuleOp module) {
  GraphOp graph = mainGraph(module);
  llvm::json::Array parameters, problems, loss;
  for (Operation &op : graph.getBody().front()) {
    if (isa<train::UnscaleOp>(op))
      for (Operation *user : op.getOperands().back().getUsers())
        if (!isa<train::UnscaleOp, train::UpdateLossScaleOp, train::KeepIfOp, ReturnOp>(user) &&
            !Node(user).is("Identity"))
          loss.push_back(
              ("'" + nameOf(op.getOperands().back()) + "' enters the backward at " + Node(user).describe()).str());
    if (!isUpdate(&op))
      continue;
    bool isScaled = false, isChecked = false;
    std::vector<std::string> chain = chainOf(&op, isScaled, isChecked);
    std::string name = nameOf(op.getOperand(1)).str();
    if (!isChecked)
      problems.push_back("the gradient of '" + name +
                         "' does not pass the overflow check that decides about its update");
    if (!loss.empty() && !isScaled)
      problems.push_back("the loss is scaled, and the gradient of '" + name + "' is not unscaled");
    parameters.push_back(llvm::json::Object{{"name", name}, {"chain", llvm::json::Array(chain)}});
  }
  if (parameters.empty())
    return module.emitError()
           << "the model updates no parameter: --order is about step models (recast-opt MODEL -o step.onnx)";
  return llvm::json::Object{
      {"loss", std::move(loss)}, {"parameters", std::move(parameters)}, {"problems", std::move(problems)}};
}

void printOrder(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  for (const llvm::json::Value &line : *facts.getArray("loss"))
    out << "loss scale: " << *line.getAsString() << '\n';
  for (const llvm::json::Value &value : *facts.getArray("parameters")) {
    const llvm::json::Object &parameter = *value.getAsObject();
    out << *parameter.getString("name") << '\n';
    for (const llvm::json::Value &link : *parameter.getArray("chain"))
      out << "  -> " << *link.getAsString() << '\n';
  }
  const llvm::json::Array &problems = *facts.getArray("problems");
  for (const llvm::json::Value &problem : problems)
    out << "problem: " << *problem.getAsString() << '\n';
  out << (problems.empty() ? "Order holds for every parameter: scale, backward, check, unscale, clip, update\n" : "");
}

} // namespace recast::inspect
