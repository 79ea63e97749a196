#include "ir/onnx/Node.h"
#include "passes/Passes.h"
#include "passes/step/StepInfo.h"
#include "llvm/ADT/TypeSwitch.h"
#include <numbers>

namespace recast {
#define GEN_PASS_DEF_INSERTRANDOMNUMBERS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// The ratio of a Dropout that draws a mask: training mode, and a ratio above 0; both known.
std::optional<double> ratioOf(Node node) {
  if (node.sinceVersion() < 12 || constantScalar(node.input(2)) != 1.0)
    return std::nullopt;
  std::optional<double> ratio = node.input(1) ? constantScalar(node.input(1)) : 0.5;
  return ratio && *ratio > 0 && *ratio < 1 ? ratio : std::nullopt;
}

/// Replaces operators that draw by others that draw from a key in the state.
class Draws {
public:
  Draws(step::StepGraph &s, int64_t seed, bool dataParallel) : s(s), b(s.b), seed(seed), dataParallel(dataParallel) {}

  /// True where the node drew.
  bool replace(Operation *op) {
    Node node(op);
    b.before(op);
    b.setScope(node.name().empty() ? nameOf(op->getResult(0)) : node.name());
    return llvm::TypeSwitch<Operation *, bool>(op)
        .Case([&](DropoutOp) { return dropout(node); })
        .Case([&](BernoulliOp) {
          Value x = node.input(0), u = uniform(b.shapeOf(x));
          return give(node, b.node("Less", {u, b.cast(x, f32())}));
        })
        .Case([&](RandomUniformOp) { return give(node, uniformIn(node, ownShape(node))); })
        .Case([&](RandomUniformLikeOp) { return give(node, uniformIn(node, b.shapeOf(node.input(0)))); })
        .Case([&](RandomNormalOp) { return give(node, normal(node, ownShape(node))); })
        .Case([&](RandomNormalLikeOp) { return give(node, normal(node, b.shapeOf(node.input(0)))); })
        .Default(false);
  }

  /// Every step draws anew, a skipped one too.
  void finish() {
    if (!key)
      return;
    b.before(s.graph.getBody().front().getTerminator());
    b.setScope("");
    s.update(key, b.add(key, b.intScalar(1)));
  }

private:
  Type f32() { return Float32Type::get(b.context()); }
  Value ownShape(Node node) { return b.ints(*node.getInts("shape")); }

  /// What this node draws from: the state, or what the rank makes of it.
  Value source() {
    if (!key) {
      Type i64 = IntegerType::get(b.context(), 64);
      drawn = key = s.addState("rng_key", splatTensor(RankedTensorType::get({}, i64), static_cast<double>(seed)));
    }
    if (dataParallel && drawn == key) { // Ranks draw numbers of their own, and keep one state.
      constexpr auto kStride = static_cast<int64_t>(0x9e3779b97f4a7c15u);
      drawn = b.add(key, b.mul(b.node("train.rank", {}), b.intScalar(kStride)));
    }
    return drawn;
  }

  bool dropout(Node node) {
    std::optional<double> ratio = ratioOf(node);
    if (!ratio)
      return false;
    Value x = node.input(0), share = b.scalar(Float64Type::get(b.context()), *ratio);
    Value mask = b.node("train.dropout_mask", {source(), b.shapeOf(x), share}, b.attr("offset", offset++));
    Value y = b.where(mask, b.mulScalar(x, 1 / (1 - *ratio)), b.scalarLike(x, 0));
    std::string maskName = node.numOutputs() > 1 ? nameOf(node.output(1)).str() : "";
    if (node.numOutputs() > 1)
      node.output(1).replaceAllUsesWith(mask);
    give(node, y);
    if (!maskName.empty())
      setName(mask, maskName);
    return true;
  }

  Value uniform(Value shape) { return b.node("train.random_uniform", {source(), shape}, b.attr("offset", offset++)); }
  Value uniformIn(Node node, Value shape) {
    double low = node.getFloat("low", 0), high = node.getFloat("high", 1);
    return b.addScalar(b.mulScalar(uniform(shape), high - low), low);
  }
  /// Box and Muller 1958 (https://doi.org/10.1214/aoms/1177706645), the cosine half; 1 - u is never 0.
  Value normal(Node node, Value shape) {
    Value above = b.sub(b.scalar(f32(), 1), uniform(shape));
    Value radius = b.node("Sqrt", {b.mulScalar(b.node("Log", {above}), -2)});
    Value z = b.mul(radius, b.node("Cos", {b.mulScalar(uniform(shape), 2 * std::numbers::pi)}));
    return b.addScalar(b.mulScalar(z, node.getFloat("scale", 1)), node.getFloat("mean", 0));
  }

  /// The value, in the type of the node's result, takes its place and name.
  bool give(Node node, Value value) {
    std::string name = nameOf(node.output()).str();
    value = b.cast(value, elementTypeOf(node.output()));
    node.output().replaceAllUsesWith(value);
    b.inference().forget(node.operation());
    node->erase();
    setName(value, name);
    return true;
  }

  step::StepGraph &s;
  NodeBuilder &b;
  int64_t seed;
  bool dataParallel;
  Value key, drawn;
  int64_t offset = 0;
};

struct InsertRandomNumbersPass : impl::InsertRandomNumbersBase<InsertRandomNumbersPass> {
  using InsertRandomNumbersBase::InsertRandomNumbersBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    Draws draws(s, seed, dataParallel);
    for (Operation &op : llvm::make_early_inc_range(s.graph.getBody().front()))
      if (isNode(&op))
        numDraws += draws.replace(&op);
    draws.finish();
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }
};

} // namespace
} // namespace recast
