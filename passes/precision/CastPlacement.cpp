#include "passes/precision/CastPlacement.h"
#include "passes/precision/Constants.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

bool isCast(Operation *op) { return isa_and_nonnull<CastOp, CastLikeOp>(op); }

bool isOutput(Value value) {
  return llvm::any_of(value.getUsers(), [](Operation *user) { return isa<ReturnOp>(user); });
}

bool isConstant(Operation *op) { return isa_and_nonnull<ConstantOp>(op); }

} // namespace

CastPlacement::CastPlacement(Operation *holder, const Assignment &assignment, Type low)
    : holder(holder), block(holder->getRegion(0).front()), assignment(assignment), low(low),
      f32(Float32Type::get(holder->getContext())), names(holder), b(holder, names, types) {}

LogicalResult CastPlacement::run() {
  if (failed(visitBlock(block)))
    return failure();
  keepOutputTypes();
  removeDeadOperations();
  if (!changed.empty() || casts)
    forgetDeclaredTypes();
  return failure(b.failed());
}

LogicalResult CastPlacement::visitBlock(Block &block) {
  for (Operation &op : llvm::make_early_inc_range(block))
    if (isNode(&op) && failed(visit(&op)))
      return failure();
  return success();
}

LogicalResult CastPlacement::visit(Operation *op) {
  if (isa<CastLikeOp>(op))
    return visitCastLike(op);
  if (isa<CastOp>(op)) {
    noteCast(op);
    return success();
  }
  SmallVector<Type> before = llvm::map_to_vector(op->getOperands(), [&](Value v) { return originalType(v); });
  for (OpOperand &operand : op->getOpOperands())
    if (Type type = assignment.wanted(op, operand.getOperandNumber()))
      setOperand(operand, type);
  if (op->getNumRegions())
    return visitBodies(op);
  finishNode(Node(op), before);
  return retype(op, before);
}

// A cast of the author's (or of an earlier run) serves later readers in its block. It goes where its input has come to
// have its type, or where there is one that does the same.
void CastPlacement::noteCast(Operation *op) {
  Value input = op->getOperand(0), result = op->getResult(0);
  Type to = elementTypeOf(result);
  if (to != low && to != f32)
    return;
  Value same;
  if (to == elementTypeOf(input)) {
    if (!changed.contains(input))
      return;
    same = input;
  } else {
    if (input.getParentBlock() != op->getBlock())
      return;
    auto [earlier, isFirst] = known.try_emplace({input, to}, result);
    if (isFirst)
      return;
    same = earlier->second;
    if (isOutput(result) && !isOutput(same)) { // it stays, for its name, and serves the readers of the other
      op->moveBefore(same.getDefiningOp());
      same.replaceAllUsesWith(result);
      perhapsDead.insert(same.getDefiningOp());
      earlier->second = result;
      isChanged = true;
      return;
    }
  }
  if (isOutput(result))
    return;
  result.replaceAllUsesWith(same);
  perhapsDead.insert(op);
  isChanged = true;
}

// The result keeps its type, as that of a Cast does: where the second operand has another now, it becomes one.
LogicalResult CastPlacement::visitCastLike(Operation *op) {
  Node node(op);
  Value like = node.input(1);
  if (!like || !changed.contains(like)) {
    noteCast(op);
    return success();
  }
  b.before(op);
  Value result = node.output();
  Value made =
      b.node("Cast", {node.input(0)}, b.attr("to", static_cast<int64_t>(elementTypeToOnnx(originalType(like)))));
  made.setType(result.getType());
  setName(made, nameOf(result));
  made.getDefiningOp()->setAttr("onnx.name", b.rewriter().getStringAttr(node.name()));
  result.replaceAllUsesWith(made);
  types.forget(op);
  op->erase();
  noteCast(made.getDefiningOp());
  return success();
}

LogicalResult CastPlacement::visitBodies(Operation *op) {
  for (Region &body : op->getRegions()) {
    Block &inner = body.front();
    // Arguments of If: none. Loop and Scan: as many as operands, in their order.
    for (auto [argument, operand] : llvm::zip(inner.getArguments(), op->getOperands()))
      if (Type type = assignment.typeOf(argument); type && type == elementTypeOf(operand))
        retype(argument, type);
    if (failed(visitBlock(inner)))
      return failure();
    for (OpOperand &operand : inner.getTerminator()->getOpOperands())
      if (Type type = assignment.wanted(inner.getTerminator(), operand.getOperandNumber()))
        setOperand(operand, type);
  }
  for (Value result : op->getResults())
    if (Type type = assignment.typeOf(result))
      retype(result, type);
  return success();
}

Type CastPlacement::originalType(Value value) const {
  auto found = changed.find(value);
  return found == changed.end() ? elementTypeOf(value) : found->second;
}

void CastPlacement::finishNode(Node node, ArrayRef<Type> before) {
  // Results that have the type of an input unless an attribute says otherwise.
  if (isa<RandomNormalLikeOp, RandomUniformLikeOp, BernoulliOp, EyeLikeOp>(node.operation()) &&
      !node.hasAttr("dtype") && elementTypeOf(node.input(0)) != before[0])
    node->setAttr("dtype", b.attr("", static_cast<int64_t>(elementTypeToOnnx(before[0]))).getValue());
  const Choice *choice = assignment.find(node.operation());
  if (!choice || assignment.typeOf(choice->side) != low || choice->autocast == AutocastClass::Never)
    return;
  ++lowNodes;
  if (node.is("Attention") && !node.hasAttr("softmax_precision")) // by default in the type of its inputs
    node->setAttr("softmax_precision", b.attr("", static_cast<int64_t>(elementTypeToOnnx(f32))).getValue());
}

LogicalResult CastPlacement::retype(Operation *op, ArrayRef<Type> before) {
  if (llvm::equal(before, op->getOperands(), [](Type type, Value operand) { return type == elementTypeOf(operand); }))
    return success();
  SmallVector<Type> old(op->getResultTypes());
  if (failed(types.infer(op, /*fresh=*/true)))
    return failure();
  for (auto [result, was] : llvm::zip(op->getResults(), old)) {
    Type now = elementTypeOf(result);
    if (!now || !isa<TensorType>(was))
      continue;
    result.setType(was); // shapes are what they were, and may have been known better
    retype(result, now);
  }
  return success();
}

void CastPlacement::retype(Value value, Type element) {
  Type was = elementTypeOf(value);
  if (was == element)
    return;
  value.setType(withElementType(value.getType(), element));
  changed[value] = was;
}

// What the file says about types inside: of all values, and of inputs and outputs of bodies.
void CastPlacement::forgetDeclaredTypes() {
  auto forget = [](Region &region, ArrayRef<StringRef> keys) {
    DictionaryAttr info = graphInfo(region);
    if (!info)
      return;
    DictionaryAttr kept = info;
    for (StringRef key : keys)
      kept = withEntry(kept, key, nullptr);
    if (auto rest = kept.getAs<DictionaryAttr>("rest"); rest && rest.get("value_info"))
      kept = withEntry(kept, "rest", withEntry(rest, "value_info", nullptr));
    if (kept != info)
      setGraphInfo(region, kept);
  };
  forget(holder->getRegion(0), {"value_info"});
  holder->walk([&](Operation *op) {
    if (op != holder)
      for (Region &region : op->getRegions())
        forget(region, {"value_info", "input_protos", "output_protos", "output_types"});
  });
}

// --- Casts ---

void CastPlacement::setOperand(OpOperand &operand, Type type) {
  Value value = operand.get(), made = as(operand, type);
  if (made == value)
    return;
  operand.set(made);
  isChanged = true;
  if (Operation *op = value.getDefiningOp(); isCast(op) || isConstant(op))
    perhapsDead.insert(op);
}

Value CastPlacement::as(OpOperand &operand, Type type) {
  Value value = operand.get();
  if (elementTypeOf(value) == type)
    return value;
  // A body must compute what it gives.
  Operation *reader = operand.getOwner();
  bool isYield = isa<ReturnOp>(reader) && reader->getBlock() != &block;
  if (!isYield) {
    // Low, widened, and wanted low again: the first value.
    Value root = value;
    while (isCast(root.getDefiningOp()) && elementTypeOf(root) == f32 &&
           (elementTypeOf(root.getDefiningOp()->getOperand(0)) == f32 ||
            elementTypeOf(root.getDefiningOp()->getOperand(0)) == low))
      root = root.getDefiningOp()->getOperand(0);
    if (type == low && elementTypeOf(root) == low)
      return root;
    if (assignment.saturates(value) && type == low)
      return b.constant(saturated(constantOf(value), low));
    // What may be a parameter stays, and is cast. Other numbers are made anew.
    if (auto number = scalarOf(value); number && cast<TensorType>(value.getType()).hasStaticShape() &&
                                       cast<TensorType>(value.getType()).getNumElements() == 1 &&
                                       !assignment.mayTrain(value)) {
      SmallVector<char> bytes;
      encode(type, {*number}, bytes);
      return b.constant(makeTensor(RankedTensorType::get(cast<TensorType>(value.getType()).getShape(), type), bytes));
    }
    if (Value found = known.lookup({value, type}))
      return found;
  }
  Operation *place = isYield ? reader : value.getParentBlock()->findAncestorOpInBlock(*reader);
  b.before(place);
  Value made = insertCast(value, type);
  if (made.getParentBlock() == value.getParentBlock())
    known[{value, type}] = made;
  return made;
}

Value CastPlacement::insertCast(Value value, Type type) {
  StringRef name = nameOf(value);
  b.setScope(name);
  Value made = b.cast(value, type);
  std::string own = names.unique(name.empty() ? "cast" : (name + "/cast").str());
  setName(made, own);
  made.getDefiningOp()->setAttr("onnx.name", b.rewriter().getStringAttr(own));
  inserted.insert(made);
  ++casts;
  return made;
}

// Outputs keep their names and types: the cast takes over the name.
void CastPlacement::keepOutputTypes() {
  Operation *end = block.getTerminator();
  b.before(end);
  llvm::DenseMap<Value, Value> done;
  for (OpOperand &output : end->getOpOperands()) {
    Value value = output.get();
    auto found = changed.find(value);
    if (found == changed.end())
      continue;
    Value &kept = done[value];
    if (!kept) {
      std::string name = nameOf(value).str();
      kept = known.lookup({value, found->second});
      if (!kept || !inserted.contains(kept)) {
        Value own = kept; // the author's, with a name of its own
        bool isReplaced = own && !isOutput(own);
        b.before(isReplaced ? own.getDefiningOp() : end);
        kept = insertCast(value, found->second);
        if (isReplaced) {
          own.replaceAllUsesWith(kept);
          perhapsDead.insert(own.getDefiningOp());
        }
      }
      setName(value, names.unique(name + "/" + labelOf(elementTypeOf(value)).str()));
      setName(kept, name);
    }
    output.set(kept);
  }
}

void CastPlacement::removeDeadOperations() {
  while (!perhapsDead.empty()) {
    Operation *op = perhapsDead.pop_back_val();
    if (!op->use_empty())
      continue;
    SmallVector<Value> operands(op->getOperands());
    types.forget(op);
    op->erase();
    for (Value operand : operands)
      if (Operation *from = operand.getDefiningOp(); isCast(from) || isConstant(from))
        perhapsDead.insert(from);
  }
}

} // namespace recast::precision
