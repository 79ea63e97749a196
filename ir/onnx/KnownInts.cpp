#include "ir/onnx/KnownInts.h"
#include "ir/onnx/TensorData.h"
#include <cmath>

using namespace mlir;
namespace recast::onnx_ir {

namespace {

using Ints = onnx::TensorShapeProto;
using Int = std::optional<int64_t>; ///< Nothing where it is not known.

// Float constants that are integers, and are cast to sizes.
std::optional<Ints> wholeNumbers(Value value) {
  TensorAttr constant = constantOf(value);
  auto numbers = constant && constant.getType().getNumElements() <= kMostKnownInts ? asDoubles(constant) : std::nullopt;
  if (!numbers)
    return std::nullopt;
  Ints ints;
  for (double number : *numbers) {
    if (!(std::abs(number) < 1e15) || number != std::trunc(number))
      return std::nullopt;
    ints.add_dim()->set_dim_value(static_cast<int64_t>(number));
  }
  return ints;
}

Int evaluate(Operation *op, ArrayRef<Int> x) {
  if (isa<WhereOp>(op))
    return x[0] ? (*x[0] ? x[1] : x[2]) : std::nullopt;
  if (llvm::any_of(x, [](const Int &number) { return !number; }))
    return std::nullopt;
  if (isa<NotOp>(op))
    return !*x[0];
  int64_t a = *x[0], b = *x[1];
  if (isa<EqualOp>(op))
    return a == b;
  if (isa<LessOp>(op))
    return a < b;
  if (isa<GreaterOp>(op))
    return a > b;
  if (isa<AndOp>(op))
    return a && b;
  if (isa<OrOp>(op))
    return a || b;
  // Sizes are not negative; for others the operators differ in how they round.
  if (a < 0 || b <= 0)
    return std::nullopt;
  return isa<DivOp>(op) ? a / b : a % b;
}

// Element by element; operands with one element are repeated.
std::optional<Ints> evaluateElements(Operation *op, ArrayRef<const Ints *> operands) {
  int count = 1;
  for (const Ints *operand : operands) {
    if (!operand || operand->dim_size() == 0)
      return std::nullopt;
    count = std::max(count, operand->dim_size());
  }
  Ints result;
  for (int i = 0; i < count; ++i) {
    SmallVector<Int> elements;
    for (const Ints *operand : operands) {
      if (operand->dim_size() != 1 && operand->dim_size() != count)
        return std::nullopt;
      const auto &element = operand->dim(operand->dim_size() == 1 ? 0 : i);
      elements.push_back(element.has_dim_value() ? Int(element.dim_value()) : std::nullopt);
    }
    auto *element = result.add_dim();
    if (Int number = evaluate(op, elements))
      element->set_dim_value(*number);
  }
  return result;
}

} // namespace

std::optional<Ints> evaluateInts(Operation *op, llvm::function_ref<const Ints *(Value)> known) {
  auto type = dyn_cast<RankedTensorType>(op->getResult(0).getType());
  auto element = type && type.getRank() <= 1 ? dyn_cast<IntegerType>(type.getElementType()) : IntegerType();
  if (!element || (element.getWidth() != 64 && element.getWidth() != 32 && element.getWidth() != 1))
    return std::nullopt;
  bool isBool = element.getWidth() == 1;
  if (isa<CastOp, CastLikeOp, ReshapeOp>(op)) {
    const Ints *ints = known(op->getOperand(0));
    if (isBool) // Numbers would become 0 and 1.
      return std::nullopt;
    return ints ? std::optional<Ints>(*ints) : wholeNumbers(op->getOperand(0));
  }
  if (!isa<DivOp, ModOp, WhereOp, EqualOp, LessOp, GreaterOp, AndOp, OrOp, NotOp>(op))
    return std::nullopt;
  SmallVector<const Ints *> operands;
  for (Value operand : op->getOperands())
    operands.push_back(known(operand));
  return evaluateElements(op, operands);
}

} // namespace recast::onnx_ir
