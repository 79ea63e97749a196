// If, Loop and Scan in the form that the executor runs.
#include "runtime/compile/Unit.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

using Ints = SmallVector<int64_t>;

/// The axis `axes` gives to input or output `i`, of a tensor that has `rank` dimensions as a whole.
int64_t axisOf(const std::optional<Ints> &axes, size_t i, int64_t rank) {
  int64_t axis = axes && i < axes->size() ? (*axes)[i] : 0;
  return axis < 0 ? axis + rank : axis;
}

/// The permutation that moves `axis` to the front, or back from there.
Ints frontPermutation(int64_t rank, int64_t axis, bool isBack) {
  Ints perm{axis};
  for (int64_t i = 0; i < rank; ++i)
    if (i != axis)
      perm.push_back(i);
  if (!isBack)
    return perm;
  Ints inverse(perm.size());
  for (auto [i, from] : llvm::enumerate(perm))
    inverse[static_cast<size_t>(from)] = static_cast<int64_t>(i);
  return inverse;
}

/// Scan along other axes becomes Scan along axis 0 of transposed tensors.
void scanInputsAlongFront(Unit &unit, Operation *op, unsigned numStates) {
  auto axes = Node(op).getInts("scan_input_axes");
  op->removeAttr("scan_input_axes");
  for (unsigned i = numStates; i < op->getNumOperands(); ++i) {
    int64_t rank = cast<RankedTensorType>(op->getOperand(i).getType()).getRank();
    int64_t axis = axisOf(axes, i - numStates, rank);
    unit.builder.before(op);
    unit.builder.setScope(nameOf(op->getResult(0)));
    if (axis == 0)
      continue;
    Value front = unit.builder.transpose(op->getOperand(i), frontPermutation(rank, axis, /*isBack=*/false));
    front.getDefiningOp()->setLoc(op->getLoc());
    op->setOperand(i, front);
  }
}

/// The same of its outputs. Precondition: the body's types are known.
void scanOutputsAlongFront(Unit &unit, Operation *op, unsigned numStates) {
  auto axes = Node(op).getInts("scan_output_axes");
  op->removeAttr("scan_output_axes");
  for (unsigned i = numStates; i < op->getNumResults(); ++i) {
    auto slice = dyn_cast<RankedTensorType>(op->getRegion(0).front().getTerminator()->getOperand(i).getType());
    int64_t rank = slice ? slice.getRank() + 1 : 1, axis = axisOf(axes, i - numStates, rank);
    OpResult whole = op->getResult(i);
    if (axis == 0 || isAbsent(whole))
      continue;
    unit.builder.after(op);
    unit.builder.setScope(nameOf(whole));
    Value back = unit.builder.transpose(whole, frontPermutation(rank, axis, /*isBack=*/true));
    back.getDefiningOp()->setLoc(op->getLoc());
    whole.replaceAllUsesExcept(back, back.getDefiningOp());
  }
}

Type sliceType(Type whole) {
  auto type = cast<RankedTensorType>(whole);
  return RankedTensorType::get(type.getShape().drop_front(), type.getElementType());
}

/// States keep their type over the iterations: memory is planned for one.
LogicalResult checkStates(Operation *op, Block &body, unsigned firstArgument, unsigned firstOutput,
                          unsigned numStates) {
  for (unsigned i = 0; i < numStates; ++i) {
    Type before = body.getArgument(firstArgument + i).getType();
    Type after = body.getTerminator()->getOperand(firstOutput + i).getType();
    auto a = dyn_cast<RankedTensorType>(before), b = dyn_cast<RankedTensorType>(after);
    if (!a || !b || a.getShape() != b.getShape() || a.getElementType() != b.getElementType()) {
      Node node(op);
      return op->emitError() << "node " << node.describe() << ": '" << nameOf(body.getArgument(firstArgument + i))
                             << "' is carried on with another type: " << before << ", then " << after;
    }
  }
  return success();
}

/// The length of what a Loop collects, where the number of iterations is a constant.
void closeLoopOutputs(Unit &unit, Operation *op) {
  Block &body = op->getRegion(0).front();
  Value again = body.getTerminator()->getOperand(0);
  auto isTrue = [&](Value value) {
    const Constant *constant = unit.values.constant(value);
    return isAbsent(value) || (constant && *static_cast<const bool *>(constant->data.bytes));
  };
  const Constant *count = unit.values.constant(op->getOperand(0));
  if (!count || !isTrue(op->getOperand(1)) || !(again == Value(body.getArgument(1)) || isTrue(again)))
    return;
  int64_t length = std::max<int64_t>(0, *static_cast<const int64_t *>(count->data.bytes));
  for (unsigned i = op->getNumOperands() - 2; i < op->getNumResults(); ++i)
    if (auto slice = dyn_cast<RankedTensorType>(body.getTerminator()->getOperand(i + 1).getType())) {
      SmallVector<int64_t> dims{length};
      llvm::append_range(dims, slice.getShape());
      op->getResult(i).setType(RankedTensorType::get(dims, slice.getElementType()));
    }
}

} // namespace

Carried carriedStates(Unit &unit, Block &block) {
  Carried carried;
  Operation *parent = block.getParentOp(), *end = block.getTerminator();
  if (isa<GraphOp>(parent)) {
    llvm::StringMap<OpOperand *> outputs;
    for (auto [name, operand] : llvm::zip(unit.outputNames, end->getOpOperands()))
      outputs.try_emplace(name, &operand);
    for (BlockArgument argument : block.getArguments())
      if (auto pair = unit.state.find(nameOf(argument).str()); pair != unit.state.end())
        if (OpOperand *value = outputs.lookup(pair->second))
          carried.push_back({value, argument});
  } else if (isa<LoopOp, ScanOp>(parent)) {
    // A Loop's body has the iteration and a condition in front, and gives a condition.
    bool isLoop = isa<LoopOp>(parent);
    unsigned others = isLoop ? 2 : static_cast<unsigned>(Node(parent).getInt("num_scan_inputs", 0));
    for (unsigned i = 0; i + others < parent->getNumOperands(); ++i)
      carried.push_back({&end->getOpOperand(isLoop ? i + 1 : i), block.getArgument(isLoop ? i + 2 : i)});
  }
  return carried;
}

LogicalResult prepareBodies(Unit &unit, Operation *op) {
  if (op->getNumRegions() == 0)
    return success();
  Node node(op);
  for (Value operand : op->getOperands()) {
    TensorType type;
    if (std::string text = unit.values.typeOf(operand, type); !text.empty())
      return op->emitError() << "node " << node.describe() << ": " << text;
  }
  if (node.is("If")) {
    // The executor takes the first body where the condition holds.
    if (graphInfo(op->getRegion(0)).getAs<StringAttr>("attribute") == "else_branch") {
      Region kept(op);
      kept.takeBody(op->getRegion(0));
      op->getRegion(0).takeBody(op->getRegion(1));
      op->getRegion(1).takeBody(kept);
      auto graphs = op->getAttrOfType<ArrayAttr>("onnx.graphs");
      op->setAttr("onnx.graphs", ArrayAttr::get(op->getContext(), {graphs[1], graphs[0]}));
    }
    for (Region &branch : op->getRegions())
      if (failed(simplify(unit, branch.front())))
        return failure();
    return success();
  }
  bool isScan = node.is("Scan");
  if (!isScan && !node.is("Loop"))
    return op->emitError() << "node " << node.describe() << ": " << node.opType() << " does not run yet";
  if (isScan && node.sinceVersion() < 9)
    return op->emitError() << "node " << node.describe()
                           << ": Scan of opset 8, with a batch axis, does not run; export with opset 9 or newer";
  Block &body = op->getRegion(0).front();
  unsigned slices = isScan ? static_cast<unsigned>(node.getInt("num_scan_inputs", 0)) : 0;
  if (slices > op->getNumOperands() || (isScan && slices == 0))
    return op->emitError() << "node " << node.describe() << ": num_scan_inputs is " << slices << " for "
                           << op->getNumOperands() << " inputs";
  unsigned numStates = op->getNumOperands() - (isScan ? slices : 2), firstArgument = isScan ? 0 : 2,
           firstOutput = isScan ? 0 : 1;
  if (body.getNumArguments() != numStates + firstArgument + slices ||
      body.getTerminator()->getNumOperands() != op->getNumResults() + firstOutput || op->getNumResults() < numStates)
    return op->emitError() << "node " << node.describe() << ": its body has " << body.getNumArguments()
                           << " inputs and " << body.getTerminator()->getNumOperands()
                           << " outputs, which do not fit the node's";
  if (isScan) {
    scanInputsAlongFront(unit, op, numStates);
    int64_t length = cast<RankedTensorType>(op->getOperand(numStates).getType()).getDimSize(0);
    for (unsigned i = numStates; i < op->getNumOperands(); ++i) {
      auto whole = cast<RankedTensorType>(op->getOperand(i).getType());
      if (whole.getRank() == 0 || whole.getDimSize(0) != length)
        return op->emitError() << "node " << node.describe() << ": its scan inputs have different lengths";
    }
  } else {
    body.getArgument(0).setType(RankedTensorType::get({}, IntegerType::get(op->getContext(), 64)));
    body.getArgument(1).setType(RankedTensorType::get({}, IntegerType::get(op->getContext(), 1)));
  }
  for (unsigned i = 0; i < numStates + slices; ++i) {
    Type type = op->getOperand(isScan ? i : i + 2).getType();
    // A state that nobody asks for at the end is carried all the same: it needs the memory of an output.
    if (i < numStates && isAbsent(op->getResult(i))) {
      op->getResult(i).setType(type);
      setName(op->getResult(i), unit.names.unique(nameOf(body.getArgument(firstArgument + i))));
    }
    body.getArgument(firstArgument + i).setType(i < numStates ? type : sliceType(type));
  }
  if (failed(simplify(unit, body)))
    return failure();
  if (isScan)
    scanOutputsAlongFront(unit, op, numStates);
  return checkStates(op, body, firstArgument, firstOutput, numStates);
}

Operation *takeKnownBranch(Unit &unit, Operation *op) {
  const Constant *condition = isa<IfOp>(op) ? unit.values.constant(op->getOperand(0)) : nullptr;
  if (!condition || condition->type.elems() != 1)
    return nullptr;
  StringRef wanted = *static_cast<const bool *>(condition->data.bytes) ? "then_branch" : "else_branch";
  for (Region &region : op->getRegions()) {
    if (graphInfo(region).getAs<StringAttr>("attribute") != wanted)
      continue;
    Block &branch = region.front();
    Operation *end = branch.getTerminator(), *before = op->getPrevNode();
    Block *block = op->getBlock();
    op->replaceAllUsesWith(end->getOperands());
    block->getOperations().splice(op->getIterator(), branch.getOperations(), branch.begin(), end->getIterator());
    unit.erase(op);
    return before ? before->getNextNode() : &block->front();
  }
  return nullptr;
}

LogicalResult closeResults(Unit &unit, Operation *op) {
  if (isa<LoopOp>(op))
    closeLoopOutputs(unit, op);
  bool isIf = isa<IfOp>(op);
  unsigned others = isa<LoopOp>(op) ? 2 : static_cast<unsigned>(Node(op).getInt("num_scan_inputs", 0));
  unsigned numStates = isIf ? op->getNumResults() : op->getNumOperands() - others;
  for (Region &region : op->getRegions())
    for (auto [i, result] : llvm::enumerate(op->getResults())) {
      auto whole = dyn_cast<RankedTensorType>(result.getType());
      auto given = dyn_cast<RankedTensorType>(
          region.front().getTerminator()->getOperand(i + (isa<LoopOp>(op) ? 1 : 0)).getType());
      if (!whole || !whole.hasStaticShape() || !given)
        continue; // absent, or an error elsewhere
      ArrayRef<int64_t> dims = whole.getShape();
      if (dims.drop_front(i < numStates ? 0 : std::min<size_t>(1, dims.size())) != given.getShape() ||
          whole.getElementType() != given.getElementType())
        return op->emitError() << "node " << Node(op).describe() << ": '" << nameOf(result) << "' is " << whole
                               << ", but a body gives " << given << (isIf ? "; both branches must give one shape" : "");
    }
  return success();
}

} // namespace recast::compile
