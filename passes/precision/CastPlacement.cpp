#include "passes/precision/CastPlacement.h"
#include "llvm/ADT/APFloat.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

StringRef labelOf(Type type) { return type.isF32() ? "f32" : type.isF16() ? "f16" : "bf16"; }

SmallVector<Type> elementTypes(ValueRange values) {
  return llvm::map_to_vector(values, [](Value value) { return elementTypeOf(value); });
}

bool isCast(Operation *op) { return op && isa<CastOp, CastLikeOp>(op); }

// The number that a value is, through casts.
std::optional<double> scalarOf(Value value) {
  while (isCast(value.getDefiningOp()))
    value = value.getDefiningOp()->getOperand(0);
  return constantScalar(value);
}

// True where rounding to `type` keeps the number, or (unless `exactly`) what it stands for: no overflow to infinity,
// no loss of digits below the normal range.
bool survives(double number, Type type, bool exactly) {
  llvm::APFloat rounded(number);
  bool losesInfo = false;
  rounded.convert(cast<FloatType>(type).getFloatSemantics(), llvm::APFloat::rmNearestTiesToEven, &losesInfo);
  if (!losesInfo || std::isnan(number))
    return true;
  return !exactly && rounded.isFiniteNonZero() && !rounded.isDenormal();
}

} // namespace

CastPlacement::CastPlacement(GraphOp graph, Policy &policy, Type low)
    : graph(graph), block(graph.getBody().front()), policy(policy), low(low), f32(Float32Type::get(graph.getContext())),
      names(graph), b(graph, names, types) {}

LogicalResult CastPlacement::run() {
  for (Operation &op : llvm::make_early_inc_range(block))
    if (isNode(&op) && failed(visit(&op)))
      return failure();
  keepOutputTypes();
  removeDeadOperations();
  removeEmptyCasts();
  warnAboutOpset();
  if (!changed.empty() || casts)
    graph.setInfoAttr(withEntry(graph.getInfo(), "value_info", nullptr)); // says the old types
  return failure(b.failed());
}

LogicalResult CastPlacement::visit(Operation *op) {
  Node node(op);
  b.before(op);
  if (isa<CastLikeOp>(op))
    return visitCastLike(op);
  if (isa<CastOp>(op)) {
    if (Type to = elementTypeOf(node.output()); to != elementTypeOf(node.input(0)))
      known.try_emplace({node.input(0), to}, node.output());
    return success();
  }
  SmallVector<Type> before = llvm::map_to_vector(op->getOperands(), [&](Value v) { return originalType(v); });
  const onnx::OpSchema *schema = node.domain().empty() ? node.schema() : nullptr;
  std::optional<AutocastClass> autocast = classOf(node);
  bool isOpen = op->getNumRegions() || llvm::any_of(op->getOperandTypes(), [](Type type) { return isUnknown(type); });
  if (schema && autocast && !isOpen)
    place(node, *schema, *autocast);
  else
    restore(op);
  pinTypeAttributes(node, before);
  return retype(op, before);
}

std::optional<AutocastClass> CastPlacement::classOf(Node node) {
  if (auto found = policy.find(node))
    return found;
  if (isa<NodeGenericOp>(node.operation()))
    return std::nullopt;
  return cast<NodeInterface>(node.operation()).facts().autocast;
}

Type CastPlacement::originalType(Value value) {
  auto found = changed.find(value);
  return found == changed.end() ? elementTypeOf(value) : found->second;
}

// --- Decisions ---

void CastPlacement::place(Node node, const onnx::OpSchema &schema, AutocastClass autocast) {
  SmallVector<OperandGroup> groups = operandGroups(node, schema, low);
  auto isOurs = [&](unsigned i) {
    Type type = elementTypeOf(node.input(i));
    return type == f32 || type == low;
  };
  // f64 and whatever else the author asked for is left alone.
  llvm::erase_if(groups, [&](const OperandGroup &group) { return !llvm::all_of(group.operands, isOurs); });
  if (autocast == AutocastClass::Low &&
      llvm::any_of(groups, [](const OperandGroup &group) { return group.isComputed && !group.allowsLow; })) {
    ++refused[node.opType()];
    autocast = AutocastClass::Fp32;
  }
  bool runsLow = false;
  for (const OperandGroup &group : groups) {
    if (Type type = typeFor(node, group, autocast))
      for (unsigned i : group.operands)
        setOperand(node->getOpOperand(i), type);
    runsLow |= group.isComputed && elementTypeOf(node.input(group.operands.front())) == low;
  }
  if (!runsLow || autocast == AutocastClass::Never)
    return;
  ++lowNodes;
  if (autocast != AutocastClass::Low)
    return;
  lowProducts.insert(node.operation());
  if (node.is("Attention") && !node.hasAttr("softmax_precision")) // by default in the type of its inputs
    node->setAttr("softmax_precision", b.attr("", static_cast<int64_t>(elementTypeToOnnx(f32))).getValue());
}

// The type that all operands of the group get; null where they stay as they are.
Type CastPlacement::typeFor(Node node, const OperandGroup &group, AutocastClass autocast) {
  Type up = group.allowsF32 ? f32 : Type();
  if (autocast == AutocastClass::Fp32)
    return up;
  if (autocast == AutocastClass::Low && group.isComputed)
    return low;
  auto isLow = [&](unsigned i) { return elementTypeOf(node.input(i)) == low; };
  if (llvm::none_of(group.operands, isLow))
    return {};
  bool staysLow = group.allowsLow &&
                  llvm::all_of(group.operands, [&](unsigned i) { return isLow(i) || yields(node, i, autocast); });
  return staysLow ? low : up;
}

// True where an f32 operand does not make its node run in f32: numbers take the type of the tensor that they meet, as
// in PyTorch. Comparisons must not change their outcome, so there the number must be exact.
bool CastPlacement::yields(Node node, unsigned operand, AutocastClass autocast) {
  if (auto number = scalarOf(node.input(operand)))
    return survives(*number, low, /*exactly=*/autocast == AutocastClass::Never);
  return isBias(node, operand);
}

// The bias of a linear layer that was exported as MatMul and Add. PyTorch casts it with the weight, and the layer's
// result stays low; as an operand of an ordinary Add it would turn every such layer back to f32.
bool CastPlacement::isBias(Node node, unsigned operand) {
  if (!node.is("Add") || !lowProducts.contains(node.input(1 - operand).getDefiningOp()))
    return false;
  TensorAttr tensor = constantOf(node.input(operand));
  if (!tensor || llvm::count_if(tensor.getType().getShape(), [](int64_t size) { return size != 1; }) > 1)
    return false;
  auto numbers = asDoubles(tensor);
  return numbers && llvm::all_of(*numbers, [&](double number) {
           return survives(number, low, /*exactly=*/false) || std::fabs(number) < 1;
         });
}

// Nodes that autocast does not look into get what they had: operators of other domains, calls of functions, control
// flow. A value that a body captures is cast once, outside.
void CastPlacement::restore(Operation *op) {
  auto restoreOperands = [&](Operation *reader) {
    for (OpOperand &operand : reader->getOpOperands())
      if (auto found = changed.find(operand.get()); found != changed.end())
        setOperand(operand, found->second);
  };
  if (op->getNumRegions())
    op->walk(restoreOperands);
  else
    restoreOperands(op);
}

// CastLike follows its second input where that changes no number: the first has the type already, or is a number that
// survives. Elsewhere (positions in a sequence, sums in f32) it becomes a Cast to what it was.
LogicalResult CastPlacement::visitCastLike(Operation *op) {
  Node node(op);
  Value x = node.input(0), like = node.input(1);
  if (!x || !like || !changed.contains(like))
    return success();
  Type to = elementTypeOf(like);
  std::optional<double> number = scalarOf(x);
  if (elementTypeOf(x) == to || (number && survives(*number, to, /*exactly=*/false)))
    return retype(op, {elementTypeOf(x), originalType(like)});
  Value result = node.output();
  Value made = b.node("Cast", {x}, b.attr("to", static_cast<int64_t>(elementTypeToOnnx(originalType(like)))));
  made.setType(result.getType());
  setName(made, nameOf(result));
  made.getDefiningOp()->setAttr("onnx.name", b.rewriter().getStringAttr(node.name()));
  result.replaceAllUsesWith(made);
  types.forget(op);
  op->erase();
  return visit(made.getDefiningOp());
}

// Operators whose result has the type of an input unless an attribute says otherwise.
void CastPlacement::pinTypeAttributes(Node node, ArrayRef<Type> before) {
  if (!isa<RandomNormalLikeOp, RandomUniformLikeOp, BernoulliOp, EyeLikeOp>(node.operation()) ||
      node.hasAttr("dtype") || elementTypeOf(node.input(0)) == before[0])
    return;
  node->setAttr("dtype", b.attr("", static_cast<int64_t>(elementTypeToOnnx(before[0]))).getValue());
}

LogicalResult CastPlacement::retype(Operation *op, ArrayRef<Type> before) {
  if (ArrayRef<Type>(elementTypes(op->getOperands())) == before)
    return success();
  SmallVector<Type> old(op->getResultTypes());
  if (failed(types.infer(op, /*fresh=*/true)))
    return failure();
  for (auto [result, was] : llvm::zip(op->getResults(), old)) {
    Type now = elementTypeOf(result);
    auto tensor = dyn_cast<TensorType>(was);
    if (!now || !tensor)
      continue;
    result.setType(withElementType(was, now)); // shapes are what they were, and may have been known better
    if (now != tensor.getElementType())
      changed[result] = tensor.getElementType();
  }
  return success();
}

// --- Casts ---

void CastPlacement::setOperand(OpOperand &operand, Type type) {
  Value value = operand.get(), made = as(value, type);
  if (made == value)
    return;
  operand.set(made);
  if (Operation *op = value.getDefiningOp(); isCast(op) || isa_and_nonnull<ConstantOp>(op))
    perhapsDead.insert(op);
}

Value CastPlacement::as(Value value, Type type) {
  if (elementTypeOf(value) == type)
    return value;
  if (Operation *op = value.getDefiningOp()) {
    // low -> f32 -> low is the first value.
    if (isCast(op) && type == low && elementTypeOf(value) == f32 && elementTypeOf(op->getOperand(0)) == low)
      return op->getOperand(0);
    // Initializers stay, and are cast: they may be parameters.
    if (isa<ConstantOp>(op))
      if (TensorAttr tensor = constantOf(value); tensor && tensor.getType().getNumElements() == 1)
        return b.constant(convertFloat(tensor, type));
  }
  auto found = known.find({value, type});
  if (found != known.end())
    return found->second;
  Value made = insertCast(value, type);
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
      if (!kept || !inserted.contains(kept))
        kept = insertCast(value, found->second);
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
      if (Operation *from = operand.getDefiningOp(); isCast(from) || isa_and_nonnull<ConstantOp>(from))
        perhapsDead.insert(from);
  }
}

// The author's casts to a type that their input has now.
void CastPlacement::removeEmptyCasts() {
  Operation *end = block.getTerminator();
  for (Operation &op : llvm::make_early_inc_range(block)) {
    if (!isCast(&op) || llvm::none_of(op.getOperands(), [&](Value v) { return changed.contains(v); }))
      continue;
    Value from = op.getOperand(0), result = op.getResult(0);
    if (elementTypeOf(from) != elementTypeOf(result) || llvm::is_contained(result.getUsers(), end))
      continue;
    result.replaceAllUsesWith(from);
    types.forget(&op);
    op.erase();
  }
}

void CastPlacement::warnAboutOpset() {
  int64_t opset = b.opset(), needed = 0;
  unsigned nodes = 0;
  SmallVector<StringRef> operators;
  for (auto [op, count] : refused)
    if (int64_t first = firstOpsetAllowing(op, opset, low)) {
      operators.push_back(op);
      nodes += count;
      needed = std::max(needed, first);
    }
  if (nodes)
    graph.emitWarning() << nodes << (nodes == 1 ? " node stays" : " nodes stay") << " in f32: opset " << opset
                        << " does not define " << llvm::join(operators, ", ") << " for " << labelOf(low)
                        << "; raise the model's opset to " << needed << " (export it again)";
}

} // namespace recast::precision
