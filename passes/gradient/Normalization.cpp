// Norms. Running statistics are buffers: no gradient flows through them.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// Every axis but that of the channels.
Ints batchAxes(Value x) { return otherAxes(rankedType(x).getRank(), int64_t(1)); }

// [C] as [C, 1, ...], to broadcast against x [N, C, ...].
Value perChannel(NodeBuilder &b, Value v, Value x) {
  return b.unsqueeze(v, llvm::to_vector(llvm::seq<int64_t>(1, rankedType(x).getRank() - 1)));
}

void addAffineGrads(RuleContext &c, Value normalized) {
  NodeBuilder &b = c.b;
  if (c.needs(1))
    c.add(1, b.castLike(b.sum(b.mul(c.dy(), normalized), batchAxes(c.x()), /*keepDims=*/false), c.x(1)));
  if (c.needs(2))
    c.add(2, b.castLike(b.sum(c.dy(), batchAxes(c.x()), /*keepDims=*/false), c.x(2)));
}

// With the statistics of the batch; since version 14 training_mode says so, before the further outputs do.
bool usesBatchStatistics(Node node) {
  if (node.sinceVersion() >= 14)
    return node.getInt("training_mode", 0);
  for (unsigned i = 1; i < node.numOutputs(); ++i)
    if (!isAbsent(node.output(i)))
      return true;
  return false;
}

LogicalResult batchNormGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.dy())
    return c.refuse("the running statistics have no gradient rule");
  if (!rankedType(c.x()) || c.node.getInt("spatial", 1) == 0)
    return c.refuse("the gradient needs the rank of the input, and spatial = 1");
  double epsilon = c.node.getFloat("epsilon", 1e-5);
  if (usesBatchStatistics(c.node)) {
    Operation *grads = b.node("train.batch_norm_grad", {c.dy(), c.x(), c.x(1)}, 3, b.attr("epsilon", epsilon));
    for (unsigned i : {0, 1, 2})
      if (c.needs(i))
        c.add(i, b.castLike(grads->getResult(i), c.x(i)));
    return success();
  }
  // y = (x - mean) / sqrt(var + epsilon) * scale + B
  Value deviation = b.node("Sqrt", {b.addScalar(b.castLike(c.x(4), c.x()), epsilon)});
  if (c.needs(0))
    c.add(0, b.mul(c.dy(), perChannel(b, b.div(b.castLike(c.x(1), c.x()), deviation), c.x())));
  Value normalized;
  if (c.needs(1))
    normalized = b.div(b.sub(c.x(), perChannel(b, b.castLike(c.x(3), c.x()), c.x())), perChannel(b, deviation, c.x()));
  addAffineGrads(c, normalized);
  return success();
}

LogicalResult layerNormGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (c.dy(1) || c.dy(2))
    return c.refuse("its outputs Mean and InvStdDev have no gradient rule");
  Operation *grads =
      b.node("train.layer_norm_grad", {c.dy(), c.x(), c.x(1)}, 3,
             {b.attr("axis", c.node.getInt("axis", -1)), b.attr("epsilon", c.node.getFloat("epsilon", 1e-5))});
  for (unsigned i : {0, 1})
    if (c.needs(i))
      c.add(i, grads->getResult(i));
  if (c.needs(2)) {
    bool sameShape = c.x(2).getType() == c.x(1).getType();
    sameShape ? c.add(2, grads->getResult(2)) : c.addReduced(2, c.dy());
  }
  return success();
}

LogicalResult rmsNormGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Operation *grads =
      b.node("train.rms_norm_grad", {c.dy(), c.x(), c.x(1)}, 2,
             {b.attr("axis", c.node.getInt("axis", -1)), b.attr("epsilon", c.node.getFloat("epsilon", 1e-5))});
  for (unsigned i : {0, 1})
    if (c.needs(i))
      c.add(i, b.castLike(grads->getResult(i), c.x(i)));
  return success();
}

// With n = (x - mean) / deviation over the spatial axes and g = dy * scale:
// dx = (g - mean(g) - n mean(g n)) / deviation.
LogicalResult instanceNormGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value x = c.x();
  if (!rankedType(x))
    return c.refuse("the gradient needs the rank of the input");
  Ints spatial = otherAxes(rankedType(x).getRank(), {0, 1});
  auto mean = [&](Value v) { return b.reduce("ReduceMean", v, spatial, /*keepDims=*/true); };
  Value centred = b.sub(x, mean(x));
  Value deviation = b.node("Sqrt", {b.addScalar(mean(b.square(centred)), c.node.getFloat("epsilon", 1e-5))});
  Value normalized = b.div(centred, deviation);
  if (c.needs(0)) {
    Value g = b.mul(c.dy(), perChannel(b, c.x(1), x));
    Value inner = b.sub(b.sub(g, mean(g)), b.mul(normalized, mean(b.mul(g, normalized))));
    c.add(0, b.div(inner, deviation));
  }
  addAffineGrads(c, normalized);
  return success();
}

// y = x s^-beta with s = bias + alpha / size * sum of x^2 over a window of channels:
// dx = dy s^-beta - 2 alpha beta / size * x * sum of dy x s^(-beta-1) over the channels whose windows hold this one.
LogicalResult lrnGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  Value x = c.x();
  if (!c.needs(0))
    return success();
  if (!rankedType(x) || rankedType(x).getRank() < 2)
    return c.refuse("the gradient needs the rank of the input, which is two or more");
  int64_t size = c.node.getInt("size", 1), before = (size - 1) / 2, after = size / 2;
  double alpha = c.node.getFloat("alpha", 1e-4), beta = c.node.getFloat("beta", 0.75);
  double share = alpha / static_cast<double>(size);
  // Sums over windows of channels are averages of [N, 1, C, rest].
  Value planes = joinShape(b, {dimOf(b, x, 0), b.ints(1), dimOf(b, x, 1), b.ints(-1)});
  auto windowSum = [&](Value v, int64_t begin, int64_t end) {
    Value mean = b.node("AveragePool", {b.reshape(v, planes)},
                        {b.attr("kernel_shape", {size, 1}), b.attr("pads", {begin, 0, end, 0}),
                         b.attr("count_include_pad", int64_t(1))});
    return b.mulScalar(reshapeLike(b, mean, v), static_cast<double>(size));
  };
  Value s = b.addScalar(b.mulScalar(windowSum(b.square(x), before, after), share), c.node.getFloat("bias", 1.0));
  Value power = b.mul(c.dy(), b.node("Pow", {s, b.scalarLike(s, -beta)}));
  Value shared = windowSum(b.div(b.mul(power, x), s), after, before);
  c.add(0, typed(b.sub(power, b.mulScalar(b.mul(x, shared), 2 * share * beta)), x));
  return success();
}

// y = x / |x|_p: dx = (dy - s sum(dy y)) / |x|, s = y for p = 2 and sign(x) for p = 1. Zero where the norm is zero.
LogicalResult lpNormalizationGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  int64_t p = c.node.getInt("p", 2), axis = c.node.getInt("axis", -1);
  if (axis < 0 && !rankedType(c.x()))
    return c.refuse("the gradient needs the rank of the input");
  if (axis < 0)
    axis += rankedType(c.x()).getRank();
  Value norm = b.reduce(p == 1 ? "ReduceL1" : "ReduceL2", c.x(), axis, /*keepDims=*/true);
  Value direction = p == 1 ? signOf(b, c.x()) : c.y();
  Value along = b.sum(b.mul(c.dy(), c.y()), axis, /*keepDims=*/true);
  Value dx = b.div(b.sub(c.dy(), b.mul(direction, along)), norm);
  c.add(0, unless(b, equalTo(b, norm, 0), dx));
  return success();
}

const Rule kRules[] = {
    {"", "BatchNormalization", 7, kNewest, Kind::Rule, batchNormGrad, 0b111},
    {"", "InstanceNormalization", 6, kNewest, Kind::Rule, instanceNormGrad, 0b111},
    {"", "LRN", 1, kNewest, Kind::Rule, lrnGrad, 1},
    {"", "LayerNormalization", 17, kNewest, Kind::Rule, layerNormGrad, 0b111},
    {"", "LpNormalization", 1, kNewest, Kind::Rule, lpNormalizationGrad, 1},
    {"", "RMSNormalization", 23, kNewest, Kind::Rule, rmsNormGrad, 0b11},
};

} // namespace

ArrayRef<Rule> normalizationRules() { return kRules; }

} // namespace recast::gradient
