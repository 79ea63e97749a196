#include "runtime/fusion/Translate.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace recast::fusion {

namespace {

/// One operator being translated. Element-wise formulas are the reference evaluator's; where one has several
/// operations, f16 and bf16 are computed in f32 and rounded once.
struct Translation {
  const StepSpec &spec;
  RegionBuilder &b;
  std::span<const int> in;
  std::vector<int> &out;
  std::string reason;

  bool refuse(std::string why) {
    reason = std::move(why);
    return false;
  }
  bool give(int value) {
    out.push_back(value);
    return true;
  }
  bool has(size_t k) const { return k < in.size() && in[k] >= 0; }
  double attr(std::string_view name, double fallback) const { return spec.attrs.getFloat(name, fallback); }
  DType outType(size_t k = 0) const { return spec.outputs[k].dtype; }

  int number(int like, double value) { return b.like(like, value); }
  int negative(int x) { return b.less(x, number(x, 0)); }
  int exp(int x) { return b.unary(Op::Exp, x); }
  int onePlus(int x) { return b.plus(number(x, 1), x); }
  int scaled(int x, double by) { return b.times(x, number(x, by)); }
  int reciprocal(int x) { return b.over(number(x, 1), x); }
  int sigmoid(int x) { return reciprocal(onePlus(exp(b.unary(Op::Neg, x)))); }
  int softplus(int x) {
    int positive = b.select(b.less(number(x, 0), x), x, number(x, 0));
    return b.plus(positive, b.unary(Op::Log1p, exp(b.unary(Op::Neg, b.unary(Op::Abs, x)))));
  }
  /// NaN stays.
  int clamp(int x, int low, int high) {
    x = b.select(b.less(x, low), low, x);
    return b.select(b.less(high, x), high, x);
  }
};

using T = Translation;
using Fn = bool (*)(Translation &);

bool unaryFloat(T &t, int (*f)(T &, int)) {
  int x = t.in[0];
  if (!isFloat(t.b.typeOf(x)))
    return t.refuse("the operand is no float");
  return t.give(t.b.cast(f(t, t.b.widened(x)), t.b.typeOf(x)));
}
template <int (*f)(T &, int)> bool activation(T &t) { return unaryFloat(t, f); }
/// One operation, in the operand's own type.
template <Op op> bool simple(T &t) {
  bool isForAll = op == Op::Neg || op == Op::Abs;
  return isForAll || isFloat(t.b.typeOf(t.in[0])) ? t.give(t.b.unary(op, t.in[0]))
                                                  : t.refuse("the operand is no float");
}

int relu(T &t, int x) { return t.b.select(t.negative(x), t.number(x, 0), x); }
int reciprocalOf(T &t, int x) { return t.reciprocal(x); }
int sigmoidOf(T &t, int x) { return t.sigmoid(x); }
int softplusOf(T &t, int x) { return t.softplus(x); }
int softsign(T &t, int x) { return t.b.over(x, t.onePlus(t.b.unary(Op::Abs, x))); }
int mish(T &t, int x) { return t.b.times(x, t.b.unary(Op::Tanh, t.softplus(x))); }
int swish(T &t, int x) { return t.b.times(x, t.sigmoid(t.scaled(x, t.attr("alpha", 1)))); }
int hardSigmoid(T &t, int x) {
  int line = t.b.plus(t.scaled(x, t.attr("alpha", 0.2)), t.number(x, t.attr("beta", 0.5)));
  return t.clamp(line, t.number(x, 0), t.number(x, 1));
}
int hardSwish(T &t, int x) {
  int line = t.b.plus(t.b.over(x, t.number(x, 6)), t.number(x, 0.5));
  return t.b.times(x, t.clamp(line, t.number(x, 0), t.number(x, 1)));
}
int elu(T &t, int x) { return t.b.select(t.negative(x), t.scaled(t.b.unary(Op::Expm1, x), t.attr("alpha", 1)), x); }
int celu(T &t, int x) {
  double alpha = t.attr("alpha", 1);
  return t.b.select(t.negative(x), t.scaled(t.b.unary(Op::Expm1, t.b.over(x, t.number(x, alpha))), alpha), x);
}
int selu(T &t, int x) {
  int grown = t.scaled(t.b.unary(Op::Expm1, x), t.attr("alpha", 1.6732632423543772));
  int positive = t.b.less(t.number(x, 0), x);
  return t.scaled(t.b.select(positive, x, grown), t.attr("gamma", 1.0507009873554805));
}
int leakyRelu(T &t, int x) { return t.b.select(t.negative(x), t.scaled(x, t.attr("alpha", 0.01)), x); }
int thresholdedRelu(T &t, int x) {
  return t.b.select(t.b.compare(Op::LessEqual, x, t.number(x, t.attr("alpha", 1))), t.number(x, 0), x);
}
int sign(T &t, int x) {
  int below = t.b.select(t.negative(x), t.number(x, -1), x); // Zero and NaN stay.
  int zero = t.b.select(t.b.compare(Op::Equal, x, t.number(x, 0)), t.number(x, 0), below);
  return t.b.select(t.b.less(t.number(x, 0), x), t.number(x, 1), zero);
}
int gelu(T &t, int x) {
  int half = t.scaled(x, 0.5);
  if (t.spec.attrs.stringView("approximate", "none") != "tanh")
    return t.b.times(half, t.onePlus(t.b.unary(Op::Erf, t.scaled(x, std::numbers::sqrt2 / 2))));
  int cube = t.b.times(t.b.times(t.scaled(x, 0.044715), x), x);
  double scale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  return t.b.times(half, t.onePlus(t.b.unary(Op::Tanh, t.scaled(t.b.plus(x, cube), scale))));
}

bool integerRelu(T &t) {
  return isFloat(t.b.typeOf(t.in[0])) ? activation<relu>(t)
                                      : t.give(t.b.binary(Op::Max, t.in[0], t.number(t.in[0], 0)));
}
bool isNaN(T &t) { return t.give(t.b.logicalNot(t.b.compare(Op::Equal, t.in[0], t.in[0]))); }
bool isInf(T &t) {
  int x = t.in[0], found = -1;
  for (auto [name, sign] : {std::pair("detect_positive", 1.0), std::pair("detect_negative", -1.0)})
    if (t.spec.attrs.getInt(name, 1)) {
      int is = t.b.compare(Op::Equal, x, t.number(x, sign * std::numeric_limits<double>::infinity()));
      found = found < 0 ? is : t.b.binary(Op::Or, found, is);
    }
  return found < 0 ? t.refuse("it looks for nothing") : t.give(found);
}
bool logicalNot(T &t) { return t.give(t.b.logicalNot(t.in[0])); }

bool mayBroadcast(T &t) {
  return t.spec.version >= 7 || t.spec.inputs[0].dims == t.spec.inputs[1].dims ||
         t.refuse("operands broadcast as before opset 7");
}
template <Op op> bool binary(T &t) {
  if (op == Op::Div && !isFloat(t.b.typeOf(t.in[0])))
    return t.refuse("integer division may fail");
  return mayBroadcast(t) && t.give(t.b.binary(op, t.in[0], t.in[1]));
}
template <Op op, bool isSwapped = false> bool compare(T &t) {
  return mayBroadcast(t) && t.give(t.b.compare(op, t.in[isSwapped], t.in[!isSwapped]));
}
bool pRelu(T &t) {
  int x = t.b.widened(t.in[0]), slope = t.b.widened(t.in[1]);
  return t.give(t.b.cast(t.b.select(t.negative(x), t.b.times(slope, x), x), t.outType()));
}
/// In f64, whose rounding does not show in an f32.
bool anyPower(T &t) {
  DType type = t.b.typeOf(t.in[0]);
  if (type == DType::F64)
    return t.refuse("f64");
  int y = t.b.binary(Op::Pow, t.b.cast(t.in[0], DType::F64), t.b.cast(t.in[1], DType::F64));
  return mayBroadcast(t) && t.give(t.b.cast(t.b.cast(y, DType::F32), type));
}
bool power(T &t) {
  int x = t.in[0];
  DType type = t.b.typeOf(x);
  const TensorRef &constant = t.spec.constants[1];
  if (type == DType::F64 && t.has(1) && t.b.typeOf(t.in[1]) == DType::F64 && t.spec.outputs[0].elems() == 1)
    return t.give(t.b.binary(Op::Pow, x, t.in[1]));
  if (!isFloat(type))
    return t.refuse("a power of integers");
  if (!constant.data || constant.elems() != 1 || !isFloat(constant.dtype) ||
      t.spec.outputs[0].elems() != t.b.at(x).elems())
    return anyPower(t);
  double exponent = t.b.at(t.in[1]).number;
  if (exponent == 2)
    return t.give(t.b.times(x, x));
  if (exponent == 3) { // In f64, so that there is one rounding.
    int wide = t.b.cast(x, DType::F64);
    return t.give(t.b.cast(t.b.cast(t.b.times(t.b.times(wide, wide), wide), DType::F32), type));
  }
  int wide = t.b.widened(x);
  if (exponent == -1)
    return t.give(t.b.cast(t.reciprocal(wide), type));
  if (exponent != 0.5 && exponent != -0.5)
    return anyPower(t);
  // pow() gives +0 for -0 and infinity for -infinity.
  constexpr double infinity = std::numeric_limits<double>::infinity();
  int root = t.b.unary(Op::Sqrt, t.b.plus(wide, t.number(wide, 0)));
  root = t.b.select(t.b.compare(Op::Equal, wide, t.number(wide, -infinity)), t.number(wide, infinity), root);
  return t.give(t.b.cast(exponent < 0 ? t.reciprocal(root) : root, type));
}

/// Towards higher or lower bits. A count that is negative or no less than the type's bits moves all of them out.
bool bitShift(T &t) {
  RegionBuilder &b = t.b;
  DType type = b.typeOf(t.in[0]);
  size_t bytes = byteSize(type);
  DType bits = bytes == 1 ? DType::U8 : bytes == 2 ? DType::U16 : bytes == 4 ? DType::U32 : DType::U64;
  int x = b.cast(t.in[0], bits), count = b.cast(t.in[1], bits);
  auto shifted = [&](Op op, int word) {
    int isInside = b.less(count, b.constantInt(bits, static_cast<int64_t>(8 * bytes)));
    return b.select(isInside, b.binary(op, word, count), b.constantInt(bits, 0));
  };
  if (t.spec.attrs.stringView("direction", "") == "LEFT")
    return t.give(b.cast(shifted(Op::ShiftLeft, x), type));
  if (type == bits)
    return t.give(shifted(Op::ShiftRight, x));
  // What comes in on the left is the sign.
  int isNegative = b.less(t.in[0], b.constantInt(type, 0));
  int moved = shifted(Op::ShiftRight, b.select(isNegative, b.logicalNot(x), x));
  return t.give(b.cast(b.select(isNegative, b.logicalNot(moved), moved), type));
}

bool variadicSum(T &t, bool isMean) {
  int sum = t.b.cast(t.in[0], DType::F64);
  for (int x : t.in.subspan(1))
    sum = t.b.plus(sum, t.b.cast(x, DType::F64));
  if (isMean)
    sum = t.b.over(sum, t.number(sum, static_cast<double>(t.in.size())));
  DType type = t.outType();
  return t.give(type == DType::F64 ? sum : t.b.cast(t.b.cast(sum, DType::F32), type));
}
bool sum(T &t) { return variadicSum(t, false); }
bool mean(T &t) { return variadicSum(t, true); }
template <Op op> bool variadicExtreme(T &t) {
  int result = t.in[0];
  for (int x : t.in.subspan(1))
    result = t.b.binary(op, result, x);
  return t.give(result);
}
bool clip(T &t) {
  int x = t.in[0];
  auto bound = [&](size_t k, const char *name, double none) {
    if (t.spec.version < 11 && t.spec.attrs.has(name))
      return t.number(x, t.attr(name, 0));
    return t.has(k) ? t.b.view(t.in[k], {}) : isFloat(t.b.typeOf(x)) ? t.number(x, none) : -1;
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  int low = bound(1, "min", -infinity), high = bound(2, "max", infinity);
  if (low >= 0)
    x = t.b.select(t.b.less(x, low), low, x);
  if (high >= 0)
    x = t.b.select(t.b.less(high, x), high, x);
  return t.give(x);
}
bool where(T &t) { return t.give(t.b.select(t.in[0], t.in[1], t.in[2])); }
bool keepIf(T &t) { return t.give(t.b.select(t.b.view(t.in[0], {}), t.in[1], t.in[2])); }
bool castTo(T &t) {
  DType from = t.b.typeOf(t.in[0]), to = t.outType();
  bool isWide =
      from == DType::F64 || from == DType::I64 || from == DType::U64 || from == DType::I32 || from == DType::U32;
  if (isWide && (to == DType::F16 || to == DType::BF16))
    return t.refuse("a conversion that would round twice");
  return t.give(t.b.cast(t.in[0], to));
}
/// That drops nothing: a mask holds true everywhere.
bool dropout(T &t) {
  auto isZero = [&](size_t k) {
    const TensorRef *constant = k < t.spec.constants.size() ? &t.spec.constants[k] : nullptr;
    return constant && constant->data &&
           dispatchAny(constant->dtype, [&]<typename E>() { return static_cast<double>(*constant->as<E>()) == 0; });
  };
  bool isLeftOut = t.spec.inputs.size() < 3 || !t.spec.inputs[2].present() || isZero(2);
  if (t.spec.version < 12 ? t.spec.version < 7 : !isLeftOut && !isZero(1))
    return t.refuse("it drops elements");
  t.give(t.in[0]);
  if (t.spec.outputs.size() > 1 && t.spec.outputs[1].present())
    t.give(t.b.expand(t.b.constant(t.outType(1), 1), t.spec.outputs[1].dims));
  return true;
}
bool view(T &t) { return t.give(t.b.view(t.in[0], t.spec.outputs[0].dims)); }
bool expand(T &t) { return t.give(t.b.expand(t.in[0], t.spec.outputs[0].dims)); }

// Reductions. ---------------------------------------------------------------------------------------------------------

/// The axes that are reduced; false where they are not known.
bool readAxes(T &t, std::vector<int64_t> &axes) {
  std::span<const int64_t> listed = t.spec.attrs.intsView("axes");
  if (t.spec.inputs.size() > 1 && t.spec.inputs[1].present()) {
    const TensorRef &constant = t.spec.constants[1];
    if (!constant.data)
      return t.refuse("axes that are computed");
    listed = {constant.as<const int64_t>(), static_cast<size_t>(constant.elems())};
  }
  int64_t rank = t.spec.inputs[0].rank();
  for (int64_t axis : listed)
    axes.push_back(axis < 0 ? axis + rank : axis);
  if (listed.empty() && !t.spec.attrs.getInt("noop_with_empty_axes", 0))
    for (int64_t d = 0; d < rank; ++d)
      axes.push_back(d);
  std::ranges::sort(axes);
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return true;
}

int64_t countOver(std::span<const int64_t> dims, std::span<const int64_t> axes) {
  int64_t count = 1;
  for (int64_t axis : axes)
    count *= dims[static_cast<size_t>(axis)];
  return count;
}

enum class Term { Value, Magnitude, Square };
enum class Finish { None, Mean, Root, Log };

template <Term term, Finish finish = Finish::None, Op join = Op::ReduceSum> bool reduceTerms(T &t) {
  std::vector<int64_t> axes;
  int x = t.in[0];
  DType type = t.b.typeOf(x);
  if (!readAxes(t, axes))
    return false;
  if (type == DType::Bool || (!isFloat(type) && finish != Finish::None))
    return t.refuse("the operand is no float");
  int64_t count = countOver(t.spec.inputs[0].dims, axes);
  if (term == Term::Magnitude)
    x = t.b.unary(Op::Abs, x);
  if (term == Term::Square) {
    x = t.b.cast(x, isFloat(type) ? DType::F64 : DType::I64);
    x = t.b.times(x, x);
  }
  int sum = t.b.reduce(join, x, axes);
  if (finish == Finish::Mean)
    sum = t.b.over(sum, t.number(sum, static_cast<double>(count)));
  if (finish == Finish::Root || finish == Finish::Log)
    sum = t.b.unary(finish == Finish::Root ? Op::Sqrt : Op::Log, sum);
  if (isFloat(type) && type != DType::F64)
    sum = t.b.cast(sum, DType::F32);
  return t.give(t.b.view(t.b.cast(sum, type), t.spec.outputs[0].dims));
}

template <Op op> bool reduceExtreme(T &t) {
  std::vector<int64_t> axes;
  DType type = t.b.typeOf(t.in[0]);
  if (!readAxes(t, axes))
    return false;
  int x = type == DType::Bool ? t.b.cast(t.in[0], DType::U8) : t.b.widened(t.in[0]);
  int result = t.b.reduce(op, x, axes);
  return t.give(t.b.view(t.b.cast(result, type), t.spec.outputs[0].dims));
}

bool reduceTo(T &t) {
  std::vector<int64_t> axes;
  const std::vector<int64_t> &from = t.spec.inputs[0].dims, &to = t.spec.outputs[0].dims;
  for (size_t d = 0, skip = from.size() - to.size(); d < from.size(); ++d)
    if (d < skip || from[d] != to[d - skip])
      axes.push_back(static_cast<int64_t>(d));
  DType type = t.b.typeOf(t.in[0]);
  int sum = axes.empty() ? t.in[0] : t.b.reduce(Op::ReduceSum, t.in[0], axes);
  if (!axes.empty() && type != DType::F64)
    sum = t.b.cast(t.b.cast(sum, DType::F32), type);
  return t.give(t.b.view(sum, to));
}

/// The operand as rows of what softmax normalises; false where their elements do not lie side by side.
bool softmaxRows(T &t, size_t operand, int &rows) {
  const std::vector<int64_t> &dims = t.spec.inputs[operand].dims;
  bool isCoerced = t.spec.domain.empty() && t.spec.version < 13;
  int64_t rank = static_cast<int64_t>(dims.size()), axis = t.spec.attrs.getInt("axis", isCoerced ? 1 : -1);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank ||
      (!isCoerced && axis + 1 != rank && elementCount(std::span(dims).subspan(static_cast<size_t>(axis) + 1)) != 1))
    return t.refuse("softmax over an axis that is not the last");
  int64_t length = elementCount(std::span(dims).subspan(static_cast<size_t>(axis)));
  if (length == 1)
    return t.refuse("rows of one element");
  rows = t.b.widened(t.b.view(t.in[operand], {elementCount(dims) / length, length}));
  return true;
}

int rowSum(T &t, int x) { return t.b.cast(t.b.reduce(Op::ReduceSum, x, {1}), DType::F32); }

template <bool isLog> bool softmax(T &t) {
  int x;
  if (!softmaxRows(t, 0, x))
    return false;
  int shifted = t.b.minus(x, t.b.reduce(Op::ReduceMax, x, {1}));
  int powers = t.exp(shifted), total = t.b.reduce(Op::ReduceSum, powers, {1}), y;
  if (isLog)
    y = t.b.minus(shifted, t.b.cast(t.b.unary(Op::Log, total), DType::F32));
  else
    y = t.b.times(powers, t.b.cast(t.reciprocal(total), DType::F32));
  return t.give(t.b.view(t.b.cast(y, t.outType()), t.spec.outputs[0].dims));
}

template <bool isLog> bool softmaxGrad(T &t) {
  int dy, y;
  if (!softmaxRows(t, 0, dy) || !softmaxRows(t, 1, y))
    return false;
  int dx;
  if (isLog)
    dx = t.b.minus(dy, t.b.times(t.exp(y), rowSum(t, dy)));
  else
    dx = t.b.times(y, t.b.minus(dy, rowSum(t, t.b.times(dy, y))));
  return t.give(t.b.view(t.b.cast(dx, t.outType()), t.spec.outputs[0].dims));
}

/// Sums are f64, so that neither the mean nor the variance loses digits; elements are f32.
template <bool isCentered> bool layerNorm(T &t) {
  int x = t.b.widened(t.in[0]);
  const std::vector<int64_t> &dims = t.spec.inputs[0].dims;
  int64_t rank = static_cast<int64_t>(dims.size()), axis = t.spec.attrs.getInt("axis", -1);
  axis += axis < 0 ? rank : 0;
  if (axis < 0 || axis >= rank)
    return t.refuse("the axis is outside of the rank");
  std::vector<int64_t> axes;
  for (int64_t d = axis; d < rank; ++d)
    axes.push_back(d);
  double count = static_cast<double>(countOver(dims, axes));
  auto meanOf = [&](int value) {
    int total = t.b.reduce(Op::ReduceSum, value, axes);
    return t.b.over(total, t.number(total, count));
  };
  int average = -1, centered = x;
  if (isCentered) {
    average = meanOf(x);
    centered = t.b.minus(x, t.b.cast(average, DType::F32));
  }
  int variance = meanOf(t.b.times(centered, centered));
  int inverse = t.reciprocal(t.b.unary(Op::Sqrt, t.b.plus(variance, t.number(variance, t.attr("epsilon", 1e-5)))));
  int y = t.b.times(centered, t.b.cast(inverse, DType::F32));
  y = t.b.times(y, t.b.widened(t.in[1]));
  if (isCentered && t.has(2))
    y = t.b.plus(y, t.b.widened(t.in[2]));
  t.give(t.b.cast(y, t.outType()));
  for (size_t k = 1; k < t.spec.outputs.size(); ++k) {
    if (t.spec.outputs[k].present() && t.outType(k) != DType::F32)
      return t.refuse("statistics that are no f32");
    t.give(t.b.view(t.b.cast(k == 1 ? average : inverse, DType::F32), t.spec.outputs[k].dims));
  }
  return true;
}

// Losses. ------------------------------------------------------------------------------------------------------------

/// What the loss and its gradient share. Scores are [N, C] with nothing behind; a class has no weight.
struct LossTerms {
  int shifted;       ///< Scores less their row's maximum, f32.
  int powers, total; ///< e^shifted; its sum over the row, f64.
  int isLabel;       ///< [N, C]
  int isKept;        ///< [N, 1]; -1: all are.
  int count;         ///< Of labels that count, f64.
};

bool lossTerms(T &t, size_t first, LossTerms &terms) {
  RegionBuilder &b = t.b;
  const std::vector<int64_t> &dims = t.spec.inputs[first].dims;
  int64_t elems = elementCount(dims), classes = dims.size() < 2 ? 0 : dims[1];
  if (classes < 2 || dims[0] * classes != elems || t.spec.inputs[first + 1].elems() != dims[0])
    return t.refuse("scores that are no rows");
  if (t.has(first + 2))
    return t.refuse("weights of classes");
  int labels = t.in[first + 1];
  while (b.at(labels).op == Op::View)
    labels = b.at(labels).args[0];
  if (b.at(labels).op != Op::Input)
    return t.refuse("labels that the region computes");
  bool ignores = t.spec.attrs.has("ignore_index");
  int64_t ignoreIndex = t.spec.attrs.getInt("ignore_index", 0);
  b.region.checks.push_back(
      {b.at(labels).index, classes, ignores, ignoreIndex, "'" + t.spec.name + "' (" + t.spec.op + ")"});
  labels = b.cast(b.view(labels, {dims[0], 1}), DType::I64);
  int x = b.widened(b.view(t.in[first], {dims[0], classes}));
  terms.shifted = b.minus(x, b.reduce(Op::ReduceMax, x, {1}));
  terms.powers = t.exp(terms.shifted);
  terms.total = b.reduce(Op::ReduceSum, terms.powers, {1});
  // In 32 bits, where they have room: what lies outside is no label, and checked before.
  DType narrow = classes < int64_t(1) << 31 ? DType::I32 : DType::I64;
  terms.isLabel = b.compare(Op::Equal, b.cast(labels, narrow), b.cast(b.counter({1, classes}), narrow));
  terms.isKept = ignores ? b.logicalNot(b.compare(Op::Equal, labels, b.constantInt(DType::I64, ignoreIndex))) : -1;
  terms.count = ignores ? b.reduce(Op::ReduceSum, b.cast(terms.isKept, DType::F64), {0, 1})
                        : b.constant(DType::F64, static_cast<double>(dims[0]));
  return true;
}

/// A number of f64 in the type of an output.
int roundedTo(T &t, int x, DType type) { return type == DType::F64 ? x : t.b.cast(t.b.cast(x, DType::F32), type); }

bool crossEntropy(T &t) {
  RegionBuilder &b = t.b;
  LossTerms terms;
  if (!lossTerms(t, 0, terms))
    return false;
  int logTotal = b.unary(Op::Log, terms.total);
  int lowest = t.number(terms.shifted, -std::numeric_limits<double>::infinity());
  int picked = b.reduce(Op::ReduceMax, b.select(terms.isLabel, terms.shifted, lowest), {1});
  int loss = b.minus(logTotal, b.cast(picked, DType::F64));
  if (terms.isKept >= 0)
    loss = b.select(terms.isKept, loss, t.number(loss, 0));
  std::string_view reduction = t.spec.attrs.stringView("reduction", "mean");
  if (reduction != "none")
    loss = b.reduce(Op::ReduceSum, loss, {0, 1});
  if (reduction == "mean")
    loss = b.over(loss, terms.count);
  t.give(b.view(roundedTo(t, loss, t.outType()), t.spec.outputs[0].dims));
  if (t.spec.outputs.size() > 1 && t.spec.outputs[1].present())
    t.give(b.view(b.cast(b.minus(terms.shifted, b.cast(logTotal, DType::F32)), t.outType(1)), t.spec.outputs[1].dims));
  return true;
}

// (softmax(scores) - onehot(label)) * factor; 0 where the label is ignored.
bool crossEntropyGrad(T &t) {
  RegionBuilder &b = t.b;
  LossTerms terms;
  if (!lossTerms(t, 1, terms))
    return false;
  std::string_view reduction = t.spec.attrs.stringView("reduction", "mean");
  int factor = b.cast(t.in[0], DType::F64);
  factor = b.view(factor, reduction == "none" ? std::vector<int64_t>{b.at(factor).elems(), 1} : std::vector<int64_t>());
  if (reduction == "mean")
    factor = b.over(factor, terms.count);
  int dx = b.times(terms.powers, b.cast(b.over(factor, terms.total), DType::F32));
  int narrow = b.cast(factor, DType::F32);
  dx = b.minus(dx, b.select(terms.isLabel, narrow, t.number(narrow, 0)));
  if (terms.isKept >= 0)
    dx = b.select(terms.isKept, dx, t.number(dx, 0));
  return t.give(b.view(b.cast(dx, t.outType()), t.spec.outputs[0].dims));
}

// Random masks: docs/random.md. ---------------------------------------------------------------------------------------

/// squares32 at each place of the output, u64.
int squares32(T &t) {
  RegionBuilder &b = t.b;
  auto word = [&](uint64_t value) { return b.constantInt(DType::U64, static_cast<int64_t>(value)); };
  auto shift = [&](Op op, int x, uint64_t by) { return b.binary(op, x, word(by)); };
  int z = b.plus(b.cast(b.view(t.in[0], {}), DType::U64), word(0x9e3779b97f4a7c15u));
  z = b.times(b.binary(Op::Xor, z, shift(Op::ShiftRight, z, 30)), word(0xbf58476d1ce4e5b9u));
  z = b.times(b.binary(Op::Xor, z, shift(Op::ShiftRight, z, 27)), word(0x94d049bb133111ebu));
  int key = b.binary(Op::Or, b.binary(Op::Xor, z, shift(Op::ShiftRight, z, 31)), word(1));

  uint64_t first = static_cast<uint64_t>(t.spec.attrs.getInt("offset", 0)) << 40;
  int counter = b.plus(b.cast(b.counter(t.spec.outputs[0].dims), DType::U64), word(first));
  int x = b.times(counter, key), y = x, next = b.plus(y, key);
  auto square = [&](int addend) { x = b.plus(b.times(x, x), addend); };
  for (int addend : {y, next, y}) {
    square(addend);
    x = b.binary(Op::Or, shift(Op::ShiftRight, x, 32), shift(Op::ShiftLeft, x, 32));
  }
  square(next);
  return shift(Op::ShiftRight, x, 32);
}

bool dropoutMask(T &t) {
  RegionBuilder &b = t.b;
  int number = squares32(t);
  int ratio = b.cast(b.view(t.in[2], {}), DType::F64);
  int bits = b.unary(Op::Ceil, b.times(ratio, t.number(ratio, 0x1p32)));
  bits = t.clamp(bits, t.number(bits, 0), t.number(bits, 0x1p32));
  return t.give(b.compare(Op::LessEqual, b.cast(bits, DType::U64), number));
}

bool randomUniform(T &t) {
  RegionBuilder &b = t.b;
  int upper = b.cast(b.binary(Op::ShiftRight, squares32(t), b.constantInt(DType::U64, 8)), DType::F32);
  return t.give(b.times(upper, t.number(upper, 0x1p-24)));
}

struct Row {
  std::string_view domain, op;
  Fn translate;
};

constexpr Row kRows[] = {
    {"", "Neg", simple<Op::Neg>},
    {"", "Abs", simple<Op::Abs>},
    {"", "Exp", simple<Op::Exp>},
    {"", "Log", simple<Op::Log>},
    {"", "Sqrt", simple<Op::Sqrt>},
    {"", "Tanh", simple<Op::Tanh>},
    {"", "Erf", simple<Op::Erf>},
    {"", "Sin", simple<Op::Sin>},
    {"", "Cos", simple<Op::Cos>},
    {"", "Floor", simple<Op::Floor>},
    {"", "Ceil", simple<Op::Ceil>},
    {"", "Round", simple<Op::Round>},
    {"", "Relu", integerRelu},
    {"", "Reciprocal", activation<reciprocalOf>},
    {"", "Sigmoid", activation<sigmoidOf>},
    {"", "Softplus", activation<softplusOf>},
    {"", "Softsign", activation<softsign>},
    {"", "Mish", activation<mish>},
    {"", "Swish", activation<swish>},
    {"", "HardSigmoid", activation<hardSigmoid>},
    {"", "HardSwish", activation<hardSwish>},
    {"", "Elu", activation<elu>},
    {"", "Celu", activation<celu>},
    {"", "Selu", activation<selu>},
    {"", "LeakyRelu", activation<leakyRelu>},
    {"", "ThresholdedRelu", activation<thresholdedRelu>},
    {"", "Sign", activation<sign>},
    {"", "Gelu", activation<gelu>},
    {"", "IsNaN", isNaN},
    {"", "IsInf", isInf},
    {"", "Not", logicalNot},
    {"", "BitwiseNot", logicalNot},
    {"", "Add", binary<Op::Add>},
    {"", "Sub", binary<Op::Sub>},
    {"", "Mul", binary<Op::Mul>},
    {"", "Div", binary<Op::Div>},
    {"", "And", binary<Op::And>},
    {"", "Or", binary<Op::Or>},
    {"", "Xor", binary<Op::Xor>},
    {"", "BitwiseAnd", binary<Op::And>},
    {"", "BitwiseOr", binary<Op::Or>},
    {"", "BitwiseXor", binary<Op::Xor>},
    {"", "BitShift", bitShift},
    {"", "Equal", compare<Op::Equal>},
    {"", "Less", compare<Op::Less>},
    {"", "LessOrEqual", compare<Op::LessEqual>},
    {"", "Greater", compare<Op::Less, true>},
    {"", "GreaterOrEqual", compare<Op::LessEqual, true>},
    {"", "PRelu", pRelu},
    {"", "Pow", power},
    {"", "Sum", sum},
    {"", "Mean", mean},
    {"", "Max", variadicExtreme<Op::Max>},
    {"", "Min", variadicExtreme<Op::Min>},
    {"", "Clip", clip},
    {"", "Where", where},
    {"", "Cast", castTo},
    {"", "CastLike", castTo},
    {"", "Dropout", dropout},
    {"", "Identity", view},
    {"", "Reshape", view},
    {"", "Flatten", view},
    {"", "Squeeze", view},
    {"", "Unsqueeze", view},
    {"", "Expand", expand},
    {"", "ReduceSum", reduceTerms<Term::Value>},
    {"", "ReduceMean", reduceTerms<Term::Value, Finish::Mean>},
    {"", "ReduceL1", reduceTerms<Term::Magnitude>},
    {"", "ReduceL2", reduceTerms<Term::Square, Finish::Root>},
    {"", "ReduceSumSquare", reduceTerms<Term::Square>},
    {"", "ReduceLogSum", reduceTerms<Term::Value, Finish::Log>},
    {"", "ReduceProd", reduceTerms<Term::Value, Finish::None, Op::ReduceProd>},
    {"", "ReduceMax", reduceExtreme<Op::ReduceMax>},
    {"", "ReduceMin", reduceExtreme<Op::ReduceMin>},
    {"", "Softmax", softmax<false>},
    {"", "LogSoftmax", softmax<true>},
    {"", "LayerNormalization", layerNorm<true>},
    {"", "RMSNormalization", layerNorm<false>},
    {"", "SoftmaxCrossEntropyLoss", crossEntropy},
    {"recast", "cross_entropy_grad", crossEntropyGrad},
    {"recast", "softmax_grad", softmaxGrad<false>},
    {"recast", "log_softmax_grad", softmaxGrad<true>},
    {"recast", "reduce_to", reduceTo},
    {"recast", "keep_if", keepIf},
    {"recast", "dropout_mask", dropoutMask},
    {"recast", "random_uniform", randomUniform},
};

const Row *findRow(const StepSpec &spec) {
  auto row =
      std::ranges::find_if(kRows, [&](const Row &row) { return row.domain == spec.domain && row.op == spec.op; });
  return row == std::end(kRows) ? nullptr : row;
}

bool isSupported(DType type) { return byteSize(type) != 0 && !isFloat8(type); }

} // namespace

bool hasForm(const StepSpec &spec) { return findRow(spec) != nullptr; }

bool readsValue(const StepSpec &spec, size_t operand) {
  if (spec.op.starts_with("Reduce") || spec.op == "Reshape" || spec.op == "Squeeze" || spec.op == "Unsqueeze" ||
      spec.op == "Expand" || spec.op == "CastLike" || spec.op == "Dropout" || spec.op == "reduce_to" ||
      spec.op == "dropout_mask" || spec.op == "random_uniform")
    return operand == 0 || (operand == 2 && spec.op == "dropout_mask");
  return true;
}

bool translate(const StepSpec &spec, RegionBuilder &b, std::span<const int> in, std::vector<int> &out,
               std::string &reason) {
  const Row *row = findRow(spec);
  if (!row) {
    reason = "no form for it";
    return false;
  }
  for (const std::vector<TensorType> *types : {&spec.inputs, &spec.outputs})
    for (const TensorType &type : *types)
      if (type.present() && (!isSupported(type.dtype) || type.elems() == 0)) {
        reason = type.elems() == 0 ? "a tensor without elements" : std::string(name(type.dtype));
        return false;
      }
  Translation translation{spec, b, in, out, {}};
  if (row->translate(translation))
    return true;
  reason = std::move(translation.reason);
  return false;
}

} // namespace recast::fusion
