// Steps as kernels see them, and which kernel runs each.
#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/IntendedValue.h"
#include "ir/train/Dialect.h"
#include "runtime/compile/Unit.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Numbers, strings and lists of them; tensors, graphs and types are no attributes of steps.
void setAttribute(Attributes &attrs, NamedAttribute attr) {
  std::string name = attr.getName().str();
  Attribute value = attr.getValue();
  if (auto number = dyn_cast<IntegerAttr>(value)) {
    attrs.set(std::move(name), number.getInt());
  } else if (auto number = dyn_cast<FloatAttr>(value)) {
    attrs.set(std::move(name), intendedValue(static_cast<float>(number.getValueAsDouble())));
  } else if (auto text = dyn_cast<StringAttr>(value)) {
    attrs.set(std::move(name), text.str());
  } else if (auto numbers = dyn_cast<DenseI64ArrayAttr>(value)) {
    attrs.set(std::move(name), std::vector<int64_t>(numbers.asArrayRef().begin(), numbers.asArrayRef().end()));
  } else if (auto numbers = dyn_cast<DenseF32ArrayAttr>(value)) {
    attrs.set(std::move(name), std::vector<float>(numbers.asArrayRef().begin(), numbers.asArrayRef().end()));
  } else if (auto list = dyn_cast<ArrayAttr>(value)) {
    std::vector<std::string> texts;
    for (Attribute item : list)
      if (auto text = dyn_cast<StringAttr>(item))
        texts.push_back(text.str());
    attrs.set(std::move(name), std::move(texts));
  }
}

/// True where nothing reads the result and the operator may be asked not to compute it.
bool isLeftOut(const onnx::OpSchema *schema, OpResult result) {
  unsigned i = result.getResultNumber();
  return result.use_empty() && schema && i < schema->outputs().size() &&
         schema->outputs()[i].GetOption() == onnx::OpSchema::Optional;
}

} // namespace

LogicalResult chooseKernel(Unit &unit, Operation *op, bool referenceOnly, std::vector<std::string> &refusals) {
  auto spec = makeSpec(unit, op);
  if (failed(spec))
    return failure();
  KernelChoice choice = chooseCpuKernel(*spec, referenceOnly);
  refusals = choice.refusals;
  if (choice.kernel)
    unit.prepared[op] = {std::move(*spec),           std::move(choice.library),
                         std::move(choice.refusals), choice.kernel->workspaceBytes(),
                         choice.kernel->inPlace(),   choice.kernel->mayFail()};
  return success();
}

namespace {

LogicalResult noKernel(Operation *op, ArrayRef<std::string> refusals) {
  return op->emitError() << "node " << Node(op).describe() << ": no kernel runs it (" << llvm::join(refusals, "; ")
                         << ")";
}

/// Replaces `op` by its definition in other operators. `next` becomes the first of them.
LogicalResult expand(Unit &unit, Operation *op, ArrayRef<std::string> refusals, Operation *&next) {
  Node node(op);
  bool isTrain = isa<train::TrainDialect>(op->getDialect());
  if (!isTrain && !hasFunctionBody(node))
    return noKernel(op, refusals);
  NodeBuilder &b = unit.builder;
  Operation *before = op->getPrevNode();
  b.before(op);
  b.setScope(node.name().empty() ? nameOf(op->getResult(0)) : node.name());
  SmallVector<Value> inputs, outputs;
  for (unsigned i = 0; i < node.numInputs(); ++i)
    inputs.push_back(node.input(i));
  if (failed(isTrain ? train::buildBody(node, b, inputs, outputs) : expandFunctionBody(node, b, outputs)) || b.failed())
    return failure();
  Block *block = op->getBlock();
  replaceWithValues(node, outputs, unit.types);
  next = before ? before->getNextNode() : &block->front();
  return success();
}

} // namespace

FailureOr<StepSpec> makeSpec(Unit &unit, Operation *op) {
  Node node(op);
  const onnx::OpSchema *schema = node.schema();
  StepSpec spec;
  spec.name = node.name().str();
  for (Value result : op->getResults())
    if (spec.name.empty())
      spec.name = nameOf(result).str();
  spec.domain = node.domain().str();
  spec.op = node.opType().str();
  spec.version = schema ? schema->SinceVersion() : 1;
  for (NamedAttribute attr : op->getAttrs())
    if (!attr.getName().strref().starts_with("onnx."))
      setAttribute(spec.attrs, attr);

  std::string problem;
  for (Value operand : op->getOperands()) {
    TensorType type;
    const Constant *constant = unit.values.constant(operand);
    problem = unit.values.typeOf(operand, type);
    if (problem.empty() && !constant && operand.getDefiningOp() &&
        isa<InitializerOp, ConstantOp>(operand.getDefiningOp()))
      problem = "'" + nameOf(operand).str() + "' is no dense tensor of numbers, which this version does not run";
    if (!problem.empty())
      break;
    spec.inputs.push_back(std::move(type));
  }
  for (OpResult result : op->getResults()) {
    TensorType type;
    if (problem.empty() && !isLeftOut(schema, result))
      problem = unit.values.typeOf(result, type);
    spec.outputs.push_back(std::move(type));
  }
  if (!problem.empty())
    return op->emitError() << "node " << node.describe() << ": " << problem;
  for (auto [operand, type] : llvm::zip(op->getOperands(), spec.inputs)) {
    const Constant *constant = unit.values.constant(operand);
    spec.constants.push_back({type.dtype, type.dims, constant ? const_cast<void *>(constant->data.bytes) : nullptr});
  }
  return spec;
}

bool sharesOperand(Unit &unit, Operation *op) {
  auto node = dyn_cast<NodeInterface>(op);
  return node && node.facts().view && !unit.prepared.contains(op) && !isAbsent(op->getOperand(0)) &&
         !unit.values.constant(op->getOperand(0)) && !unit.values.constant(op->getResult(0));
}

Value sourceOf(Unit &unit, Value value) {
  while (Operation *op = value.getDefiningOp()) {
    if (!sharesOperand(unit, op))
      break;
    value = op->getOperand(0);
  }
  return value;
}

/// A control-flow operation, whose bodies have their kernels.
static LogicalResult prepareControlFlow(Unit &unit, Operation *op) {
  auto spec = makeSpec(unit, op);
  if (failed(spec))
    return failure();
  Prepared prepared{std::move(*spec), "executor", {}, 0, {}, isa<LoopOp>(op)};
  unsigned firstInput = isa<LoopOp>(op) ? 2 : 0;
  for (size_t i = 0; i < carriedStates(unit, op->getRegion(0).front()).size(); ++i)
    prepared.inPlace.push_back({i, firstInput + i});
  unit.prepared[op] = std::move(prepared);
  return success();
}

/// Outputs of the block that are the memory of a state become copies, except the state's own new value.
static LogicalResult copyStateOutputs(Unit &unit, Block &block, bool referenceOnly) {
  Operation *end = block.getTerminator();
  llvm::DenseMap<OpOperand *, BlockArgument> stateOf;
  llvm::DenseSet<Value> states;
  for (auto [value, state] : carriedStates(unit, block)) {
    stateOf[value] = state;
    states.insert(state);
  }
  bool isGraph = isa<GraphOp>(block.getParentOp());
  for (OpOperand &operand : end->getOpOperands()) {
    Value source = sourceOf(unit, operand.get());
    // What a body collects is copied at once. A state needs a copy of any argument: that may be state, or a slice.
    bool isCopied = isGraph
                        ? states.contains(source)
                        : stateOf.contains(&operand) && isa<BlockArgument>(source) && source.getParentBlock() == &block;
    if (!isCopied || source == stateOf.lookup(&operand))
      continue;
    unit.builder.before(end);
    unit.builder.setScope(isGraph ? unit.outputNames[operand.getOperandNumber()] : nameOf(operand.get()).str());
    Operation *copied = unit.builder.node("Identity", {operand.get()}, 1);
    std::vector<std::string> refusals;
    if (failed(chooseKernel(unit, copied, referenceOnly, refusals)))
      return failure();
    if (!unit.prepared.contains(copied))
      return noKernel(copied, refusals);
    operand.set(copied->getResult(0));
  }
  return success();
}

static LogicalResult chooseKernels(Unit &unit, Block &block, bool referenceOnly) {
  for (Operation *op = &block.front(), *next; op; op = next) {
    next = op->getNextNode();
    if (isStructure(op) || llvm::all_of(op->getResults(), [&](Value v) { return unit.values.constant(v) != nullptr; }))
      continue;
    if (op->getNumRegions()) {
      for (Region &body : op->getRegions())
        if (failed(chooseKernels(unit, body.front(), referenceOnly)))
          return failure();
      if (failed(prepareControlFlow(unit, op)))
        return failure();
      continue;
    }
    if (sharesOperand(unit, op)) {
      if (failed(makeSpec(unit, op)))
        return failure();
      continue;
    }
    std::vector<std::string> refusals;
    if (failed(chooseKernel(unit, op, referenceOnly, refusals)))
      return failure();
    if (unit.prepared.contains(op))
      continue;
    Operation *end = next;
    Location location = op->getLoc();
    if (failed(expand(unit, op, refusals, next)))
      return failure();
    inheritOrigin(location, next, end);
    if (failed(simplify(unit, block, next, end)))
      return failure();
    // What is removed may include `next`.
    Operation *before = next->getPrevNode();
    removeDead(unit, block, next, end);
    next = before ? before->getNextNode() : &block.front();
  }
  removeDead(unit, block);
  return copyStateOutputs(unit, block, referenceOnly);
}

LogicalResult expandStep(Unit &unit, Operation *op) {
  Block &block = *op->getBlock();
  Operation *next = op->getNextNode(), *end = next, *before = op->getPrevNode();
  Location location = op->getLoc();
  unit.prepared.erase(op);
  if (failed(expand(unit, op, {}, next)))
    return failure();
  inheritOrigin(location, next, end);
  if (failed(simplify(unit, block, next, end)))
    return failure();
  removeDead(unit, block, before ? before->getNextNode() : &block.front(), end);
  for (Operation *at = before ? before->getNextNode() : &block.front(), *after; at != end; at = after) {
    after = at->getNextNode();
    std::vector<std::string> refusals;
    if (isStructure(at) ||
        llvm::all_of(at->getResults(), [&](Value v) { return unit.values.constant(v) != nullptr; }) ||
        sharesOperand(unit, at))
      continue;
    if (failed(chooseKernel(unit, at, /*referenceOnly=*/false, refusals)))
      return failure();
    if (!unit.prepared.contains(at))
      return noKernel(at, refusals);
  }
  return success();
}

LogicalResult chooseKernels(Unit &unit, bool referenceOnly) { return chooseKernels(unit, unit.block, referenceOnly); }

} // namespace recast::compile
