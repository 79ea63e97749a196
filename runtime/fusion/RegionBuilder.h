// Makes the values of a region, with types and dims.
#pragma once
#include "runtime/fusion/Region.h"

namespace recast::fusion {

class RegionBuilder {
public:
  Region region;

  const Expr &at(int value) const { return region.values[static_cast<size_t>(value)]; }
  DType typeOf(int value) const { return at(value).type; }
  const std::vector<int64_t> &dimsOf(int value) const { return at(value).dims; }

  int add(Expr expr) {
    region.values.push_back(std::move(expr));
    return static_cast<int>(region.values.size()) - 1;
  }
  int input(const TensorType &type);
  /// A number without dimensions, rounded to the type.
  int constant(DType type, double value);
  int constantInt(DType type, int64_t value);
  int like(int x, double value) { return constant(typeOf(x), value); }
  int counter(std::vector<int64_t> dims);

  /// Element-wise, of the first operand's type.
  int unary(Op op, int x) { return add({op, typeOf(x), dimsOf(x), {x}}); }
  int binary(Op op, int x, int y);
  int plus(int x, int y) { return binary(Op::Add, x, y); }
  int minus(int x, int y) { return binary(Op::Sub, x, y); }
  int times(int x, int y) { return binary(Op::Mul, x, y); }
  int over(int x, int y) { return binary(Op::Div, x, y); }
  int compare(Op op, int x, int y);
  int less(int x, int y) { return compare(Op::Less, x, y); }
  int logicalNot(int x) { return unary(Op::Not, x); }
  int select(int condition, int x, int y);
  /// `x` itself where it has the type.
  int cast(int x, DType type);
  int view(int x, std::vector<int64_t> dims);
  int expand(int x, std::vector<int64_t> dims);
  /// Axes keep size 1. ReduceSum and ReduceProd widen to F64 or I64.
  int reduce(Op op, int x, std::vector<int64_t> axes);
  /// f32 for the 16-bit types.
  int widened(int x) { return byteSize(typeOf(x)) == 2 && isFloat(typeOf(x)) ? cast(x, DType::F32) : x; }
};

/// NumPy's; empty dims where they do not fit, which operators of a model never have.
std::vector<int64_t> broadcastDims(std::span<const int64_t> a, std::span<const int64_t> b);

} // namespace recast::fusion
