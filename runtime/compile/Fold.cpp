#include "runtime/compile/Fold.h"
#include "runtime/reference/Reference.h"
#include <cstring>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

/// Schema functions read the data of integer constants of up to this many elements, and of small ones of every type:
/// those become Constant nodes. All other folded values need not be attributes.
constexpr int64_t kShapeElems = 4096;

Type mlirElementType(MLIRContext *context, DType dtype) {
  return elementTypeFromOnnx(context, static_cast<int>(dtype));
}

void replace(Unit &unit, Value result, Constant constant) {
  if (isAbsent(result) || result.use_empty())
    return;
  Operation *op = result.getDefiningOp();
  int64_t elems = constant.type.elems();
  if (elems > kInlineElems && (isFloat(constant.type.dtype) || elems > kShapeElems)) {
    unit.values.setConstant(result, std::move(constant));
    return;
  }
  OpBuilder b(op);
  auto type = RankedTensorType::get(constant.type.dims, mlirElementType(b.getContext(), constant.type.dtype));
  ArrayRef<char> bytes(static_cast<const char *>(constant.data.bytes), constant.type.bytes());
  OperationState state(op->getLoc(), ConstantOp::getOperationName());
  state.addAttribute("value", makeTensor(type, bytes));
  state.addAttribute("onnx.outputs", stringArray(b.getContext(), {nameOf(result)}));
  state.addTypes(type);
  result.replaceAllUsesWith(b.create(state)->getResult(0));
}

Constant newConstant(TensorType type) {
  std::shared_ptr<std::byte> memory = allocate(type.bytes());
  return {std::move(type), {memory.get(), memory}};
}
std::byte *bytesOf(const Constant &owned) { return static_cast<std::byte *>(const_cast<void *>(owned.data.bytes)); }

Constant intsConstant(ArrayRef<int64_t> values, std::vector<int64_t> dims) {
  Constant constant = newConstant({DType::I64, std::move(dims)});
  std::memcpy(bytesOf(constant), values.data(), values.size() * sizeof(int64_t));
  return constant;
}

/// Shape and Size of a value whose type is static.
bool foldShape(Unit &unit, Node node) {
  TensorType type;
  if (!node.is("Shape") && !node.is("Size"))
    return false;
  if (!unit.values.typeOf(node.input(0), type).empty() || !type.present())
    return false;
  if (node.is("Size")) {
    replace(unit, node.output(), intsConstant(type.elems(), {}));
    return true;
  }
  auto clamp = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + type.rank() : at, 0, type.rank()); };
  int64_t start = clamp(node.getInt("start", 0)), end = std::max(start, clamp(node.getInt("end", type.rank())));
  ArrayRef<int64_t> dims = ArrayRef(type.dims).slice(static_cast<size_t>(start), static_cast<size_t>(end - start));
  replace(unit, node.output(), intsConstant(dims, {end - start}));
  return true;
}

/// ConstantOfShape: one element repeated.
bool foldFilled(Unit &unit, Node node) {
  TensorType type;
  if (!node.is("ConstantOfShape") || !unit.values.typeOf(node.output(), type).empty())
    return false;
  Constant filled = newConstant(type);
  size_t width = byteSize(type.dtype), bytes = type.bytes();
  Data element;
  if (auto value = node->getAttrOfType<TensorAttr>("value")) {
    element = unit.values.dataOf(value);
    if (!element.bytes || value.getType().getNumElements() != 1)
      return false;
  }
  if (!element.bytes)
    std::memset(bytesOf(filled), 0, bytes);
  else
    for (size_t at = 0; at < bytes; at += width)
      std::memcpy(bytesOf(filled) + at, element.bytes, width);
  replace(unit, node.output(), std::move(filled));
  return true;
}

/// A constant in another shape: the same memory.
bool foldView(Unit &unit, Operation *op) {
  TensorType type;
  const Constant *source = op->getNumOperands() ? unit.values.constant(op->getOperand(0)) : nullptr;
  if (!source || !cast<NodeInterface>(op).facts().view || !unit.values.typeOf(op->getResult(0), type).empty() ||
      type.bytes() != source->type.bytes())
    return false;
  replace(unit, op->getResult(0), {std::move(type), source->data});
  return true;
}

/// NonZero of a constant: the one operator of exported shape arithmetic whose result has a data-dependent size.
bool foldNonZero(Unit &unit, Node node) {
  const Constant *source = node.is("NonZero") ? unit.values.constant(node.input(0)) : nullptr;
  if (!source || source->type.elems() > kFoldElems)
    return false;
  std::vector<int64_t> found;
  dispatchAny(source->type.dtype, [&]<typename T>() {
    const T *data = static_cast<const T *>(source->data.bytes);
    for (int64_t i = 0; i < source->type.elems(); ++i)
      if (static_cast<double>(data[i]) != 0)
        found.push_back(i);
  });
  auto count = static_cast<int64_t>(found.size());
  int64_t rank = source->type.rank();
  std::vector<int64_t> coordinates(found.size() * static_cast<size_t>(rank));
  for (size_t i = 0; i < found.size(); ++i) {
    int64_t rest = found[i];
    for (int64_t d = rank - 1; d >= 0; --d) {
      int64_t size = source->type.dims[static_cast<size_t>(d)];
      coordinates[static_cast<size_t>(d) * found.size() + i] = rest % size;
      rest /= size;
    }
  }
  replace(unit, node.output(), intsConstant(coordinates, {rank, count}));
  return true;
}

/// True where equal operands always give equal results.
bool isDeterministic(Operation *op) {
  if (op->getNumRegions() != 0)
    return false;
  Node node(op);
  if (!isa<NodeGenericOp>(op))
    return !cast<NodeInterface>(op).facts().effects;
  // Operators of ONNX that draw random numbers all have an operation of their own.
  return node.domain().empty() && node.schema();
}

bool isFoldable(Unit &unit, Operation *op) {
  bool any = false;
  for (Value operand : op->getOperands()) {
    if (isAbsent(operand))
      continue;
    if (!unit.values.constant(operand))
      return false;
    any = true;
  }
  for (Value result : op->getResults()) {
    TensorType type;
    if (!unit.values.typeOf(result, type).empty() || (type.present() && type.elems() > kFoldElems))
      return false;
  }
  return any && isDeterministic(op);
}

/// Runs the reference kernel. Errors, of data that the operator does not allow, are left for the run.
void evaluate(Unit &unit, Operation *op) {
  auto spec = makeSpec(unit, op);
  if (failed(spec))
    return;
  std::string refusal;
  std::unique_ptr<Kernel> kernel = reference::create(*spec, refusal);
  if (!kernel)
    return;
  std::vector<Constant> results;
  std::vector<TensorRef> outputs;
  for (const TensorType &type : spec->outputs) {
    results.push_back(newConstant(type));
    outputs.push_back({type.dtype, type.dims, results.back().type.present() ? bytesOf(results.back()) : nullptr});
  }
  std::vector<TensorRef> inputs = spec->constants;
  std::shared_ptr<std::byte> workspace = allocate(kernel->workspaceBytes());
  if (!kernel->run({inputs, outputs, {workspace.get(), kernel->workspaceBytes()}}).ok())
    return;
  for (auto [result, constant] : llvm::zip(op->getResults(), results))
    if (constant.type.present())
      replace(unit, result, std::move(constant));
}

} // namespace

void fold(Unit &unit, Operation *op) {
  Node node(op);
  if (foldShape(unit, node))
    return;
  if (node.is("NonZero")) {
    foldNonZero(unit, node);
    return;
  }
  if (node.is("ConstantOfShape") && foldFilled(unit, node))
    return;
  if (foldView(unit, op))
    return;
  if (isFoldable(unit, op))
    evaluate(unit, op);
}

} // namespace recast::compile
