// Reductions, cumulative sums, softmax and TopK.
#include "passes/gradient/RuleHelpers.h"
#include <limits>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// A Reduce* node with its gradient and output in a form that broadcasts against x.
struct Reduction {
  RuleContext &c;
  bool overAll = false; ///< Every axis is reduced.
  std::optional<Ints> axes = std::nullopt;
  Value axesValue = nullptr; ///< Where the axes are not known.

  NodeBuilder &b() const { return c.b; }

  // v, of y's shape, with the reduced axes back as size 1. A scalar broadcasts as it is.
  Value kept(Value v) const {
    if (overAll || c.node.getInt("keepdims", 1))
      return v;
    return b().unsqueeze(v, *axes);
  }
  // Reduces v, of x's shape, over the same axes and keeps them.
  Value reduced(StringRef op, Value v) const {
    if (overAll)
      return b().reduce(op, v, {}, /*keepDims=*/true);
    if (axes)
      return axes->empty() ? v : b().reduce(op, v, *axes, /*keepDims=*/true);
    return b().node(op, {v, axesValue}, b().attr("keepdims", int64_t(1)));
  }
};

LogicalResult analyse(RuleContext &c, Reduction &r) {
  r.axes = listOf(c, "axes", 1);
  bool isGiven = c.node.hasAttr("axes") || c.x(1);
  bool isEmpty = !isGiven || (r.axes && r.axes->empty());
  if (isEmpty && !c.node.getInt("noop_with_empty_axes", 0)) {
    r.overAll = true;
    return success();
  }
  if (isEmpty) {
    r.axes = Ints();
    return success();
  }
  auto type = rankedType(c.x());
  if (r.axes && type) {
    for (int64_t &axis : *r.axes)
      axis = fromFront(axis, type.getRank());
    llvm::sort(*r.axes);
    return success();
  }
  r.axes.reset();
  r.axesValue = listValue(c, "axes", 1);
  if (!c.node.getInt("keepdims", 1) || c.node.hasAttr("axes"))
    return c.refuse("the gradient of a reduction with keepdims = 0 needs the rank of its input and constant axes");
  if (c.b.opset() < 18 && c.node.opType() != "ReduceSum")
    return c.refuse("the gradient needs constant axes");
  return success();
}

template <auto derivative> LogicalResult applyReduce(RuleContext &c) {
  Reduction r{c};
  if (!c.needs(0))
    return success();
  if (failed(analyse(c, r)))
    return failure();
  c.add(0, typed(derivative(r, r.kept(c.dy())), c.x()));
  return success();
}

template <auto derivative> constexpr Rule reduction(StringLiteral op) {
  return {"", op, 1, kNewest, Kind::Rule, applyReduce<derivative>, 1};
}

Value sumGrad(const Reduction &r, Value dy) { return expandLike(r.b(), dy, r.c.x()); }

// dy / n, n the number of elements that one mean is taken over.
Value meanGrad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  auto type = rankedType(r.c.x());
  Ints axes = r.overAll && type ? otherAxes(type.getRank(), {}) : r.axes.value_or(Ints());
  if (type && (r.overAll || r.axes) && llvm::none_of(axes, [&](int64_t axis) { return type.isDynamicDim(axis); })) {
    int64_t n = 1;
    for (int64_t axis : axes)
      n *= type.getDimSize(axis);
    return expandLike(b, b.div(dy, b.scalarLike(dy, static_cast<double>(n))), r.c.x());
  }
  Value count;
  if (r.overAll) {
    count = b.node("Size", {r.c.x()});
  } else {
    Value sizes =
        b.node("Gather", {b.shapeOf(r.c.x()), r.axes ? b.ints(axes) : r.axesValue}, b.attr("axis", int64_t(0)));
    count = b.reduce("ReduceProd", sizes, {}, /*keepDims=*/false);
  }
  return expandLike(b, b.div(dy, b.castLike(count, dy)), r.c.x());
}

// The product of the others: prod / x without zeros; with one zero, the product of the rest there; with more, 0.
Value prodGrad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  Value x = r.c.x(), one = b.scalarLike(x, 1);
  Value isZero = equalTo(b, x, 0);
  Value filled = choose(b, isZero, one, x);
  Value zeros = r.reduced("ReduceSum", b.castLike(isZero, x));
  Value product = r.reduced("ReduceProd", filled);
  Value atZero = select(b, equalTo(b, zeros, 1), product);
  Value elsewhere = select(b, equalTo(b, zeros, 0), b.div(product, filled));
  return b.mul(dy, choose(b, isZero, atZero, elsewhere));
}

Value l2Grad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  Value norm = r.kept(r.c.y());
  return unless(b, equalTo(b, norm, 0), b.div(b.mul(dy, r.c.x()), norm));
}

// y = log(sum x): dy / sum x
Value logSumGrad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  Value share = b.div(dy, b.node("Exp", {r.kept(r.c.y())}));
  return expandLike(b, unlessZero(b, dy, share), r.c.x());
}

// dy exp(x - y). All of -inf: y = -inf, and x - y would be NaN; the gradient is 0 there.
Value logSumExpGrad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  Value y = r.kept(r.c.y());
  Value finite = unless(b, equalTo(b, y, -std::numeric_limits<double>::infinity()), y);
  return b.mul(dy, b.node("Exp", {b.sub(r.c.x(), finite)}));
}

// Elements that share the extremum share the gradient evenly.
Value extremumGrad(const Reduction &r, Value dy) {
  NodeBuilder &b = r.b();
  Value isBest = equal(b, r.c.x(), r.kept(r.c.y()));
  Value count = r.reduced("ReduceSum", b.castLike(isBest, dy));
  return select(b, isBest, b.div(dy, count));
}

// The same sum from the other end.
LogicalResult cumSumGrad(RuleContext &c) {
  int64_t exclusive = c.node.getInt("exclusive", 0), reverse = !c.node.getInt("reverse", 0);
  if (c.needs(0))
    c.add(0, c.b.node("CumSum", {c.dy(), c.x(1)}, {c.b.attr("exclusive", exclusive), c.b.attr("reverse", reverse)}));
  return success();
}

// Before version 13, Softmax works on [product of the axes before `axis`, product of the rest].
LogicalResult softmaxGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  StringRef op = c.node.opType() == "Softmax" ? "train.softmax_grad" : "train.log_softmax_grad";
  bool coerces = c.node.sinceVersion() < 13;
  int64_t axis = c.node.getInt("axis", coerces ? 1 : -1);
  auto type = rankedType(c.x());
  if (!coerces || (type && fromFront(axis, type.getRank()) == type.getRank() - 1)) {
    c.add(0, b.node(op, {c.dy(), c.y()}, b.attr("axis", coerces ? int64_t(-1) : axis)));
    return success();
  }
  auto flat = [&](Value v) { return b.node("Flatten", {v}, b.attr("axis", axis)); };
  c.add(0, reshapeLike(b, b.node(op, {flat(c.dy()), flat(c.y())}, b.attr("axis", int64_t(1))), c.x()));
  return success();
}

LogicalResult topKGrad(RuleContext &c) {
  if (!c.needs(0) || !c.dy())
    return success();
  if (isAbsent(c.y(1)))
    return c.refuse("the gradient of TopK needs its output of indices");
  StringRef scatter = c.b.opset() >= 11 ? "ScatterElements" : "Scatter";
  NamedAttribute axis = c.b.attr("axis", c.node.getInt("axis", -1));
  c.add(0, typed(c.b.node(scatter, {c.b.zerosLike(c.x()), c.y(1), c.dy()}, axis), c.x()));
  return success();
}

const Rule kRules[] = {
    {"", "ArgMax", 1, kNewest, Kind::Zero},
    {"", "ArgMin", 1, kNewest, Kind::Zero},
    {"", "CumSum", 11, kNewest, Kind::Rule, cumSumGrad, 1},
    {"", "Hardmax", 1, kNewest, Kind::Zero},
    {"", "LogSoftmax", 1, kNewest, Kind::Rule, softmaxGrad, 1},
    reduction<[](const Reduction &r, Value dy) { return r.b().mul(dy, signOf(r.b(), r.c.x())); }>("ReduceL1"),
    reduction<l2Grad>("ReduceL2"),
    reduction<logSumGrad>("ReduceLogSum"),
    reduction<logSumExpGrad>("ReduceLogSumExp"),
    reduction<extremumGrad>("ReduceMax"),
    reduction<meanGrad>("ReduceMean"),
    reduction<extremumGrad>("ReduceMin"),
    reduction<prodGrad>("ReduceProd"),
    reduction<sumGrad>("ReduceSum"),
    reduction<[](const Reduction &r, Value dy) { return r.b().mul(dy, r.b().mulScalar(r.c.x(), 2)); }>(
        "ReduceSumSquare"),
    {"", "Softmax", 1, kNewest, Kind::Rule, softmaxGrad, 1},
    {"", "TopK", 1, kNewest, Kind::Rule, topKGrad, 1},
};

} // namespace

ArrayRef<Rule> reductionRules() { return kRules; }

} // namespace recast::gradient
