// Bodies of optimizers, in the formulas of torch.optim. Scalars are computed in f64, as PyTorch does in Python, and
// rounded once to the type of the tensor that they multiply.
#include "ir/train/BodyHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

using Values = ArrayRef<Value>;
using Outputs = SmallVectorImpl<Value>;

Value oneMinus(NodeBuilder &b, Value x) { return b.sub(b.scalarLike(x, 1), x); }

/// One update: the operands of an optimizer in the type that it computes in.
struct Update {
  NodeBuilder &b;
  Values in; ///< skip, param, grad, state..., numbers
  Outputs &out;
  Value param, grad;

  Update(NodeBuilder &b, Values in, Outputs &out)
      : b(b), in(in), out(out), param(widen(b, in[1])), grad(b.castLike(in[2], param)) {}

  /// A number, in f64.
  Value number(unsigned i) { return b.cast(in[i], b.rewriter().getF64Type()); }
  Value rounded(Value scalar) { return b.castLike(scalar, param); }
  Value state(unsigned i) { return b.castLike(in[i], param); }
  Value scaled(Value scalar, Value x) { return b.mul(rounded(scalar), x); }
  Value sqrt(Value x) { return b.node("Sqrt", {x}); }
  Value power(Value base, Value exponent) { return b.node("Pow", {base, exponent}); }

  /// Weight decay: taken off the parameter, or added to the gradient.
  void decay(Value lr, Value weightDecay, bool isDecoupled) {
    if (isDecoupled)
      param = scaled(oneMinus(b, b.mul(lr, weightDecay)), param);
    else
      grad = b.add(grad, scaled(weightDecay, param));
  }
  /// keep * old + (1 - keep) * x
  Value average(Value keep, Value old, Value x) { return b.add(scaled(keep, old), scaled(oneMinus(b, keep), x)); }
  Value averageOfSquares(Value keep, Value old, Value x) {
    return b.add(scaled(keep, old), b.mul(scaled(oneMinus(b, keep), x), x));
  }
  /// The new value of operand i, in its own type; the old one, bit for bit, where the step is skipped.
  void result(unsigned i, Value next) { out.push_back(select(b, in[0], in[i], b.castLike(next, in[i]))); }
};

// Inputs: skip param grad exp_avg exp_avg_sq step lr beta1 beta2 eps weight_decay max_exp_avg_sq?.
template <bool isDecoupled> LogicalResult adam(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  Value step = u.number(5), lr = u.number(6), beta1 = u.number(7), beta2 = u.number(8);
  u.decay(lr, u.number(10), isDecoupled);
  Value first = u.average(beta1, u.state(3), u.grad), second = u.averageOfSquares(beta2, u.state(4), u.grad);
  Value largest = in.size() > 11 && in[11] ? b.node("Max", {u.state(11), second}) : Value();
  Value stepSize = b.div(lr, oneMinus(b, u.power(beta1, step)));
  Value correction = u.sqrt(oneMinus(b, u.power(beta2, step)));
  Value denominator = b.add(b.div(u.sqrt(largest ? largest : second), u.rounded(correction)), u.rounded(in[9]));
  u.result(1, b.sub(u.param, b.div(u.scaled(stepSize, first), denominator)));
  u.result(3, first);
  u.result(4, second);
  if (largest)
    u.result(11, largest);
  return success();
}

// Inputs: skip param grad exp_avg exp_avg_sq mu_product step lr beta1 beta2 eps weight_decay momentum_decay.
LogicalResult nadam(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  Value step = u.number(6), lr = u.number(7), beta1 = u.number(8), beta2 = u.number(9), decay = u.number(12);
  u.decay(lr, u.number(11), op.getInt("decoupled_weight_decay", 0) != 0);
  auto momentumAt = [&](Value at) { // beta1 (1 - 0.96^(at decay) / 2)
    return b.mul(beta1, oneMinus(b, b.mulScalar(u.power(b.scalarLike(at, 0.96), b.mul(at, decay)), 0.5)));
  };
  Value mu = momentumAt(step), next = momentumAt(b.addScalar(step, 1));
  Value product = b.mul(in[5], b.castLike(mu, in[5])), wide = b.castLike(product, mu);
  Value first = u.average(beta1, u.state(3), u.grad), second = u.averageOfSquares(beta2, u.state(4), u.grad);
  Value corrected = b.div(second, u.rounded(oneMinus(b, u.power(beta2, step))));
  Value denominator = b.add(u.sqrt(corrected), u.rounded(in[10]));
  Value gradStep = b.div(b.mul(lr, oneMinus(b, mu)), oneMinus(b, wide));
  Value momentumStep = b.div(b.mul(lr, next), oneMinus(b, b.mul(wide, next)));
  Value moved = b.sub(u.param, b.div(u.scaled(gradStep, u.grad), denominator));
  u.result(1, b.sub(moved, b.div(u.scaled(momentumStep, first), denominator)));
  u.result(3, first);
  u.result(4, second);
  u.result(5, product);
  return success();
}

// Inputs: skip param grad exp_avg exp_avg_sq step lr beta1 beta2 eps weight_decay.
LogicalResult radam(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  Value step = u.number(5), lr = u.number(6), beta1 = u.number(7), beta2 = u.number(8);
  u.decay(lr, u.number(10), op.getInt("decoupled_weight_decay", 0) != 0);
  Value first = u.average(beta1, u.state(3), u.grad), second = u.averageOfSquares(beta2, u.state(4), u.grad);
  Value power = u.power(beta2, step), correction2 = oneMinus(b, power);
  Value two = b.scalarLike(step, 2), limit = b.addScalar(b.div(two, oneMinus(b, beta2)), -1);
  Value length = b.sub(limit, b.div(b.mul(b.mul(two, step), power), correction2));
  auto minus = [&](Value x, double by) { return b.addScalar(x, -by); };
  Value above = b.mul(b.mul(minus(length, 4), minus(length, 2)), limit);
  Value below = b.mul(b.mul(minus(limit, 4), minus(limit, 2)), length);
  Value stepSize = b.div(lr, oneMinus(b, u.power(beta1, step)));
  Value rectified = b.mul(b.mul(stepSize, u.sqrt(b.div(above, below))), u.sqrt(correction2));
  Value adaptive = b.div(u.scaled(rectified, first), b.add(u.sqrt(second), u.rounded(in[9])));
  Value isRectified = b.node("Greater", {length, b.scalarLike(length, 5)});
  u.result(1, b.sub(u.param, select(b, isRectified, adaptive, u.scaled(stepSize, first))));
  u.result(3, first);
  u.result(4, second);
  return success();
}

// Inputs: skip param grad sum step lr lr_decay eps weight_decay.
LogicalResult adagrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  u.decay({}, u.number(8), /*isDecoupled=*/false);
  Value past = b.mul(b.addScalar(u.number(4), -1), u.number(6));
  Value stepSize = b.div(u.number(5), b.addScalar(past, 1));
  Value sum = b.add(u.state(3), b.square(u.grad));
  u.result(1, b.sub(u.param, b.div(u.scaled(stepSize, u.grad), b.add(u.sqrt(sum), u.rounded(in[7])))));
  u.result(3, sum);
  return success();
}

// Inputs: skip param grad square_avg grad_avg? momentum_buffer? lr alpha eps weight_decay momentum.
LogicalResult rmsprop(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  u.decay({}, u.number(9), /*isDecoupled=*/false);
  Value alpha = u.number(7), squares = u.averageOfSquares(alpha, u.state(3), u.grad), variance = squares, mean, buffer;
  if (in[4]) {
    mean = u.average(alpha, u.state(4), u.grad);
    variance = b.sub(squares, b.square(mean));
  }
  Value denominator = b.add(u.sqrt(variance), u.rounded(in[8]));
  if (in[5]) {
    buffer = b.add(u.scaled(u.number(10), u.state(5)), b.div(u.grad, denominator));
    u.result(1, b.sub(u.param, u.scaled(u.number(6), buffer)));
  } else {
    u.result(1, b.sub(u.param, b.div(u.scaled(u.number(6), u.grad), denominator)));
  }
  u.result(3, squares);
  if (mean)
    u.result(4, mean);
  if (buffer)
    u.result(5, buffer);
  return success();
}

// Inputs: skip param grad exp_avg lr beta1 beta2 weight_decay. The sign of NaN is 0, as in torch.sign.
LogicalResult lion(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  Value lr = u.number(4);
  u.decay(lr, u.number(7), /*isDecoupled=*/true);
  Value direction = u.average(u.number(5), u.state(3), u.grad), zero = b.scalarLike(direction, 0);
  Value isPositive = b.castLike(b.node("Greater", {direction, zero}), u.param);
  Value sign = b.sub(isPositive, b.castLike(b.node("Less", {direction, zero}), u.param));
  u.result(1, b.sub(u.param, u.scaled(lr, sign)));
  u.result(3, u.average(u.number(6), u.state(3), u.grad));
  return success();
}

// Inputs: skip param grad momentum_buffer? step lr momentum dampening weight_decay. Without momentum the buffer is not
// used and keeps its value; the first step sets it to the gradient.
LogicalResult sgd(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Update u(b, in, out);
  u.decay({}, u.number(8), /*isDecoupled=*/false);
  Value buffer = in[3], direction = u.grad, updated;
  if (buffer) {
    Value momentum = u.number(6), zero = b.scalarLike(momentum, 0);
    Value isPlain =
        b.node("Not", {b.node("Or", {b.node("Less", {momentum, zero}), b.node("Greater", {momentum, zero})})});
    Value isFirst = b.node("Or", {isPlain, b.node("Equal", {in[4], b.intScalar(1)})});
    Value damped = u.scaled(oneMinus(b, u.number(7)), direction);
    updated = select(b, isFirst, direction, b.add(u.scaled(momentum, u.state(3)), damped));
    direction = op.getInt("nesterov", 0) ? b.add(direction, u.scaled(momentum, updated)) : updated;
    updated = select(b, b.node("Or", {in[0], isPlain}), buffer, b.castLike(updated, buffer));
  }
  u.result(1, b.sub(u.param, u.scaled(u.number(5), direction)));
  if (op.numOutputs() > 1)
    out.push_back(updated ? updated : in[0]); // Without a buffer nothing reads this output.
  return success();
}

// Inputs: skip average param step decay. torch.lerp's formula starts at the nearer end.
LogicalResult ema(Node op, NodeBuilder &b, Values in, Outputs &out) {
  Value average = widen(b, in[1]), param = b.castLike(in[2], average), decay = b.cast(in[4], b.rewriter().getF64Type());
  Value isSlow = b.node("Greater", {decay, b.scalarLike(decay, 0.5)});
  Value weight = b.castLike(select(b, isSlow, oneMinus(b, decay), b.neg(decay)), average);
  Value moved = b.add(select(b, isSlow, average, param), b.mul(weight, b.sub(param, average)));
  Value isFirst = b.node("Equal", {in[3], b.intScalar(1)});
  out.push_back(select(b, in[0], in[1], b.castLike(select(b, isFirst, param, moved), in[1])));
  return success();
}

} // namespace

ArrayRef<BodyEntry> optimizerBodies() {
  static const BodyEntry entries[] = {
      {"adamw", adam<true>}, {"adam", adam<false>}, {"nadam", nadam}, {"radam", radam}, {"adagrad", adagrad},
      {"rmsprop", rmsprop},  {"lion", lion},        {"sgd", sgd},     {"ema", ema},
  };
  return entries;
}

} // namespace recast::train
