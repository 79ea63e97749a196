// Losses, and the start of a backward under a loss scale.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

// Operands and attributes that the losses share: (dloss, scores, labels, weights?).
Value labelLossGrad(RuleContext &c, StringRef op) {
  NodeBuilder &b = c.b;
  SmallVector<Value> operands{c.dy(), c.x(0), c.x(1)};
  if (c.x(2))
    operands.push_back(c.x(2));
  SmallVector<NamedAttribute> attrs{b.attr("reduction", c.node.getString("reduction", "mean"))};
  if (c.node.hasAttr("ignore_index"))
    attrs.push_back(b.attr("ignore_index", c.node.getInt("ignore_index", 0)));
  return b.node(op, operands, attrs);
}

LogicalResult crossEntropyGrad(RuleContext &c) {
  if (!c.needs(0))
    return success();
  if (c.dy(0))
    c.add(0, labelLossGrad(c, "train.cross_entropy_grad"));
  if (c.dy(1))
    c.add(0, c.b.node("train.log_softmax_grad", {c.dy(1), c.y(1)}, c.b.attr("axis", int64_t(1))));
  return success();
}

LogicalResult nllLossGrad(RuleContext &c) {
  if (c.needs(0))
    c.add(0, labelLossGrad(c, "train.nll_loss_grad"));
  return success();
}

LogicalResult scaleLossGrad(RuleContext &c) {
  if (c.needs(0))
    c.add(0, c.b.mul(c.dy(), c.b.castLike(c.x(1), c.dy())));
  return success();
}

const Rule kRules[] = {
    {"", "NegativeLogLikelihoodLoss", 12, kNewest, Kind::Rule, nllLossGrad, 1},
    {"", "SoftmaxCrossEntropyLoss", 12, kNewest, Kind::Rule, crossEntropyGrad, 1},
    {"recast", "window_sum", 1, kNewest, Kind::Zero}, // counts what data there is
    {"recast", "scale_loss", 1, kNewest, Kind::Rule, scaleLossGrad, 1},
};

} // namespace

ArrayRef<Rule> lossRules() { return kRules; }

} // namespace recast::gradient
