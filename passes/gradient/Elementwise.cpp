// Element-wise operators. dx = dy * f'(x), in terms of y where that is cheaper. Where f' is unbounded a gradient of
// zero stays zero, so that a branch that Where did not select adds nothing (PyTorch gives NaN there).
#include "passes/gradient/RuleHelpers.h"
#include <cmath>
#include <numbers>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// --- One input ---

template <auto derivative> LogicalResult applyUnary(RuleContext &c) {
  if (c.needs(0))
    c.add(0, derivative(c, c.dy()));
  return success();
}

template <auto derivative> constexpr Rule unary(StringLiteral op) {
  return {"", op, 1, kNewest, Kind::Rule, applyUnary<derivative>, 1};
}

constexpr Rule zero(StringLiteral op) { return {"", op, 1, kNewest, Kind::Zero}; }

Value positive(RuleContext &c, Value x) { return c.b.node("Greater", {x, c.b.scalarLike(x, 0)}); }

// x > 0 ? above : below
Value bySign(RuleContext &c, Value above, Value below) { return choose(c.b, positive(c, c.x()), above, below); }

// scale - v
Value minusFrom(RuleContext &c, double scale, Value v) { return c.b.sub(c.b.scalarLike(v, scale), v); }

Value absGrad(RuleContext &c, Value dy) { return c.b.mul(dy, signOf(c.b, c.x())); }

// dy / (2 y)
Value sqrtGrad(RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.div(dy, c.b.mulScalar(c.y(), 2))); }

// -dy * y^2
Value reciprocalGrad(RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.mul(c.b.neg(dy), c.b.square(c.y()))); }

Value expGrad(RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.mul(dy, c.y())); }

// +-dy / sqrt(1 - x^2)
Value asinGrad(RuleContext &c, Value dy) {
  return unlessZero(c.b, dy, c.b.div(dy, c.b.node("Sqrt", {minusFrom(c, 1, c.b.square(c.x()))})));
}

Value erfGrad(RuleContext &c, Value dy) {
  Value bell = c.b.node("Exp", {c.b.neg(c.b.square(c.x()))});
  return c.b.mul(dy, c.b.mulScalar(bell, 2 * std::numbers::inv_sqrtpi));
}

Value eluGrad(RuleContext &c, Value dy) {
  Value slope = c.b.mulScalar(c.b.node("Exp", {c.x()}), c.node.getFloat("alpha", 1));
  return bySign(c, dy, c.b.mul(dy, slope));
}

Value seluGrad(RuleContext &c, Value dy) {
  double alpha = c.node.getFloat("alpha", 1.6732632423543772);
  double gamma = c.node.getFloat("gamma", 1.0507009873554805);
  Value below = c.b.mul(dy, c.b.mulScalar(c.b.node("Exp", {c.x()}), alpha * gamma));
  return bySign(c, c.b.mulScalar(dy, gamma), below);
}

Value celuGrad(RuleContext &c, Value dy) {
  Value scaled = c.b.div(c.x(), c.b.scalarLike(c.x(), c.node.getFloat("alpha", 1)));
  return bySign(c, dy, c.b.mul(dy, c.b.node("Exp", {scaled})));
}

// y = max(0, min(1, alpha x + beta)): the slope counts strictly inside.
// The slope is the file's float, as it stands, also in f64: PyTorch's double backward multiplies by 1.0f / 6.0f too.
Value hardSigmoidGrad(RuleContext &c, Value dy) {
  auto alpha = c.node->getAttrOfType<FloatAttr>("alpha");
  Value inside = both(c.b, positive(c, c.y()), c.b.node("Less", {c.y(), c.b.scalarLike(c.y(), 1)}));
  return select(c.b, inside, c.b.mulScalar(dy, alpha ? alpha.getValueAsDouble() : 0.2));
}

// y = x max(0, min(1, x/6 + 1/2)): 0 up to -3, 1 from 3, x/3 + 1/2 between.
Value hardSwishGrad(RuleContext &c, Value dy) {
  NodeBuilder &b = c.b;
  Value x = c.x();
  Value slope = b.addScalar(b.div(x, b.scalarLike(x, 3)), 0.5);
  Value upper = b.where(b.node("Less", {x, b.scalarLike(x, 3)}), b.mul(dy, slope), dy);
  return select(b, b.node("Greater", {x, b.scalarLike(x, -3)}), upper);
}

// y = x / (1 + |x|)
Value softsignGrad(RuleContext &c, Value dy) {
  return c.b.div(dy, c.b.square(c.b.addScalar(c.b.node("Abs", {c.x()}), 1)));
}

// y = x t with t = tanh(softplus(x)): t + x sigmoid(x) (1 - t^2)
Value mishGrad(RuleContext &c, Value dy) {
  NodeBuilder &b = c.b;
  Value t = b.node("Tanh", {b.node("Softplus", {c.x()})});
  Value inner = b.mul(b.mul(c.x(), b.node("Sigmoid", {c.x()})), minusFrom(c, 1, b.square(t)));
  return b.mul(dy, b.add(t, inner));
}

// y = x s with s = sigmoid(alpha x): s + alpha x s (1 - s)
Value swishGrad(RuleContext &c, Value dy) {
  NodeBuilder &b = c.b;
  Value scaled = b.mulScalar(c.x(), c.node.getFloat("alpha", 1));
  Value s = b.node("Sigmoid", {scaled});
  return b.mul(dy, b.add(s, b.mul(b.mul(scaled, s), minusFrom(c, 1, s))));
}

// Exact: Phi(x) + x phi(x). tanh: (1 + t)/2 + x/2 (1 - t^2) k (1 + 3 a x^2), t = tanh(k (x + a x^3)), k = sqrt(2/pi).
Value geluGrad(RuleContext &c, Value dy) {
  NodeBuilder &b = c.b;
  Value x = c.x(), squared = b.square(x);
  if (c.node.getString("approximate", "none") == "none") {
    Value cdf = b.addScalar(b.mulScalar(b.node("Erf", {b.mulScalar(x, std::numbers::sqrt2 / 2)}), 0.5), 0.5);
    Value density =
        b.mulScalar(b.node("Exp", {b.mulScalar(squared, -0.5)}), std::numbers::inv_sqrtpi / std::numbers::sqrt2);
    return b.mul(dy, b.add(cdf, b.mul(x, density)));
  }
  const double k = std::sqrt(2 * std::numbers::inv_pi), a = 0.044715;
  Value t = b.node("Tanh", {b.mul(x, b.addScalar(b.mulScalar(squared, k * a), k))});
  Value slope = b.addScalar(b.mulScalar(squared, 3 * k * a), k);
  Value half = b.mulScalar(b.addScalar(t, 1), 0.5);
  return b.mul(dy, b.add(half, b.mul(b.mul(b.mulScalar(x, 0.5), slope), minusFrom(c, 1, b.square(t)))));
}

// The bounds are attributes up to version 6, inputs since 11. On a bound the gradient is 0, as for Relu: PyTorch's
// convention of the subgradient with the least norm (pytorch/pytorch#191142; before, it passed there).
LogicalResult clipGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  auto bound = [&](StringRef attribute, unsigned input) -> Value {
    if (c.node.hasAttr(attribute))
      return b.scalarLike(c.x(), c.node.getFloat(attribute, 0));
    return c.x(input);
  };
  Value low = bound("min", 1), high = bound("max", 2), x = c.x();
  if (c.needs(0)) {
    Value dx = c.dy();
    if (low)
      dx = select(b, b.node("Greater", {x, low}), dx);
    if (high)
      dx = select(b, b.node("Less", {x, high}), dx);
    c.add(0, dx);
  }
  if (c.needs(1)) {
    Value isLow = b.node("Less", {x, low});
    if (high)
      isLow = both(b, isLow, b.node("Less", {low, high}));
    c.addReduced(1, select(b, isLow, c.dy()));
  }
  if (c.needs(2)) {
    Value isHigh = b.node("Greater", {x, high});
    if (low)
      isHigh = b.node("Or", {isHigh, b.node("Less", {high, low})});
    c.addReduced(2, select(b, isHigh, c.dy()));
  }
  return success();
}

LogicalResult castGrad(RuleContext &c) {
  if (c.needs(0) && isFloatTensor(c.x()) && isFloatTensor(c.dy()))
    c.add(0, c.b.castLike(c.dy(), c.x()));
  return success();
}

// --- With broadcasting ---

LogicalResult addGrad(RuleContext &c) {
  for (unsigned i = 0; i < c.node.numInputs(); ++i)
    if (c.needs(i))
      c.addReduced(i, c.dy());
  return success();
}

LogicalResult subGrad(RuleContext &c) {
  if (c.needs(0))
    c.addReduced(0, c.dy());
  if (c.needs(1))
    c.addReduced(1, c.b.neg(c.dy()));
  return success();
}

LogicalResult mulGrad(RuleContext &c) {
  if (c.x(0) == c.x(1)) { // a square: one gradient instead of two that are summed
    c.add(0, c.b.mul(c.dy(), c.b.mulScalar(c.x(0), 2)));
    return success();
  }
  for (unsigned i : {0, 1})
    if (c.needs(i))
      c.addReduced(i, c.b.mul(c.dy(), c.x(1 - i)));
  return success();
}

LogicalResult divGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value quotient = b.div(c.dy(), c.x(1));
  std::optional<double> divisor = constantScalar(c.x(1), /*splat=*/true);
  bool finite = divisor && *divisor != 0 && !c.needs(1);
  Value isZero = finite ? Value() : equalTo(b, c.dy(), 0);
  if (c.needs(0))
    c.addReduced(0, finite ? quotient : unless(b, isZero, quotient));
  if (c.needs(1))
    c.addReduced(1, unless(b, isZero, b.mul(b.neg(quotient), c.y())));
  return success();
}

// dy e x^(e-1) for an exponent that is one constant number.
Value powConstant(RuleContext &c, double exponent) {
  NodeBuilder &b = c.b;
  Value dy = c.dy(), x = c.x(), y = c.y();
  auto scaled = [&](Value slope) { return b.mul(dy, b.mulScalar(slope, exponent)); };
  if (exponent == 1)
    return dy;
  if (exponent == 2)
    return scaled(x);
  if (exponent == 3)
    return scaled(b.square(x));
  if (exponent == 0.5)
    return unlessZero(b, dy, b.div(b.mulScalar(dy, 0.5), y));
  if (exponent == -0.5)
    return unlessZero(b, dy, scaled(b.mul(y, b.square(y))));
  if (exponent == -1)
    return unlessZero(b, dy, scaled(b.square(y)));
  Value dx = scaled(b.node("Pow", {x, b.scalarLike(x, exponent - 1)}));
  return exponent > 1 ? dx : unlessZero(b, dy, dx);
}

LogicalResult powGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value dy = c.dy(), x = c.x();
  Value exponent = b.castLike(c.x(1), x);
  Value isZero = equalTo(b, dy, 0);
  std::optional<double> constant = c.needs(1) ? std::nullopt : constantScalar(c.x(1), /*splat=*/true);
  if (c.needs(0) && constant == 0)
    c.add(0, b.zerosLike(x));
  else if (c.needs(0) && constant)
    c.addReduced(0, powConstant(c, *constant));
  else if (c.needs(0)) {
    Value slope = b.mul(exponent, b.node("Pow", {x, b.addScalar(exponent, -1)}));
    Value flat = b.node("Or", {isZero, equalTo(b, exponent, 0)});
    c.addReduced(0, unless(b, flat, b.mul(dy, slope)));
  }
  if (c.needs(1)) {
    // x^e log(x); its limit is 0 at x = 0 for e > 0, and PyTorch takes 0 for e = 0 too.
    Value atZero = both(b, equalTo(b, x, 0), b.compare("GreaterOrEqual", exponent, b.scalarLike(x, 0)));
    Value slope = b.mul(c.y(), b.node("Log", {x}));
    c.addReduced(1, unless(b, b.node("Or", {isZero, atZero}), b.mul(dy, slope)));
  }
  return success();
}

// Inputs that share the extremum share the gradient evenly.
LogicalResult extremumGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  unsigned n = c.node.numInputs();
  if (n == 1)
    return addGrad(c);
  if (n == 2) {
    StringRef wins = c.node.opType() == "Max" ? "Greater" : "Less";
    Value shared = select(b, equal(b, c.x(0), c.x(1)), b.mulScalar(c.dy(), 0.5));
    for (unsigned i : {0, 1})
      if (c.needs(i)) {
        Value isMine = b.node(wins, {c.x(i), c.x(1 - i)});
        c.addReduced(i, choose(b, isMine, c.dy(), shared));
      }
    return success();
  }
  SmallVector<Value> isBest;
  Value count;
  for (unsigned i = 0; i < n; ++i) {
    isBest.push_back(equal(b, c.x(i), c.y()));
    Value one = b.castLike(isBest.back(), c.dy());
    count = count ? b.add(count, one) : one;
  }
  Value share = b.div(c.dy(), count);
  for (unsigned i = 0; i < n; ++i)
    if (c.needs(i))
      c.addReduced(i, select(b, isBest[i], share));
  return success();
}

// Before version 8 the inputs have one shape.
template <auto rule> LogicalResult withoutBroadcasting(RuleContext &c) {
  for (unsigned i = 0; i < c.node.numInputs(); ++i)
    if (rankedType(c.x(i)) && rankedType(c.y()) && rankedType(c.x(i)).getRank() != rankedType(c.y()).getRank())
      return c.refuse("input " + Twine(i) + " has another rank than the output: before version 8 nothing broadcasts");
  return rule(c);
}

LogicalResult meanGrad(RuleContext &c) {
  Value share = c.b.mulScalar(c.dy(), 1.0 / c.node.numInputs());
  for (unsigned i = 0; i < c.node.numInputs(); ++i)
    if (c.needs(i))
      c.addReduced(i, share);
  return success();
}

// a - b trunc(a / b): fmod = 1, the only form for floating-point tensors.
LogicalResult modGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (c.needs(0))
    c.addReduced(0, c.dy());
  if (c.needs(1)) {
    Value ratio = b.div(c.x(0), c.x(1));
    Value whole = b.mul(signOf(b, ratio), b.node("Floor", {b.node("Abs", {ratio})}));
    c.addReduced(1, b.mul(b.neg(c.dy()), whole));
  }
  return success();
}

LogicalResult preluGrad(RuleContext &c) {
  if (c.needs(0))
    c.add(0, bySign(c, c.dy(), c.b.mul(c.dy(), c.x(1))));
  if (c.needs(1))
    c.addReduced(1, unless(c.b, positive(c, c.x()), c.b.mul(c.dy(), c.x())));
  return success();
}

LogicalResult whereGrad(RuleContext &c) {
  if (c.needs(1))
    c.addReduced(1, select(c.b, c.x(0), c.dy()));
  if (c.needs(2))
    c.addReduced(2, unless(c.b, c.x(0), c.dy()));
  return success();
}

// --- Dropout ---

// The mask that the forward drew. A node without that output is replaced by one that has it.
Value dropoutMask(RuleContext &c) {
  Operation *op = c.node.operation();
  if (c.node.numOutputs() > 1 && !isAbsent(c.y(1)))
    return c.y(1);
  OpBuilder::InsertionGuard guard(c.b.rewriter());
  c.b.after(op);
  SmallVector<NamedAttribute> attrs;
  for (NamedAttribute attr : op->getAttrs())
    if (!attr.getName().strref().starts_with("onnx."))
      attrs.push_back(attr);
  Operation *masked = c.b.node("Dropout", op->getOperands(), 2, attrs);
  std::string name = nameOf(c.y()).str(), fresh = nameOf(masked->getResult(0)).str();
  c.y().replaceAllUsesWith(masked->getResult(0));
  setName(c.y(), fresh);
  setName(masked->getResult(0), name);
  return masked->getResult(1);
}

// Since version 12; before, a Dropout in a graph is inference and passes its input on.
LogicalResult dropoutGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value ratio = c.x(1), training = c.x(2);
  std::optional<double> constantRatio = ratio ? constantScalar(ratio) : 0.5;
  std::optional<double> constantTraining = training ? constantScalar(training) : 0;
  if (!c.needs(0))
    return success();
  if (constantRatio == 0 || constantTraining == 0) {
    c.add(0, c.dy());
    return success();
  }
  Value scale;
  if (constantRatio) {
    scale = b.scalarLike(c.dy(), *constantRatio < 1 ? 1 / (1 - *constantRatio) : 0);
  } else {
    Value kept = b.sub(b.scalarLike(ratio, 1), ratio);
    scale = b.castLike(b.node("Reciprocal", {kept}), c.dy());
  }
  if (!constantTraining)
    scale = b.where(training, scale, b.scalarLike(c.dy(), 1));
  c.add(0, select(b, dropoutMask(c), b.mul(c.dy(), scale)));
  return success();
}

Value passOn(RuleContext &, Value dy) { return dy; }

const Rule kRules[] = {
    unary<absGrad>("Abs"),
    unary<[](RuleContext &c, Value dy) { return c.b.neg(asinGrad(c, dy)); }>("Acos"),
    unary<[](RuleContext &c, Value dy) { // 1 / sqrt(x^2 - 1)
      return unlessZero(c.b, dy, c.b.div(dy, c.b.node("Sqrt", {c.b.addScalar(c.b.square(c.x()), -1)})));
    }>("Acosh"),
    {"", "Add", 7, kNewest, Kind::Rule, addGrad, 0b11},
    unary<asinGrad>("Asin"),
    unary<[](RuleContext &c, Value dy) {
      return c.b.div(dy, c.b.node("Sqrt", {c.b.addScalar(c.b.square(c.x()), 1)}));
    }>("Asinh"),
    unary<[](RuleContext &c, Value dy) { return c.b.div(dy, c.b.addScalar(c.b.square(c.x()), 1)); }>("Atan"),
    unary<[](RuleContext &c, Value dy) {
      return unlessZero(c.b, dy, c.b.div(dy, minusFrom(c, 1, c.b.square(c.x()))));
    }>("Atanh"),
    {"", "Cast", 1, kNewest, Kind::Rule, castGrad, 1},
    {"", "CastLike", 1, kNewest, Kind::Rule, castGrad, 1},
    unary<celuGrad>("Celu"),
    {"", "Clip", 6, kNewest, Kind::Rule, clipGrad, 0b111},
    unary<[](RuleContext &c, Value dy) { return c.b.neg(c.b.mul(dy, c.b.node("Sin", {c.x()}))); }>("Cos"),
    unary<[](RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.mul(dy, c.b.node("Sinh", {c.x()}))); }>("Cosh"),
    {"", "Div", 7, kNewest, Kind::Rule, divGrad, 0b11},
    {"", "Dropout", 1, 10, Kind::Rule, applyUnary<passOn>, 1},
    {"", "Dropout", 12, kNewest, Kind::Rule, dropoutGrad, 1},
    unary<eluGrad>("Elu"),
    unary<erfGrad>("Erf"),
    unary<expGrad>("Exp"),
    unary<geluGrad>("Gelu"),
    unary<hardSigmoidGrad>("HardSigmoid"),
    unary<hardSwishGrad>("HardSwish"),
    unary<passOn>("Identity"),
    unary<[](RuleContext &c, Value dy) { return bySign(c, dy, c.b.mulScalar(dy, c.node.getFloat("alpha", 0.01))); }>(
        "LeakyRelu"),
    unary<[](RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.div(dy, c.x())); }>("Log"),
    {"", "Max", 6, 7, Kind::Rule, withoutBroadcasting<extremumGrad>},
    {"", "Max", 8, kNewest, Kind::Rule, extremumGrad},
    {"", "Mean", 6, 7, Kind::Rule, withoutBroadcasting<meanGrad>},
    {"", "Mean", 8, kNewest, Kind::Rule, meanGrad},
    {"", "Min", 6, 7, Kind::Rule, withoutBroadcasting<extremumGrad>},
    {"", "Min", 8, kNewest, Kind::Rule, extremumGrad},
    unary<mishGrad>("Mish"),
    {"", "Mod", 10, kNewest, Kind::Rule, modGrad, 0b11},
    {"", "Mul", 7, kNewest, Kind::Rule, mulGrad, 0b11},
    unary<[](RuleContext &c, Value dy) { return c.b.neg(dy); }>("Neg"),
    {"", "PRelu", 7, kNewest, Kind::Rule, preluGrad, 0b11},
    {"", "Pow", 7, kNewest, Kind::Rule, powGrad, 0b11},
    unary<reciprocalGrad>("Reciprocal"),
    unary<[](RuleContext &c, Value dy) { return select(c.b, positive(c, c.y()), dy); }>("Relu"),
    unary<seluGrad>("Selu"),
    unary<[](RuleContext &c, Value dy) { return c.b.mul(dy, c.b.mul(c.y(), minusFrom(c, 1, c.y()))); }>("Sigmoid"),
    unary<[](RuleContext &c, Value dy) { return c.b.mul(dy, c.b.node("Cos", {c.x()})); }>("Sin"),
    unary<[](RuleContext &c, Value dy) { return unlessZero(c.b, dy, c.b.mul(dy, c.b.node("Cosh", {c.x()}))); }>("Sinh"),
    unary<[](RuleContext &c, Value dy) { return c.b.mul(dy, c.b.node("Sigmoid", {c.x()})); }>("Softplus"),
    unary<softsignGrad>("Softsign"),
    unary<sqrtGrad>("Sqrt"),
    {"", "Sub", 7, kNewest, Kind::Rule, subGrad, 0b11},
    {"", "Sum", 6, 7, Kind::Rule, withoutBroadcasting<addGrad>},
    {"", "Sum", 8, kNewest, Kind::Rule, addGrad},
    unary<swishGrad>("Swish"),
    unary<[](RuleContext &c, Value dy) { return c.b.mul(dy, c.b.addScalar(c.b.square(c.y()), 1)); }>("Tan"),
    unary<[](RuleContext &c, Value dy) { return c.b.mul(dy, minusFrom(c, 1, c.b.square(c.y()))); }>("Tanh"),
    unary<[](RuleContext &c, Value dy) {
      Value threshold = c.b.scalarLike(c.x(), c.node.getFloat("alpha", 1));
      return select(c.b, c.b.node("Greater", {c.x(), threshold}), dy);
    }>("ThresholdedRelu"),
    {"", "Where", 9, kNewest, Kind::Rule, whereGrad, 0b110},
    zero("And"),
    zero("Bernoulli"),
    zero("BitShift"),
    zero("BitwiseAnd"),
    zero("BitwiseNot"),
    zero("BitwiseOr"),
    zero("BitwiseXor"),
    zero("Ceil"),
    zero("Equal"),
    zero("Floor"),
    zero("Greater"),
    zero("GreaterOrEqual"),
    zero("IsInf"),
    zero("IsNaN"),
    zero("Less"),
    zero("LessOrEqual"),
    zero("Multinomial"),
    zero("Not"),
    zero("Or"),
    zero("RandomNormalLike"),
    zero("RandomUniformLike"),
    zero("Round"),
    zero("Sign"),
    zero("Xor"),
};

} // namespace

ArrayRef<Rule> elementwiseRules() { return kRules; }

} // namespace recast::gradient
