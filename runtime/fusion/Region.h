// What a region computes, apart from how: values over dense row-major tensors, each element-wise with NumPy's
// broadcasting, another view of its operand, or a reduction. Plain structs without MLIR.
#pragma once
#include "runtime/plan/Tensor.h"
#include <cstdint>

namespace recast::fusion {

enum class Op : uint8_t {
  Input,    ///< Operand `index` of the region.
  Constant, ///< `number` (floats) or `integer` (integers, bool), without dimensions.
  Counter,  ///< The row-major number of each element, I64.
  // Floats; f16 and bf16 are computed in f32 and rounded.
  Neg,
  Abs,
  Exp,
  Log,
  Sqrt,
  Tanh,
  Erf,
  Sin,
  Cos,
  Expm1,
  Log1p,
  Floor,
  Ceil,
  Round, ///< Halves to even.
  // Numbers; integers wrap around.
  Add,
  Sub,
  Mul,
  Div, ///< Floats only.
  Pow, ///< F64 only.
  Max, ///< NaN where an operand is NaN.
  Min,
  // Bool results. Comparisons with NaN are false.
  Less,
  LessEqual,
  Equal,
  Not,
  And, ///< Bool or bits.
  Or,
  Xor,
  ShiftRight, ///< Of unsigned integers.
  ShiftLeft,
  Select, ///< Condition, then, else.
  Cast,
  // Elements in other places.
  View,   ///< The same elements in the same order under other dims.
  Expand, ///< Broadcast to `dims`.
  // Over `axes`, which stay with size 1. Sums and products of floats are F64, of integers I64; extremes have the
  // operand's type and give NaN where there is one.
  ReduceSum,
  ReduceProd,
  ReduceMax,
  ReduceMin,
};

inline bool isReduction(Op op) { return op >= Op::ReduceSum; }
inline bool isExtreme(Op op) { return op == Op::ReduceMax || op == Op::ReduceMin; }

struct Expr {
  Op op = Op::Input;
  DType type = DType::Undefined;
  std::vector<int64_t> dims = {};
  std::vector<int> args = {}; ///< Earlier values.
  std::vector<int64_t> axes = {};
  double number = 0;
  int64_t integer = 0;
  int index = 0;
  int64_t elems() const { return elementCount(dims); }
};

/// Integers of an input that must lie in [0, classes), or be `ignoreIndex` where `ignores`: else the step fails, in the
/// name of a node.
struct LabelCheck {
  int input;
  int64_t classes;
  bool ignores;
  int64_t ignoreIndex;
  std::string node; ///< "'loss' (SoftmaxCrossEntropyLoss)"
};

struct Region {
  std::vector<TensorType> inputs;
  std::vector<LabelCheck> checks = {};
  std::vector<Expr> values; ///< In an order in which they can be computed.
  std::vector<int> outputs; ///< Values; each is written whole, in its own type.
};

} // namespace recast::fusion
