#include "ir/cost/Cost.h"
#include "ir/cost/Formulas.h"
#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/InlineFunctions.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/Diagnostics.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::cost {

int64_t Cost::bytes() const { return saturatingAdd(bytesRead, bytesWritten); }

void Cost::add(const Cost &part, int64_t times) {
  flops = saturatingAdd(flops, saturatingMultiply(part.flops, times));
  bytesRead = saturatingAdd(bytesRead, saturatingMultiply(part.bytesRead, times));
  bytesWritten = saturatingAdd(bytesWritten, saturatingMultiply(part.bytesWritten, times));
  known = std::max(known, part.known);
}

StringRef arithmeticName(Type type) {
  if (!type)
    return "";
  if (type.isF64())
    return "f64";
  if (type.isF32())
    return "f32";
  if (type.isBF16())
    return "bf16";
  if (type.isF16())
    return "f16";
  if (auto number = dyn_cast<FloatType>(type))
    return number.getWidth() == 8 ? "f8" : "f4";
  if (auto number = dyn_cast<IntegerType>(type))
    switch (number.getWidth()) {
    case 1:
      return "bool";
    case 64:
      return "i64";
    case 32:
      return "i32";
    case 16:
      return "i16";
    case 8:
      return "i8";
    default:
      return "i4";
    }
  return "";
}

StringRef workName(Work work) {
  switch (work) {
  case Work::Nothing:
    return "nothing";
  case Work::Move:
    return "data movement";
  case Work::Elementwise:
    return "element-wise";
  case Work::Reduction:
    return "reduction";
  case Work::Product:
    return "product";
  case Work::Convolution:
    return "convolution";
  case Work::Control:
    return "control flow";
  case Work::Unknown:
    return "unknown";
  }
  llvm_unreachable("covered");
}

namespace {

/// The type of a factor before it was rounded or quantised, through casts and moves of elements; empty where it was
/// neither.
StringRef roundedType(Value factor) {
  while (Operation *op = factor ? factor.getDefiningOp() : nullptr) {
    if (isa<train::RoundTf32Op>(op))
      return "tf32";
    if (isa<train::DequantizeFp8Op>(op))
      return "f8";
    if (!isa<CastOp, TransposeOp, ReshapeOp, IdentityOp, train::BarrierOp, train::OffloadOp, train::FetchOp>(op))
      break;
    factor = op->getOperand(isa<train::BarrierOp>(op) ? cast<OpResult>(factor).getResultNumber() : 0);
  }
  return "";
}

StringRef arithmeticOf(Node node, Work work) {
  if (work == Work::Product || work == Work::Convolution) {
    StringRef first = roundedType(node.input(0)), second = roundedType(node.input(1));
    if (!first.empty() && first == second)
      return first;
  }
  for (Value operand : node->getOperands())
    if (isFloatTensor(operand))
      return arithmeticName(elementTypeOf(operand));
  for (ValueRange values : {ValueRange(node->getOperands()), ValueRange(node->getResults())})
    for (Value value : values)
      if (Type type = elementTypeOf(value))
        return arithmeticName(type);
  return "";
}

/// Bytes that a look-up reads of its first operand: what it gives on, or an element a label.
int64_t bytesPicked(Sizes &s) {
  Operation *op = s.node.operation();
  if (isa<NegativeLogLikelihoodLossOp>(op))
    return saturatingMultiply(s.elems(s.node.input(1)),
                              llvm::divideCeil(storageBits(elementTypeOf(op->getOperand(0))), 8));
  int64_t total = 0;
  for (Value result : op->getResults())
    total = saturatingAdd(total, s.bytes(result));
  return total;
}

int64_t bytesRead(Sizes &s) {
  Operation *op = s.node.operation();
  bool isLookUp = isa<GatherOp, GatherElementsOp, GatherNDOp, SliceOp, SplitOp, NegativeLogLikelihoodLossOp>(op);
  int64_t total = 0;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (llvm::is_contained(op->getOperands().take_front(i), operand))
      continue;
    int64_t bytes = s.bytes(operand);
    total = saturatingAdd(total, i == 0 && isLookUp ? std::min(bytes, bytesPicked(s)) : bytes);
  }
  return total;
}

/// Without bodies: by its formula or its class.
Cost leafCost(Node node) {
  Facts facts = cast<NodeInterface>(node.operation()).facts();
  const Formula *formula = findFormula(node);
  Cost cost;
  cost.work = formula ? formula->work : facts.work;
  cost.arithmetic = arithmeticOf(node, cost.work);
  if (cost.work == Work::Nothing)
    return cost;
  Sizes s(node);
  cost.bytesRead = bytesRead(s);
  for (OpResult result : node->getResults())
    if (result.getResultNumber() == 0 || !result.use_empty())
      cost.bytesWritten = saturatingAdd(cost.bytesWritten, s.bytes(result));
  if (formula) {
    cost.flops = formula->flops(s);
  } else if (cost.work == Work::Elementwise) {
    cost.flops = saturatingMultiply(s.elems(node.output()), facts.flops);
  } else if (cost.work == Work::Reduction) {
    int64_t largest = 0;
    for (Value operand : node->getOperands())
      largest = std::max(largest, s.elems(operand));
    cost.flops = saturatingMultiply(largest, facts.flops);
  }
  if (s.isOpen)
    cost.known = Known::OpenSizes;
  else if (s.isUntyped || cost.work == Work::Unknown)
    cost.known = Known::BytesOnly;
  return cost;
}

/// How often one run of `op` runs its body; nothing where that depends on data.
std::optional<int64_t> iterations(Node node, bool &isOpen) {
  if (isa<ScanOp>(node.operation())) {
    if (node.sinceVersion() < 9) // Scan-8 has a batch around it.
      return std::nullopt;
    int64_t slices = node.getInt("num_scan_inputs", 0), first = node.numInputs() - slices;
    if (slices < 1 || first < 0)
      return std::nullopt;
    auto axes = node.getInts("scan_input_axes");
    Sizes s(node);
    int64_t length = s.dim(node.input(static_cast<unsigned>(first)), axes && !axes->empty() ? axes->front() : 0);
    isOpen = s.isOpen;
    return length;
  }
  // Loop: what its trip count says, if its condition stays true.
  Value count = node.input(0), condition = node.input(1);
  auto trips = count ? constantInts(count) : std::nullopt;
  Block &body = node->getRegion(0).front();
  Value next = body.getTerminator()->getNumOperands() ? body.getTerminator()->getOperand(0) : Value();
  while (next && next.getDefiningOp() && isa<IdentityOp>(next.getDefiningOp()))
    next = next.getDefiningOp()->getOperand(0);
  auto isTrue = [](Value value) { return constantScalar(value).value_or(0) == 1; };
  bool goesOn = next && (isTrue(next) || (body.getNumArguments() > 1 && next == body.getArgument(1)));
  if (!trips || trips->size() != 1 || !goesOn || (condition && !isTrue(condition)))
    return std::nullopt;
  return std::max<int64_t>(trips->front(), 0);
}

void visitScaled(Block &block, int64_t times, Visitor visit) {
  visitParts(block, [&](Operation *op, const Cost &cost, int64_t inner) {
    visit(op, cost, saturatingMultiply(inner, times));
  });
}

Cost total(Block &block) {
  Cost sum;
  visitParts(block, [&](Operation *, const Cost &cost, int64_t times) { sum.add(cost, times); });
  return sum;
}

void visitControlFlow(Operation *op, Visitor visit) {
  if (isa<IfOp>(op)) {
    Block *dearest = nullptr;
    Cost most;
    for (Region &region : op->getRegions()) {
      Cost cost = total(region.front());
      if (!dearest || std::pair(cost.flops, cost.bytes()) > std::pair(most.flops, most.bytes())) {
        dearest = &region.front();
        most = cost;
      }
    }
    if (dearest)
      visitParts(*dearest, visit);
    return;
  }
  bool isOpen = false;
  std::optional<int64_t> count = iterations(Node(op), isOpen);
  if (isOpen || !count) {
    Cost open;
    open.work = Work::Control;
    open.known = isOpen ? Known::OpenSizes : Known::BytesOnly;
    visit(op, open, 1);
  }
  visitScaled(op->getRegion(0).front(), isOpen ? 1 : count.value_or(1), visit);
}

bool hasUnknownResult(Operation *op) {
  return llvm::any_of(op->getResultTypes(), [](Type type) { return isUnknown(type); });
}

/// Visits a node. What a call before it gave may have left its types unknown.
void visitTyped(Operation *op, TypeInference &types, Visitor visit) {
  if (hasUnknownResult(op) && !isa<NodeGenericOp>(op)) {
    ScopedDiagnosticHandler quiet(op->getContext(), [](Diagnostic &) { return success(); });
    (void)types.infer(op);
  }
  visitParts(op, visit);
}

/// Collects what a builder makes.
struct Made : OpBuilder::Listener {
  void notifyOperationInserted(Operation *op, OpBuilder::InsertPoint) override { ops.push_back(op); }
  SmallVector<Operation *> ops;
};

/// Builds the operations that `op` stands for, visits them, and erases them. False where there is no such body.
bool visitBody(Operation *op, Visitor visit) {
  Node node(op);
  FunctionOp function = findFunction(node);
  if (!function && !hasFunctionBody(node))
    return false;
  ScopedDiagnosticHandler quiet(op->getContext(), [](Diagnostic &) { return success(); });
  // Names need not be new beyond the body: it does not stay.
  NameScope names(op);
  TypeInference types;
  NodeBuilder b(op, names, types);
  Made made;
  b.rewriter().setListener(&made);
  b.before(op);
  SmallVector<Value> outputs;
  bool isBuilt = succeeded(function ? inlineFunction(node, b, outputs) : expandFunctionBody(node, b, outputs));
  isBuilt &= !b.failed();
  // Bodies are inserted with the operations that hold them.
  SmallVector<Operation *> own;
  llvm::copy_if(made.ops, std::back_inserter(own), [&](Operation *inner) {
    return !llvm::any_of(made.ops, [&](Operation *other) { return other->isProperAncestor(inner); });
  });
  if (isBuilt)
    for (Operation *inner : own)
      if (isNode(inner))
        visitTyped(inner, types, visit);
  for (auto [result, output] : llvm::zip(op->getResults(), outputs))
    if (isBuilt && output && isUnknown(result.getType()))
      result.setType(output.getType());
  for (Operation *inner : llvm::reverse(own)) {
    inner->dropAllUses();
    inner->erase();
  }
  return isBuilt;
}

} // namespace

void visitParts(Operation *op, Visitor visit) {
  if (op->getNumRegions() && isa<IfOp, LoopOp, ScanOp>(op))
    return visitControlFlow(op, visit);
  if (isa<NodeGenericOp>(op) && !findFormula(Node(op)) && visitBody(op, visit))
    return;
  visit(op, leafCost(Node(op)), 1);
}

void visitParts(Block &block, Visitor visit) {
  TypeInference types;
  for (Operation *op = &block.front(), *next; op; op = next) {
    next = op->getNextNode();
    if (isNode(op))
      visitTyped(op, types, visit);
  }
}

Cost costOf(Operation *op) {
  if (!isNode(op))
    return {};
  Cost sum;
  sum.work = Work::Control;
  visitParts(op, [&](Operation *part, const Cost &cost, int64_t times) {
    if (part == op && cost.work != Work::Control)
      sum = cost; // It has no body.
    else
      sum.add(cost, times);
  });
  return sum;
}

} // namespace recast::cost
