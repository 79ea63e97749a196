#include "ir/onnx/PreviewOptimizers.h"

using namespace mlir;
namespace recast::onnx_ir {

namespace {

// What the operators share. Inputs: R, T, then for each of n tensors X, their gradients, and their states.
struct Update {
  Node node;
  NodeBuilder &b;
  Value rate;      ///< R, f64, no dimensions.
  Value count;     ///< T, f64, no dimensions.
  Value isStarted; ///< T > 0.

  double number(StringRef name, double fallback) const {
    auto attr = node->getAttrOfType<FloatAttr>(name);
    return attr ? attr.getValueAsDouble() : static_cast<float>(fallback);
  }
  /// 1 - x in f32, as ONNX's reference computes with attributes.
  static double complement(double x) { return 1.0f - static_cast<float>(x); }
  Value f64(double value) const { return b.scalar(b.rewriter().getF64Type(), value); }
  Value square(Value x) const { return b.mul(x, x); }
  /// x times a number or an f64 scalar, rounded to x's type first.
  Value scaled(Value x, double factor) const { return b.mulScalar(x, factor); }
  Value scaled(Value x, Value factor) const { return b.mul(x, b.castLike(factor, x)); }
  /// G + norm_coefficient * X: the gradient of the regularised objective.
  Value regularised(Value x, Value g) const { return b.add(scaled(x, number("norm_coefficient", 0)), g); }
  Value power(double base) const { return b.node("Pow", {f64(base), count}); }
};

using Values = SmallVector<Value, 3>; ///< The new X and its new states.

Values adam(const Update &u, Value x, Value g, ArrayRef<Value> states) {
  NodeBuilder &b = u.b;
  double alpha = u.number("alpha", 0.9), beta = u.number("beta", 0.999);
  g = u.regularised(x, g);
  Value v = b.add(u.scaled(states[0], alpha), u.scaled(g, u.complement(alpha)));
  Value h = b.add(u.scaled(states[1], beta), u.scaled(u.square(g), u.complement(beta)));
  Value root = b.addScalar(b.node("Sqrt", {h}), u.number("epsilon", 1e-6));
  Value correction = b.div(b.node("Sqrt", {b.sub(u.f64(1), u.power(beta))}), b.sub(u.f64(1), u.power(alpha)));
  Value rate = b.where(u.isStarted, b.mul(u.rate, correction), u.rate);
  x = b.sub(x, b.div(u.scaled(v, rate), root));
  return {u.scaled(x, u.complement(u.number("norm_coefficient_post", 0))), v, h};
}

Values adagrad(const Update &u, Value x, Value g, ArrayRef<Value> states) {
  NodeBuilder &b = u.b;
  Value rate = b.div(u.rate, b.addScalar(b.mulScalar(u.count, u.number("decay_factor", 0)), 1));
  g = u.regularised(x, g);
  Value h = b.add(states[0], u.square(g));
  Value root = b.addScalar(b.node("Sqrt", {h}), u.number("epsilon", 1e-6));
  return {b.sub(x, b.div(u.scaled(g, rate), root)), h};
}

Values momentum(const Update &u, Value x, Value g, ArrayRef<Value> states) {
  NodeBuilder &b = u.b;
  double alpha = u.number("alpha", 0);
  Value beta = b.where(u.isStarted, u.f64(u.number("beta", 0)), u.f64(1));
  g = u.regularised(x, g);
  Value v = b.add(u.scaled(states[0], alpha), u.scaled(g, beta));
  Value direction = u.node.getString("mode", "standard") == "nesterov" ? b.add(g, u.scaled(v, alpha)) : v;
  return {b.sub(x, u.scaled(direction, u.rate)), v};
}

struct Entry {
  llvm::StringLiteral type;
  unsigned numStates;
  Values (*update)(const Update &, Value, Value, ArrayRef<Value>);
};
constexpr Entry kEntries[] = {{"Adam", 2, adam}, {"Adagrad", 1, adagrad}, {"Momentum", 1, momentum}};

const Entry *entryOf(Node node) {
  if (isPreviewTrainingDomain(node.domain()))
    for (const Entry &entry : kEntries)
      if (entry.type == node.opType())
        return &entry;
  return nullptr;
}

} // namespace

bool isPreviewTrainingDomain(StringRef domain) {
  return domain == "ai.onnx.preview.training" || domain == "ai.onnx.preview";
}

bool isPreviewOptimizer(Node node) { return entryOf(node) != nullptr; }

LogicalResult expandPreviewOptimizer(Node node, NodeBuilder &b, SmallVectorImpl<Value> &outputs) {
  const Entry &entry = *entryOf(node);
  auto refuse = [&] { return node->emitError() << "node " << node.describe() << ": "; };
  unsigned roles = 2 + entry.numStates;
  if (b.opset() < 9)
    return refuse() << "runs from opset 9 on; the model imports opset " << b.opset();
  if (node.numInputs() <= 2 || (node.numInputs() - 2) % roles != 0)
    return refuse() << "has " << node.numInputs() << " inputs; R, T and " << roles << " for each tensor are needed";
  unsigned n = (node.numInputs() - 2) / roles;
  if (node.numOutputs() > n * (1 + entry.numStates))
    return refuse() << "has " << node.numOutputs() << " outputs; " << 1 + entry.numStates << " for each of its " << n
                    << " tensors are there";
  for (unsigned i = 0; i < node.numInputs(); ++i)
    if (!node.input(i))
      return refuse() << "its input " << i << " is left out";
  if (StringRef mode = node.getString("mode", "standard"); mode != "standard" && mode != "nesterov")
    return refuse() << "mode is '" << mode << "'; standard or nesterov is needed";
  Type f64 = b.rewriter().getF64Type();
  auto scalar = [&](unsigned i) { return b.reshape(b.cast(node.input(i), f64), ArrayRef<int64_t>{}); };
  Update update{node, b, scalar(0), scalar(1), {}};
  update.isStarted = b.node("Greater", {update.count, b.scalar(f64, 0)});
  // Narrow types are computed in f32 and rounded once.
  auto wide = [&](Value x) {
    Type type = elementTypeOf(x);
    return type.isF64() ? x : b.cast(x, b.rewriter().getF32Type());
  };
  outputs.assign(node.numOutputs(), Value());
  for (unsigned i = 0; i < n; ++i) {
    auto input = [&](unsigned role) { return node.input(2 + role * n + i); };
    SmallVector<Value, 2> states;
    for (unsigned state = 0; state < entry.numStates; ++state)
      states.push_back(b.castLike(wide(input(2 + state)), wide(input(0))));
    Value x = wide(input(0)), g = b.castLike(input(1), x);
    for (auto [role, value] : llvm::enumerate(entry.update(update, x, g, states)))
      if (size_t at = role * n + i; at < outputs.size())
        outputs[at] = b.castLike(value, input(role == 0 ? 0 : static_cast<unsigned>(role) + 1));
  }
  return success();
}

} // namespace recast::onnx_ir
