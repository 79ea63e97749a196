#include "runtime/fusion/Compute.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "runtime/fusion/MathFunctions.h"

using namespace mlir;
namespace recast::fusion {

namespace {

bool isSigned(DType type) {
  return type == DType::I8 || type == DType::I16 || type == DType::I32 || type == DType::I64;
}
bool isHalf(DType type) { return type == DType::F16 || type == DType::BF16; }

Value roundToBF16(ImplicitLocOpBuilder &b, Value x) {
  Type i32 = typeLike(b.getI32Type(), x.getType());
  auto number = [&](int64_t value) { return constantOf(b, i32, value); };
  Value bits = arith::BitcastOp::create(b, i32, x);
  Value odd = arith::AndIOp::create(b, arith::ShRUIOp::create(b, bits, number(16)), number(1));
  Value rounded = arith::AddIOp::create(b, arith::AddIOp::create(b, bits, number(0x7fff)), odd);
  Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, x, x);
  rounded = arith::SelectOp::create(b, isNaN, arith::OrIOp::create(b, bits, number(0x400000)), rounded);
  return arith::BitcastOp::create(b, x.getType(), arith::AndIOp::create(b, rounded, number(int32_t(0xffff0000))));
}

Value toF16(ImplicitLocOpBuilder &b, Value x) {
  return arith::TruncFOp::create(b, typeLike(b.getF16Type(), x.getType()), x);
}

/// `x`, computed in f32, as the graph's type has it.
Value round(ImplicitLocOpBuilder &b, DType type, Value x) {
  if (type == DType::BF16)
    return roundToBF16(b, x);
  if (type == DType::F16)
    return arith::ExtFOp::create(b, x.getType(), toF16(b, x));
  return x;
}

Value compareF(ImplicitLocOpBuilder &b, arith::CmpFPredicate predicate, Value x, Value y) {
  return arith::CmpFOp::create(b, predicate, x, y);
}
Value compareI(ImplicitLocOpBuilder &b, arith::CmpIPredicate predicate, Value x, Value y) {
  return arith::CmpIOp::create(b, predicate, x, y);
}

/// y where it is better or NaN, as the reference evaluator does.
Value extreme(ImplicitLocOpBuilder &b, bool isMax, DType type, Value x, Value y) {
  Value better;
  if (isFloat(type)) {
    better = compareF(b, isMax ? arith::CmpFPredicate::OGT : arith::CmpFPredicate::OLT, y, x);
    better = arith::OrIOp::create(b, better, compareF(b, arith::CmpFPredicate::UNO, y, y));
  } else {
    using P = arith::CmpIPredicate;
    better = compareI(b, isSigned(type) ? (isMax ? P::sgt : P::slt) : (isMax ? P::ugt : P::ult), y, x);
  }
  return arith::SelectOp::create(b, better, y, x);
}

/// Towards zero; beyond the range its nearest bound, NaN to 0.
Value floatToInt(ImplicitLocOpBuilder &b, DType to, Value x) {
  auto intType = cast<IntegerType>(computeType(b.getContext(), to));
  unsigned width = intType.getWidth();
  bool hasSign = isSigned(to);
  double low = hasSign ? -std::ldexp(1.0, static_cast<int>(width) - 1) : 0;
  double high = std::ldexp(1.0, static_cast<int>(hasSign ? width - 1 : width));
  Type type = typeLike(intType, x.getType());
  Value isHigh = compareF(b, arith::CmpFPredicate::OGE, x, constantOf(b, x.getType(), high));
  Value isLow = compareF(b, arith::CmpFPredicate::OLE, x, constantOf(b, x.getType(), low));
  Value isNaN = compareF(b, arith::CmpFPredicate::UNO, x, x);
  Value isOutside = arith::OrIOp::create(b, arith::OrIOp::create(b, isHigh, isLow), isNaN);
  Value inside = arith::SelectOp::create(b, isOutside, constantOf(b, x.getType(), 0.0), x);
  Value result = hasSign ? arith::FPToSIOp::create(b, type, inside).getResult()
                         : arith::FPToUIOp::create(b, type, inside).getResult();
  int64_t most = static_cast<int64_t>(hasSign ? (uint64_t(1) << (width - 1)) - 1 : ~uint64_t(0) >> (64 - width));
  int64_t least = hasSign ? static_cast<int64_t>(~uint64_t(0) << (width - 1)) : 0;
  result = arith::SelectOp::create(b, isHigh, constantOf(b, type, most), result);
  return arith::SelectOp::create(b, isLow, constantOf(b, type, least), result);
}

Value convert(ImplicitLocOpBuilder &b, DType from, DType to, Value x) {
  if (from == to)
    return x;
  Type target = computeType(b.getContext(), to), type = typeLike(target, x.getType());
  if (isFloat(from) && isFloat(to)) {
    if (x.getType() == type)
      return round(b, to, x);
    return to == DType::F64 ? arith::ExtFOp::create(b, type, x).getResult()
                            : round(b, to, arith::TruncFOp::create(b, type, x));
  }
  if (to == DType::Bool)
    return isFloat(from) ? compareF(b, arith::CmpFPredicate::UNE, x, constantOf(b, x.getType(), 0.0))
                         : compareI(b, arith::CmpIPredicate::ne, x, constantOf(b, x.getType(), int64_t(0)));
  if (isFloat(from))
    return floatToInt(b, to, x);
  if (isFloat(to))
    return round(b, to,
                 isSigned(from) ? arith::SIToFPOp::create(b, type, x).getResult()
                                : arith::UIToFPOp::create(b, type, x).getResult());
  unsigned width = target.getIntOrFloatBitWidth(), own = getElementTypeOrSelf(x.getType()).getIntOrFloatBitWidth();
  if (width == own)
    return x;
  if (width < own)
    return arith::TruncIOp::create(b, type, x);
  return isSigned(from) ? arith::ExtSIOp::create(b, type, x).getResult()
                        : arith::ExtUIOp::create(b, type, x).getResult();
}

/// C's function of f64 values, one element at a time: for scalars, mostly.
Value callWide(ImplicitLocOpBuilder &b, StringRef name, ArrayRef<Value> args) {
  if (auto vector = dyn_cast<VectorType>(args[0].getType())) {
    Value result = constantOf(b, vector, 0.0);
    for (int64_t i = 0; i < vector.getNumElements(); ++i) {
      SmallVector<Value> elements;
      for (Value arg : args)
        elements.push_back(vector::ExtractOp::create(b, arg, i));
      result = vector::InsertOp::create(b, callWide(b, name, elements), result, i);
    }
    return result;
  }
  auto module = b.getInsertionBlock()->getParentOp()->getParentOfType<ModuleOp>();
  if (!module.lookupSymbol(name)) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    SmallVector<Type> types(args.size(), b.getF64Type());
    func::FuncOp::create(b, name, b.getFunctionType(types, b.getF64Type())).setPrivate();
  }
  return func::CallOp::create(b, name, b.getF64Type(), args).getResult(0);
}

Value computeFloat(ImplicitLocOpBuilder &b, Op op, ArrayRef<Value> args, bool isWide) {
  Value x = args[0];
  auto wide = [&](StringRef name, Value (*narrow)(ImplicitLocOpBuilder &, Value)) {
    return isWide ? callWide(b, name, args) : narrow(b, x);
  };
  switch (op) {
  case Op::Neg:
    return arith::NegFOp::create(b, x);
  case Op::Abs:
    return math::AbsFOp::create(b, x);
  case Op::Sqrt:
    return math::SqrtOp::create(b, x);
  case Op::Floor:
    return math::FloorOp::create(b, x);
  case Op::Ceil:
    return math::CeilOp::create(b, x);
  case Op::Round:
    return math::RoundEvenOp::create(b, x);
  case Op::Exp:
    return wide("exp", emitExp);
  case Op::Log:
    return wide("log", emitLog);
  case Op::Tanh:
    return wide("tanh", emitTanh);
  case Op::Erf:
    return wide("erf", emitErf);
  case Op::Sin:
    return wide("sin", emitSin);
  case Op::Cos:
    return wide("cos", emitCos);
  case Op::Expm1:
    return wide("expm1", emitExpm1);
  case Op::Log1p:
    return wide("log1p", emitLog1p);
  case Op::Add:
    return arith::AddFOp::create(b, x, args[1]);
  case Op::Sub:
    return arith::SubFOp::create(b, x, args[1]);
  case Op::Mul:
    return arith::MulFOp::create(b, x, args[1]);
  case Op::Div:
    return arith::DivFOp::create(b, x, args[1]);
  case Op::Pow:
    return callWide(b, "pow", args);
  default:
    return nullptr;
  }
}

Value computeInt(ImplicitLocOpBuilder &b, Op op, ArrayRef<Value> args, DType type) {
  Value x = args[0];
  switch (op) {
  case Op::Neg:
    return arith::SubIOp::create(b, constantOf(b, x.getType(), int64_t(0)), x);
  case Op::Abs: {
    if (!isSigned(type))
      return x;
    Value zero = constantOf(b, x.getType(), int64_t(0));
    Value isNegative = compareI(b, arith::CmpIPredicate::slt, x, zero);
    return arith::SelectOp::create(b, isNegative, arith::SubIOp::create(b, zero, x), x);
  }
  case Op::Add:
    return arith::AddIOp::create(b, x, args[1]);
  case Op::Sub:
    return arith::SubIOp::create(b, x, args[1]);
  case Op::Mul:
    return arith::MulIOp::create(b, x, args[1]);
  case Op::Not:
    return arith::XOrIOp::create(b, x, constantOf(b, x.getType(), int64_t(-1)));
  case Op::And:
    return arith::AndIOp::create(b, x, args[1]);
  case Op::Or:
    return arith::OrIOp::create(b, x, args[1]);
  case Op::Xor:
    return arith::XOrIOp::create(b, x, args[1]);
  case Op::ShiftRight:
    return arith::ShRUIOp::create(b, x, args[1]);
  case Op::ShiftLeft:
    return arith::ShLIOp::create(b, x, args[1]);
  default:
    return nullptr;
  }
}

Value compareValues(ImplicitLocOpBuilder &b, Op op, DType type, Value x, Value y) {
  if (isFloat(type))
    return compareF(b,
                    op == Op::Less        ? arith::CmpFPredicate::OLT
                    : op == Op::LessEqual ? arith::CmpFPredicate::OLE
                                          : arith::CmpFPredicate::OEQ,
                    x, y);
  using P = arith::CmpIPredicate;
  bool hasSign = isSigned(type);
  return compareI(b,
                  op == Op::Equal  ? P::eq
                  : op == Op::Less ? (hasSign ? P::slt : P::ult)
                  : hasSign        ? P::sle
                                   : P::ule,
                  x, y);
}

} // namespace

Type computeType(MLIRContext *context, DType type) {
  switch (type) {
  case DType::F32:
  case DType::F16:
  case DType::BF16:
    return Float32Type::get(context);
  case DType::F64:
    return Float64Type::get(context);
  case DType::Bool:
    return IntegerType::get(context, 1);
  default:
    return IntegerType::get(context, static_cast<unsigned>(8 * byteSize(type)));
  }
}

Type memoryType(MLIRContext *context, DType type) {
  if (type == DType::F16)
    return Float16Type::get(context);
  if (type == DType::F32 || type == DType::F64)
    return computeType(context, type);
  return IntegerType::get(context, static_cast<unsigned>(8 * byteSize(type)));
}

Value fromMemory(ImplicitLocOpBuilder &b, DType type, Value x) {
  Type target = typeLike(computeType(b.getContext(), type), x.getType());
  if (type == DType::F16)
    return arith::ExtFOp::create(b, target, x);
  if (type == DType::Bool)
    return compareI(b, arith::CmpIPredicate::ne, x, constantOf(b, x.getType(), int64_t(0)));
  if (type != DType::BF16)
    return x;
  Type i32 = typeLike(b.getI32Type(), x.getType());
  Value wide = arith::ExtUIOp::create(b, i32, x);
  return arith::BitcastOp::create(b, target, arith::ShLIOp::create(b, wide, constantOf(b, i32, int64_t(16))));
}

Value toMemory(ImplicitLocOpBuilder &b, DType type, Value x) {
  Type target = typeLike(memoryType(b.getContext(), type), x.getType());
  if (type == DType::F16)
    return arith::TruncFOp::create(b, target, x);
  if (type == DType::Bool)
    return arith::ExtUIOp::create(b, target, x);
  if (type != DType::BF16)
    return x;
  Type i32 = typeLike(b.getI32Type(), x.getType());
  Value bits = arith::ShRUIOp::create(b, arith::BitcastOp::create(b, i32, x), constantOf(b, i32, int64_t(16)));
  return arith::TruncIOp::create(b, target, bits);
}

Value compute(ImplicitLocOpBuilder &b, const Node &node, ArrayRef<Value> args, ArrayRef<DType> argTypes) {
  Type element = computeType(b.getContext(), node.type);
  switch (node.op) {
  case Op::Constant:
    return isa<FloatType>(element) ? constantOf(b, element, node.number) : constantOf(b, element, node.integer);
  case Op::Select:
    return arith::SelectOp::create(b, args[0], args[1], args[2]);
  case Op::Cast:
    return convert(b, argTypes[0], node.type, args[0]);
  case Op::Less:
  case Op::LessEqual:
  case Op::Equal:
    return compareValues(b, node.op, argTypes[0], args[0], args[1]);
  case Op::Max:
  case Op::Min:
    return extreme(b, node.op == Op::Max, node.type, args[0], args[1]);
  default:
    break;
  }
  if (!isFloat(node.type))
    return computeInt(b, node.op, args, node.type);
  Value result = computeFloat(b, node.op, args, node.type == DType::F64);
  bool isExact = node.op == Op::Neg || node.op == Op::Abs;
  return isHalf(node.type) && !isExact ? round(b, node.type, result) : result;
}

Value neutral(ImplicitLocOpBuilder &b, Op op, DType type, Type like) {
  Type result = typeLike(computeType(b.getContext(), type), like);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (isFloat(type))
    return constantOf(b, result,
                      op == Op::ReduceSum    ? 0.0
                      : op == Op::ReduceProd ? 1.0
                      : op == Op::ReduceMax  ? -infinity
                                             : infinity);
  unsigned width = getElementTypeOrSelf(result).getIntOrFloatBitWidth();
  if (!isExtreme(op))
    return constantOf(b, result, int64_t(op == Op::ReduceProd));
  bool isHighest = op == Op::ReduceMin;
  APInt bound = isSigned(type) ? (isHighest ? APInt::getSignedMaxValue(width) : APInt::getSignedMinValue(width))
                               : (isHighest ? APInt::getMaxValue(width) : APInt::getMinValue(width));
  return constantOf(b, result, bound.getSExtValue());
}

Value accumulate(ImplicitLocOpBuilder &b, Op op, DType type, Value sum, Value x) {
  if (isExtreme(op))
    return extreme(b, op == Op::ReduceMax, type, sum, x);
  if (op == Op::ReduceProd)
    return isFloat(type) ? arith::MulFOp::create(b, sum, x).getResult() : arith::MulIOp::create(b, sum, x).getResult();
  return isFloat(type) ? arith::AddFOp::create(b, sum, x).getResult() : arith::AddIOp::create(b, sum, x).getResult();
}

Value widenTo(ImplicitLocOpBuilder &b, DType from, DType to, Value x) { return convert(b, from, to, x); }

} // namespace recast::fusion
