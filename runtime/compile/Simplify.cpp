// Types, and what can be computed before the first step.
#include "ir/onnx/InlineFunctions.h"
#include "ir/train/Dialect.h"
#include "runtime/compile/Fold.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Result types that inference leaves open, as the file declares them, with the sizes that are bound by now.
Type closeType(Unit &unit, Type inferred, Type declared) {
  auto type =
      dyn_cast<RankedTensorType>(isUnknown(inferred) || isa<UnrankedTensorType>(inferred) ? declared : inferred);
  if (!type || type.hasStaticShape())
    return type ? Type(withoutSymbols(type)) : inferred;
  SmallVector<int64_t> dims(type.getShape());
  SmallVector<StringRef> symbols;
  for (unsigned i = 0; i < type.getRank(); ++i) {
    StringRef symbol = dimSymbol(type, i);
    symbols.push_back(symbol);
    if (auto size = unit.sizes.find(symbol); type.isDynamicDim(i) && !symbol.empty() && size != unit.sizes.end())
      dims[i] = size->second;
  }
  return tensorType(dims, symbols, type.getElementType());
}

LogicalResult inferTypes(Unit &unit, Operation *op) {
  SmallVector<Type> declared(op->getResultTypes());
  if (failed(unit.types.infer(op, /*fresh=*/true)))
    return failure();
  for (auto [result, type] : llvm::zip(op->getResults(), declared))
    if (!isAbsent(result))
      result.setType(closeType(unit, result.getType(), type));
  return success();
}

LogicalResult refuseRecurrent(Operation *op) {
  Node node(op);
  if (!node.is("LSTM") && !node.is("GRU") && !node.is("RNN"))
    return success();
  return op->emitError() << "node " << node.describe() << ": " << node.opType()
                         << " does not run yet: recurrent operators come with a later version";
}

bool isInferenceDropout(Unit &unit, Node node) {
  if (!node.is("Dropout") || node.usedOutput(1) || node.sinceVersion() < 7)
    return false;
  const Constant *training = unit.values.constant(node.input(2));
  return !node.input(2) ||
         (training && training->type.elems() == 1 && !*static_cast<const bool *>(training->data.bytes));
}

/// Results that are operands, whatever the operands hold.
bool forwardOperands(Unit &unit, Operation *op) {
  Node node(op);
  if (isa<train::BarrierOp>(op)) {
    // Its work is done: no pass that could merge or move operations runs from here on.
    op->replaceAllUsesWith(op->getOperands().take_front(op->getNumResults()));
    return true;
  }
  bool sameType =
      op->getNumOperands() > 0 && op->getNumResults() > 0 && op->getOperand(0).getType() == op->getResult(0).getType();
  bool forwards = isa<IdentityOp, train::MarkScaledOp>(op) || isInferenceDropout(unit, node) ||
                  (sameType && (isa<CastOp, CastLikeOp>(op) || cast<NodeInterface>(op).facts().view));
  if (!forwards || !node.input(0))
    return false;
  op->getResult(0).replaceAllUsesWith(op->getOperand(0));
  return true;
}

LogicalResult simplifyOp(Unit &unit, Operation *op) {
  if (failed(refuseRecurrent(op)) || failed(prepareBodies(unit, op)) || failed(inferTypes(unit, op)))
    return failure();
  if ((op->getNumRegions() && failed(closeResults(unit, op))) || failed(unit.sequences.resolve(op)))
    return failure();
  if (!forwardOperands(unit, op))
    fold(unit, op);
  return success();
}

} // namespace

void markOrigins(Unit &unit) {
  unit.graph->walk([](Operation *op) {
    for (Value result : op->getResults())
      if (!isAbsent(result)) {
        op->setLoc(NameLoc::get(StringAttr::get(op->getContext(), nameOf(result))));
        return;
      }
  });
}

void inheritOrigin(Location location, Operation *first, Operation *end) {
  for (; first != end; first = first->getNextNode())
    first->walk([&](Operation *inner) { inner->setLoc(location); });
}

StringRef originOf(Operation *op) {
  auto name = dyn_cast<NameLoc>(op->getLoc());
  return name ? name.getName().getValue() : "";
}

bool isStructure(Operation *op) { return isa<InitializerOp, ConstantOp, AbsentOp, ReturnOp>(op); }

static LogicalResult inlineCalls(Unit &unit, Block &block) {
  for (Operation *op = &block.front(), *next; op; op = next) {
    next = op->getNextNode();
    for (Region &body : op->getRegions())
      if (failed(inlineCalls(unit, body.front())))
        return failure();
    if (!isa<NodeGenericOp>(op) || !findFunction(Node(op)))
      continue;
    Operation *before = op->getPrevNode(), *end = next;
    Location location = op->getLoc();
    unit.builder.before(op);
    SmallVector<Value> outputs;
    if (failed(inlineFunction(Node(op), unit.builder, outputs)))
      return failure();
    unit.prepared.erase(op);
    replaceWithValues(Node(op), outputs, unit.types);
    next = before ? before->getNextNode() : &block.front(); // The body may have calls.
    inheritOrigin(location, next, end);
  }
  return success();
}

LogicalResult inlineCalls(Unit &unit) {
  return unit.module.getOps<FunctionOp>().empty() ? success() : inlineCalls(unit, unit.block);
}

void removeDead(Unit &unit, Block &block, Operation *first, Operation *end) {
  Operation *op = end ? end->getPrevNode() : &block.back();
  Operation *stop = first ? first->getPrevNode() : nullptr;
  while (op && op != stop) {
    Operation *previous = op->getPrevNode();
    if (!isStructure(op) && op->use_empty())
      unit.erase(op);
    else
      for (Region &body : op->getRegions())
        removeDead(unit, body.front());
    op = previous;
  }
}

LogicalResult simplify(Unit &unit, Block &block, Operation *first, Operation *end) {
  for (Operation *op = first ? first : &block.front(), *next; op && op != end; op = next) {
    if (Operation *branch = takeKnownBranch(unit, op)) {
      next = branch;
      continue;
    }
    if (!isStructure(op) && failed(simplifyOp(unit, op)))
      return failure();
    next = op->getNextNode(); // It may be new.
  }
  return success();
}

} // namespace recast::compile
