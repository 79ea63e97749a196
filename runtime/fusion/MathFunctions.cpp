// Sources: reductions by multiples of ln 2 and pi / 2 after Cody and Waite; minimax polynomials for exp, log and
// erf in f32 as published by N. Juffa, the rational one for tanh of Eigen (they are checked over all arguments that
// matter by the tests); Taylor series where f64 leaves room.
#include "runtime/fusion/MathFunctions.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/IR/TypeUtilities.h"
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

using namespace mlir;
namespace recast::fusion {

Type typeLike(Type element, Type like) {
  auto vector = dyn_cast<VectorType>(like);
  return vector ? Type(VectorType::get(vector.getShape(), element)) : element;
}

Value constantOf(ImplicitLocOpBuilder &b, Type type, double value) {
  auto element = cast<FloatType>(getElementTypeOrSelf(type));
  TypedAttr attr = b.getFloatAttr(element, value);
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, Attribute(attr));
  return arith::ConstantOp::create(b, attr);
}

Value constantOf(ImplicitLocOpBuilder &b, Type type, int64_t value) {
  auto element = cast<IntegerType>(getElementTypeOrSelf(type));
  TypedAttr attr = b.getIntegerAttr(element, APInt(element.getWidth(), static_cast<uint64_t>(value), false, true));
  if (auto vector = dyn_cast<VectorType>(type))
    attr = DenseElementsAttr::get(vector, Attribute(attr));
  return arith::ConstantOp::create(b, attr);
}

namespace {

/// Operators on values of one shape, so that formulas read as such.
class Formula {
public:
  Formula(ImplicitLocOpBuilder &b, Value like) : b(b), shape(like.getType()) {}

  Type type(Type element) const { return typeLike(element, shape); }
  Type f32() const { return type(b.getF32Type()); }
  Type f64() const { return type(b.getF64Type()); }
  Type i32() const { return type(b.getI32Type()); }
  Type i64() const { return type(b.getI64Type()); }
  Value like(Value x, double value) { return constantOf(b, x.getType(), value); }
  Value likeInt(Value x, int64_t value) { return constantOf(b, x.getType(), value); }

  Value fma(Value x, Value y, Value z) { return math::FmaOp::create(b, x, y, z); }
  Value fma(Value x, Value y, double z) { return fma(x, y, like(x, z)); }
  Value fma(Value x, double y, Value z) { return fma(x, like(x, y), z); }
  Value add(Value x, Value y) { return arith::AddFOp::create(b, x, y); }
  Value sub(Value x, Value y) { return arith::SubFOp::create(b, x, y); }
  Value mul(Value x, Value y) { return arith::MulFOp::create(b, x, y); }
  Value div(Value x, Value y) { return arith::DivFOp::create(b, x, y); }
  Value neg(Value x) { return arith::NegFOp::create(b, x); }
  Value abs(Value x) { return math::AbsFOp::create(b, x); }
  Value nearest(Value x) { return math::RoundEvenOp::create(b, x); }
  Value copySign(Value x, Value sign) { return math::CopySignOp::create(b, x, sign); }
  Value compare(arith::CmpFPredicate predicate, Value x, double y) {
    return arith::CmpFOp::create(b, predicate, x, like(x, y));
  }
  Value less(Value x, double y) { return compare(arith::CmpFPredicate::OLT, x, y); }
  Value greater(Value x, double y) { return compare(arith::CmpFPredicate::OGT, x, y); }
  Value isNaN(Value x) { return arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, x, x); }
  Value select(Value condition, Value x, Value y) { return arith::SelectOp::create(b, condition, x, y); }
  Value bits(Value x, Type to) { return arith::BitcastOp::create(b, to, x); }
  Value toInt(Value x, Type to) { return arith::FPToSIOp::create(b, to, x); }
  Value toFloat(Value x, Type to) { return arith::SIToFPOp::create(b, to, x); }
  Value addInt(Value x, Value y) { return arith::AddIOp::create(b, x, y); }
  Value shiftLeft(Value x, int64_t by) { return arith::ShLIOp::create(b, x, likeInt(x, by)); }
  Value widen(Value x) { return arith::ExtFOp::create(b, f64(), x); }
  Value narrow(Value x) { return arith::TruncFOp::create(b, f32(), x); }
  /// Horner's scheme, the highest power first.
  Value polynomial(Value x, ArrayRef<double> coefficients) {
    Value sum = like(x, coefficients[0]);
    for (double coefficient : coefficients.drop_front())
      sum = fma(sum, x, coefficient);
    return sum;
  }

  ImplicitLocOpBuilder &b;
  Type shape;
};

/// p 2^k, rounded once, for |p| about 1 and a whole k in [-217, 188]; `shifted` is k + `shift` in f32.
Value scaleByPowerOfTwo(Formula &f, Value p, Value shifted, double shift) {
  auto vector = dyn_cast<VectorType>(p.getType());
  if (vector && vector.getNumElements() == 16) { // Such vectors are made for AVX-512 alone, which has an instruction.
    Value k = f.sub(shifted, f.like(p, shift));
    Value all = constantOf(f.b, f.b.getI16Type(), int64_t(-1)),
          rounding = constantOf(f.b, f.b.getI32Type(), int64_t(4));
    return LLVM::CallIntrinsicOp::create(f.b, vector, f.b.getStringAttr("llvm.x86.avx512.mask.scalef.ps.512"),
                                         ValueRange{p, k, p, all, rounding})
        .getResult(0);
  }
  // 2^k overflows a little beyond the range of the result: so it is multiplied in two halves.
  Value word = f.bits(shifted, f.i32());
  Value k = f.addInt(word, f.likeInt(word, -std::bit_cast<int32_t>(static_cast<float>(shift))));
  Value half = arith::ShRSIOp::create(f.b, k, f.likeInt(k, 1));
  auto power = [&](Value exponent) {
    return f.bits(f.shiftLeft(f.addInt(exponent, f.likeInt(exponent, 127)), 23), f.f32());
  };
  return f.mul(f.mul(p, power(half)), power(arith::SubIOp::create(f.b, k, half)));
}

/// e^x for |x| where the result neither over- nor underflows f64: 2^k e^r with |r| <= ln 2 / 2.
Value expWide(Formula &f, Value x) {
  Value k = f.nearest(f.mul(x, f.like(x, std::numbers::log2e)));
  Value r = f.fma(k, -0x1.62e42fefa38p-1, x);
  r = f.fma(k, -0x1.ef35793c7673p-45, r);
  SmallVector<double> taylor;
  double factorial = 1;
  for (int i = 0; i <= 13; ++i) {
    taylor.insert(taylor.begin(), 1 / factorial);
    factorial *= i + 1;
  }
  Value exponent = f.addInt(f.toInt(k, f.i64()), constantOf(f.b, f.i64(), int64_t(1023)));
  return f.mul(f.polynomial(r, taylor), f.bits(f.shiftLeft(exponent, 52), f.f64()));
}

/// log x for a normal, positive f64: k ln 2 + log m with m in [sqrt(1/2), sqrt(2)).
Value logWide(Formula &f, Value x) {
  constexpr int64_t kHalfRoot = 0x3fe6a09e667f3bcd; // The bits of sqrt(1/2).
  Value word = f.bits(x, f.i64());
  Value shifted = f.addInt(word, f.likeInt(word, -kHalfRoot));
  Value k = arith::ShRSIOp::create(f.b, shifted, f.likeInt(word, 52));
  Value m = f.bits(arith::SubIOp::create(f.b, word, f.shiftLeft(k, 52)), f.f64());
  Value s = f.div(f.sub(m, f.like(m, 1)), f.add(m, f.like(m, 1))), square = f.mul(s, s);
  SmallVector<double> series; // 2 (s + s^3 / 3 + s^5 / 5 + ...)
  for (int i = 21; i >= 1; i -= 2)
    series.push_back(2.0 / i);
  return f.fma(f.toFloat(k, f.f64()), std::numbers::ln2, f.mul(f.polynomial(square, series), s));
}

/// sin(x + quarters * pi / 2), in f64.
Value sine(ImplicitLocOpBuilder &b, Value narrow, int64_t quarters) {
  Formula f(b, narrow);
  Value x = f.widen(narrow);
  Value k = f.nearest(f.mul(x, f.like(x, 2 / std::numbers::pi)));
  Value r = f.fma(k, -0x1.921fb54400000p+0, x); // pi / 2 in three parts, of which k times the first two is exact.
  r = f.fma(k, -0x1.0b4611a600000p-34, r);
  r = f.fma(k, -0x1.3198a2e037073p-69, r);
  Value square = f.mul(r, r);
  Value sin = f.polynomial(square, {-1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6, 1});
  Value cos = f.polynomial(square, {1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5, 1});
  // Beyond the range of i64 there is no quarter to know; the remainder is as wrong.
  Value bounded = f.select(f.less(f.abs(k), 0x1p62), k, f.like(k, 0));
  Value quarter = f.addInt(f.toInt(bounded, f.i64()), constantOf(b, f.i64(), quarters));
  auto bit = [&](int64_t mask) {
    Value masked = arith::AndIOp::create(b, quarter, f.likeInt(quarter, mask));
    return arith::CmpIOp::create(b, arith::CmpIPredicate::ne, masked, f.likeInt(quarter, 0)).getResult();
  };
  Value result = f.select(bit(1), cos, f.mul(sin, r));
  result = f.select(bit(2), f.neg(result), result);
  Value rounded = f.narrow(result);
  return quarters ? rounded : f.select(f.compare(arith::CmpFPredicate::OEQ, narrow, 0), narrow, rounded);
}

} // namespace

Value emitExp(ImplicitLocOpBuilder &b, Value x) {
  Formula f(b, x);
  // NaN passes both bounds, beyond which the result is 0 or infinity.
  Value bounded = f.select(f.less(x, -150), f.like(x, -150), x);
  bounded = f.select(f.greater(bounded, 130), f.like(x, 130), bounded);
  // Added to 1.5 * 2^23 a number is rounded, and its whole part is in the low bits.
  constexpr double kShift = 0x1.8p23;
  Value shifted = f.fma(bounded, std::numbers::log2e, f.like(x, kShift)), k = f.sub(shifted, f.like(x, kShift));
  Value r = f.fma(k, -6.93145752e-1, bounded);
  r = f.fma(k, -1.42860677e-6, r);
  Value p = f.polynomial(r, {1.37805939e-3, 8.37312452e-3, 4.16695364e-2, 1.66664720e-1, 4.99999851e-1, 1, 1});
  return scaleByPowerOfTwo(f, p, shifted, kShift);
}

Value emitLog(ImplicitLocOpBuilder &b, Value x) {
  Formula f(b, x);
  Value isSubnormal = f.less(x, std::numeric_limits<float>::min());
  Value scaled = f.select(isSubnormal, f.mul(x, f.like(x, 0x1p23)), x);
  Value k0 = f.select(isSubnormal, f.like(x, -23), f.like(x, 0));
  Value word = f.bits(scaled, f.i32());
  Value exponent = arith::AndIOp::create(b, f.addInt(word, f.likeInt(word, -0x3f2aaaab)),
                                         f.likeInt(word, static_cast<int32_t>(0xff800000)));
  Value m = f.sub(f.bits(arith::SubIOp::create(b, word, exponent), f.f32()), f.like(x, 1));
  Value k = f.fma(f.toFloat(exponent, f.f32()), 0x1p-23, k0);
  Value s = f.mul(m, m);
  Value r = f.polynomial(s, {-0.130310059, -0.121483512, -0.166846126, -0.249996200});
  Value t = f.polynomial(s, {0.140869141, 0.139814854, 0.200120345});
  r = f.fma(t, m, r);
  r = f.fma(r, m, 0.333331972);
  r = f.fma(r, m, -0.5);
  r = f.fma(r, s, m);
  r = f.fma(k, std::numbers::ln2, r);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  r = f.select(f.less(x, infinity), r, x); // Infinity and NaN.
  r = f.select(f.less(x, 0), f.like(x, std::nan("")), r);
  return f.select(f.compare(arith::CmpFPredicate::OEQ, x, 0), f.like(x, -infinity), r);
}

Value emitTanh(ImplicitLocOpBuilder &b, Value x) {
  Formula f(b, x);
  // Beyond this the result is 1 in f32. Comparisons with NaN are false, so that it stays.
  constexpr double kBound = 7.99881172180175781;
  Value bounded = f.select(f.greater(x, kBound), f.like(x, kBound), x);
  bounded = f.select(f.less(bounded, -kBound), f.like(x, -kBound), bounded);
  Value square = f.mul(bounded, bounded);
  Value numerator =
      f.mul(bounded, f.polynomial(square, {-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11,
                                           5.12229709037114e-08, 1.48572235717979e-05, 6.37261928875436e-04,
                                           4.89352455891786e-03}));
  Value denominator =
      f.polynomial(square, {1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03});
  return f.select(f.less(f.abs(x), 0.0004), x, f.div(numerator, denominator));
}

Value emitErf(ImplicitLocOpBuilder &b, Value x) {
  Formula f(b, x);
  Value size = f.abs(x), square = f.mul(x, x);
  Value r = f.fma(f.like(x, -1.72853470e-5), size, 3.83197126e-4);
  Value u = f.fma(f.like(x, -3.88396438e-3), size, 2.42546219e-2);
  r = f.fma(r, square, u);
  r = f.fma(r, size, -1.06777877e-1);
  r = f.fma(r, size, -6.34846687e-1);
  r = f.fma(r, size, -1.28717512e-1);
  r = f.fma(r, size, f.neg(size));
  Value large = f.copySign(f.sub(f.like(x, 1), emitExp(b, r)), x);
  // The polynomial leaves its range where the result is 1 already.
  large = f.select(f.greater(size, 4), f.copySign(f.like(x, 1), x), large);
  Value p = f.polynomial(square,
                         {-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1});
  return f.select(f.greater(size, 0.927734375), large, f.fma(p, x, x));
}

Value emitSin(ImplicitLocOpBuilder &b, Value x) { return sine(b, x, 0); }
Value emitCos(ImplicitLocOpBuilder &b, Value x) { return sine(b, x, 1); }

Value emitExpm1(ImplicitLocOpBuilder &b, Value narrow) {
  Formula f(b, narrow);
  Value bounded = f.select(f.greater(narrow, 100), f.like(narrow, 100), narrow);
  bounded = f.select(f.less(bounded, -100), f.like(narrow, -100), bounded);
  Value isNaN = f.isNaN(narrow), x = f.widen(f.select(isNaN, f.like(narrow, 0), bounded));
  Value large = f.sub(expWide(f, x), f.like(x, 1));
  Value small = f.fma(f.mul(x, x), 0.5, x); // e^x - 1 loses what e^x has in common with 1.
  Value result = f.narrow(f.select(f.less(f.abs(x), 0x1p-16), small, large));
  result = f.select(f.compare(arith::CmpFPredicate::OEQ, narrow, 0), narrow, result);
  return f.select(isNaN, narrow, result);
}

Value emitLog1p(ImplicitLocOpBuilder &b, Value narrow) {
  Formula f(b, narrow);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Value inRange = arith::AndIOp::create(b, f.greater(narrow, -1), f.less(narrow, infinity));
  Value x = f.widen(f.select(inRange, narrow, f.like(narrow, 1)));
  Value large = logWide(f, f.add(x, f.like(x, 1)));
  Value small = f.fma(f.mul(x, x), -0.5, x);
  Value result = f.narrow(f.select(f.less(f.abs(x), 0x1p-18), small, large));
  result = f.select(f.compare(arith::CmpFPredicate::OEQ, narrow, 0), narrow, result);
  Value outside = f.select(f.less(narrow, -1), f.like(narrow, std::nan("")), narrow); // Infinity and NaN.
  outside = f.select(f.compare(arith::CmpFPredicate::OEQ, narrow, -1), f.like(narrow, -infinity), outside);
  return f.select(inRange, result, outside);
}

} // namespace recast::fusion
