#include "ir/onnx/KnownInts.h"
#include "ir/onnx/Node.h"
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

// Integers of any rank, all known: pads go through matrices of begins and ends.
struct Table {
  SmallVector<int64_t> sizes, elements;
};
constexpr size_t kMostOfTable = 256;

using Known = llvm::function_ref<const Ints *(Value)>;

std::optional<Table> constantTable(Value value, Known known);

std::optional<Table> reshaped(const Table &from, ArrayRef<int64_t> sizes) {
  Table table{SmallVector<int64_t>(sizes), from.elements};
  int64_t product = 1, open = -1, count = static_cast<int64_t>(from.elements.size());
  for (auto [i, size] : llvm::enumerate(sizes)) {
    if (size == 0)
      return std::nullopt;
    if (size < 0)
      open = static_cast<int64_t>(i);
    else
      product *= size;
  }
  if (open >= 0 ? count % product != 0 : product != count)
    return std::nullopt;
  if (open >= 0)
    table.sizes[static_cast<size_t>(open)] = count / product;
  return table;
}

// The rows of a matrix from the last to the first: Slice with step -1 along axis 0.
std::optional<Table> reversedRows(const Table &from, Operation *op, Known known) {
  auto number = [&](unsigned i) -> Int {
    auto table = i < op->getNumOperands() ? constantTable(op->getOperand(i), known) : std::nullopt;
    return table && table->elements.size() == 1 ? Int(table->elements[0]) : std::nullopt;
  };
  Int start = number(1), end = number(2), axis = number(3), step = number(4);
  int64_t rows = from.sizes.front();
  bool isReversal = start && end && axis == 0 && step == -1 && (*start == -1 || *start >= rows - 1) && *end < -rows;
  if (!isReversal)
    return std::nullopt;
  size_t width = from.elements.size() / static_cast<size_t>(rows);
  Table table{from.sizes, {}};
  for (int64_t row = rows; row-- > 0;)
    llvm::append_range(table.elements, ArrayRef(from.elements).slice(static_cast<size_t>(row) * width, width));
  return table;
}

std::optional<Table> joined(OperandRange parts, Known known) {
  Table table{{0}, {}};
  for (Value part : parts) {
    auto some = constantTable(part, known);
    if (!some || some->sizes.size() != 1 || table.elements.size() + some->elements.size() > kMostOfTable)
      return std::nullopt;
    llvm::append_range(table.elements, some->elements);
  }
  table.sizes[0] = static_cast<int64_t>(table.elements.size());
  return table;
}

// Numbers that a type does not hold become others. Of a bool they are 0 and 1.
bool holds(Type element, ArrayRef<int64_t> numbers) {
  auto type = dyn_cast<IntegerType>(element);
  return type && type.getWidth() > 1 && llvm::all_of(numbers, [&](int64_t number) {
           return type.isUnsigned() ? number >= 0 && llvm::isUIntN(type.getWidth(), static_cast<uint64_t>(number))
                                    : llvm::isIntN(type.getWidth(), number);
         });
}

std::optional<Table> constantTable(Value value, Known known) {
  if (TensorAttr constant = constantOf(value)) {
    auto ints = constant.getType().getElementType().isInteger() &&
                        static_cast<size_t>(constant.getType().getNumElements()) <= kMostOfTable
                    ? asInts(constant)
                    : std::nullopt;
    return ints ? std::optional(Table{SmallVector<int64_t>(constant.getType().getShape()), *ints}) : std::nullopt;
  }
  if (const Ints *ints = known(value);
      ints && ints->dim_size() > 0 && llvm::all_of(ints->dim(), [](const auto &dim) { return dim.has_dim_value(); })) {
    Table table;
    for (const auto &dim : ints->dim())
      table.elements.push_back(dim.dim_value());
    table.sizes.assign(cast<RankedTensorType>(value.getType()).getRank(), ints->dim_size());
    return table;
  }
  Operation *op = value.getDefiningOp();
  if (!op || !isa<ConcatOp, CastOp, ReshapeOp, SliceOp, TransposeOp, ConstantOfShapeOp>(op))
    return std::nullopt;
  if (isa<ConcatOp>(op))
    return joined(op->getOperands(), known);
  auto first = constantTable(op->getOperand(0), known);
  if (!first || first->elements.empty())
    return first;
  if (isa<CastOp>(op))
    return holds(elementTypeOf(value), first->elements) ? first : std::nullopt;
  if (isa<ReshapeOp>(op)) {
    auto sizes = constantTable(op->getOperand(1), known);
    return sizes ? reshaped(*first, sizes->elements) : std::nullopt;
  }
  if (isa<SliceOp>(op))
    return first->sizes.empty() ? std::nullopt : reversedRows(*first, op, known);
  if (isa<ConstantOfShapeOp>(op)) {
    auto filler = op->getAttrOfType<TensorAttr>("value");
    auto filled = filler ? asInts(filler) : std::nullopt;
    if (first->elements.size() != 1 || !filled || filled->size() != 1 || first->elements[0] < 0 ||
        static_cast<size_t>(first->elements[0]) > kMostOfTable)
      return std::nullopt;
    return Table{{first->elements[0]}, SmallVector<int64_t>(static_cast<size_t>(first->elements[0]), (*filled)[0])};
  }
  auto order = Node(op).getInts("perm"); // Of a Transpose.
  if (first->sizes.size() != 2 || (order && *order != ArrayRef<int64_t>({1, 0})))
    return std::nullopt;
  auto rows = static_cast<size_t>(first->sizes[0]), columns = static_cast<size_t>(first->sizes[1]);
  Table turned{{first->sizes[1], first->sizes[0]}, {}};
  for (size_t column = 0; column < columns; ++column)
    for (size_t row = 0; row < rows; ++row)
      turned.elements.push_back(first->elements[row * columns + column]);
  return turned;
}

std::optional<Ints> constantElements(Value value, Known known) {
  auto table = constantTable(value, known);
  if (!table)
    return std::nullopt;
  Ints ints;
  for (int64_t element : table->elements)
    ints.add_dim()->set_dim_value(element);
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

// Range from start to limit.
std::optional<Ints> numbersOf(const Ints *start, const Ints *limit, const Ints *delta) {
  auto number = [](const Ints *ints) {
    return ints && ints->dim_size() == 1 && ints->dim(0).has_dim_value() ? Int(ints->dim(0).dim_value()) : std::nullopt;
  };
  Int from = number(start), to = number(limit), step = number(delta);
  // The distance may not fit 64 bits.
  if (!from || !to || !step || *step == 0 || (static_cast<__int128>(*to) - *from) / *step > kMostKnownInts)
    return std::nullopt;
  Ints numbers;
  for (__int128 at = *from; *step > 0 ? at < *to : at > *to; at += *step)
    numbers.add_dim()->set_dim_value(static_cast<int64_t>(at));
  return numbers;
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
    if (ints)
      return *ints;
    if (auto constants = constantElements(op->getOperand(0), known))
      return constants;
    return wholeNumbers(op->getOperand(0));
  }
  if (isa<RangeOp>(op))
    return numbersOf(known(op->getOperand(0)), known(op->getOperand(1)), known(op->getOperand(2)));
  if (!isa<DivOp, ModOp, WhereOp, EqualOp, LessOp, GreaterOp, AndOp, OrOp, NotOp>(op))
    return std::nullopt;
  SmallVector<const Ints *> operands;
  for (Value operand : op->getOperands())
    operands.push_back(known(operand));
  return evaluateElements(op, operands);
}

} // namespace recast::onnx_ir
