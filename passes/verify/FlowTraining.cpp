// Operators of dialect train and of ONNX Runtime Training, as the sums, products and selections that they are.
#include "ir/train/Dialect.h"
#include "passes/verify/FlowBuilder.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::verify {

AdamResult addAdam(FlowBuilder &b, const Adam &adam) {
  ValueId grad = adam.grad;
  if (adam.decaysGradient)
    grad = b.sum({grad, b.product(adam.param, b.anyNumber())});
  ValueId first = b.sum({b.product(adam.first, b.anyNumber()), b.product(grad, b.anyNumber())});
  ValueId second = b.sum({b.product(adam.second, b.anyNumber()), b.product(b.product(grad, grad), b.anyNumber())});
  ValueId most = adam.most == kNone ? kNone : b.add(Kind::Extremum, {adam.most, second}, {}, FlowNode::Elementwise);
  if (most != kNone)
    b.at(most).code = static_cast<uint8_t>(ExtremumOp::Max);
  ValueId direction = b.quotient(first, b.sum({b.power(most == kNone ? second : most, 0.5), b.constant(1e-8)}));
  ValueId param = b.sum({b.product(adam.param, b.anyNumber()), b.product(direction, b.factor(adam.numbers))}, true);
  auto kept = [&](ValueId old, ValueId next) {
    return adam.skipIfFalse ? b.select(adam.skip, next, old) : b.select(adam.skip, old, next);
  };
  return {kept(adam.param, param), kept(adam.first, first), kept(adam.second, second),
          most == kNone ? kNone : kept(adam.most, most)};
}

namespace {

SmallVector<ValueId> operands(FlowBuilder &b, Node node, unsigned first = 0, unsigned end = ~0u) {
  SmallVector<ValueId> ids;
  for (unsigned i = first; i < std::min(end, node.numInputs()); ++i)
    ids.push_back(b.operand(node, i));
  return ids;
}

SmallVector<ValueId> scalars(FlowBuilder &b, Node node, unsigned first) {
  SmallVector<ValueId> ids = operands(b, node, first);
  llvm::erase_if(ids, [&](ValueId id) { return id == kNone || !b.at(id).isSingle; });
  return ids;
}

// All results linear in operand `main`.
void addLinear(FlowBuilder &b, Node node, unsigned main = 0) {
  SmallVector<ValueId> sides = operands(b, node);
  ValueId dy = sides[main];
  sides[main] = kNone;
  for (Value result : node->getResults())
    b.bind(result, Kind::Linear, {dy}, sides);
}

// The gradient of a loss that is a mean over labels that count.
void addLossGradient(FlowBuilder &b, Node node, unsigned labels, bool counts) {
  addLinear(b, node);
  if (!counts || node.getString("reduction", "mean") != "mean")
    return;
  ValueId count = b.add(Kind::Count, {b.operand(node, labels)}, {b.operand(node, labels + 1)});
  b.bind(node.output(), Kind::Quotient, {b.of(node.output()), count});
}

void addUnscale(FlowBuilder &b, Node node) {
  unsigned last = node.numInputs() - 1;
  ValueId scale = b.operand(node, last);
  b.namesScale(scale);
  for (unsigned i = 0; i < last; ++i)
    b.bind(node.output(i), Kind::Quotient, {b.operand(node, i), scale}, {}, FlowNode::Elementwise);
  b.bind(node.output(last), Kind::Test, operands(b, node, 0, last), {}, FlowNode::TestsNan | FlowNode::TestsInf);
}

void addClipNorm(FlowBuilder &b, Node node) {
  unsigned last = node.numInputs() - 1;
  ValueId norm = b.add(Kind::Statistic, operands(b, node, 0, last));
  b.at(norm).isSingle = true;
  ValueId ratio = b.quotient(b.operand(node, last), norm);
  ValueId factor = b.add(Kind::Extremum, {ratio, b.constant(1)}, {}, FlowNode::Elementwise);
  for (unsigned i = 0; i < last; ++i)
    b.bind(node.output(i), Kind::Product, {b.operand(node, i), factor}, {}, FlowNode::Elementwise);
  b.set(node.output(last), norm);
}

// Inputs: skip param grad momentum_buffer? ...
void addSgd(FlowBuilder &b, Node node) {
  ValueId skip = b.operand(node, 0), param = b.operand(node, 1), buffer = b.operand(node, 3);
  ValueId direction = b.sum({b.operand(node, 2), b.product(param, b.anyNumber())});
  if (buffer != kNone) {
    direction = b.sum({b.product(buffer, b.anyNumber()), b.product(direction, b.anyNumber())});
    if (node.numOutputs() > 1)
      b.set(node.output(1), b.select(skip, buffer, direction));
  }
  ValueId next = b.sum({param, b.product(direction, b.factor(scalars(b, node, 4)))}, true);
  b.set(node.output(0), b.select(skip, param, next));
}

} // namespace

bool addTrain(FlowBuilder &b, Node node) {
  if (node.domain() != "recast")
    return false;
  StringRef op = node.opType();
  if (op == "cross_entropy_grad" || op == "nll_loss_grad") {
    addLossGradient(b, node, 2, node.hasAttr("ignore_index") || node.input(3));
  } else if (op == "reduce_to") {
    b.bind(node.output(), Kind::Move, {b.operand(node, 0)}, {b.operand(node, 1)}, FlowNode::Reduce);
  } else if (op.ends_with("_grad")) {
    addLinear(b, node);
  } else if (op == "conv_grad_input" || op == "conv_grad_weight") { // Either operand may be the gradient.
    b.bind(node.output(), Kind::Product, operands(b, node));
  } else if (op == "dropout_mask" || op == "random_uniform") {
    b.bind(node.output(), Kind::Constant, {});
  } else if (op == "scale_loss") {
    b.namesScale(b.operand(node, 1));
    b.bind(node.output(), Kind::Product, operands(b, node), {}, FlowNode::Elementwise);
  } else if (op == "mark_scaled") {
    b.set(node.output(), b.operand(node, 0));
  } else if (op == "unscale") {
    addUnscale(b, node);
  } else if (op == "check_finite") {
    b.bind(node.output(), Kind::Test, operands(b, node), {}, FlowNode::TestsNan | FlowNode::TestsInf);
  } else if (op == "grad_norm") {
    b.bind(node.output(), Kind::Statistic, operands(b, node));
  } else if (op == "clip_grad_norm") {
    addClipNorm(b, node);
  } else if (op == "clip_grad_value") {
    ValueId bound = b.operand(node, node.numInputs() - 1);
    for (unsigned i = 0; i + 1 < node.numInputs(); ++i)
      b.bind(node.output(i), Kind::Extremum, {b.operand(node, i), bound}, {}, FlowNode::Elementwise);
  } else if (op == "adamw" || op == "adam" || op == "nadam" || op == "radam") {
    ValueId most = op == "adamw" || op == "adam" ? b.operand(node, 11) : kNone;
    SmallVector<ValueId> numbers = scalars(b, node, 5);
    llvm::erase(numbers, most);
    AdamResult result =
        addAdam(b, {.param = b.operand(node, 1),
                    .grad = b.operand(node, 2),
                    .first = b.operand(node, 3),
                    .second = b.operand(node, 4),
                    .skip = b.operand(node, 0),
                    .most = most,
                    .numbers = numbers,
                    .decaysGradient = op == "adam" || (op != "adamw" && !node.getInt("decoupled_weight_decay", 0))});
    b.set(node.output(0), result.param);
    b.set(node.output(1), result.first);
    b.set(node.output(2), result.second);
    if (most != kNone && node.numOutputs() > 3)
      b.set(node.output(3), result.most);
    if (ValueId product = b.operand(node, 5); op == "nadam") // Of the momenta: a number that the steps count down.
      b.set(node.output(3), b.select(b.operand(node, 0), product, b.product(product, b.anyNumber())));
  } else if (op == "sgd") {
    addSgd(b, node);
  } else if (op == "keep_if") {
    b.bind(node.output(), Kind::Select, {b.operand(node, 1), b.operand(node, 2)}, {b.operand(node, 0)},
           FlowNode::Elementwise);
  } else if (op == "update_loss_scale") {
    ValueId scale = b.operand(node, 1), count = b.operand(node, 2);
    b.namesScale(scale);
    b.bind(node.output(0), Kind::Select, {b.product(scale, b.operand(node, 4)), b.product(scale, b.operand(node, 3))},
           {b.operand(node, 0)}, FlowNode::Elementwise);
    b.bind(node.output(1), Kind::Select, {b.constant(0), b.sum({count, b.constant(1)})}, {b.operand(node, 0)},
           FlowNode::Elementwise);
  } else if (op == "rank") {
    b.bind(node.output(), Kind::Constant, {});
  } else if (op == "all_reduce" || op == "offload" || op == "fetch") {
    for (auto [operand, result] : llvm::zip(node->getOperands(), node->getResults()))
      b.bind(result, Kind::Move, {b.of(operand)}, {}, FlowNode::Elementwise);
  } else if (op == "quantize_fp8_tiles") { // A scale is the largest magnitude of its tile, up to a rounding.
    ValueId x = b.operand(node, 0);
    ValueId scale = b.bind(node.output(1), Kind::Statistic, {x});
    b.bind(node.output(0), Kind::Quotient, {x, scale}, {}, FlowNode::Elementwise);
  } else if (op == "barrier") {
    for (auto [operand, result] : llvm::zip(node->getOperands(), node->getResults()))
      b.bind(result, Kind::Move, {b.of(operand)}, {}, FlowNode::Elementwise | FlowNode::Barrier);
  } else {
    return false;
  }
  return true;
}

namespace {

// Optimizers write over their inputs; where they have outputs for the new values, those are the same.
void addMicrosoftAdam(FlowBuilder &b, Node node) {
  bool isOld = node.opType() == "AdamOptimizer" || node.opType() == "LambOptimizer";
  // Old: R T weights gradients moment1 moment2 mixed_precision_weights? loss_scale? global_gradient_norm?
  // update_signal? AdamWOptimizer: lr step weights gradients momentums_1 momentums_2 update_signal?
  ValueId weights = b.operand(node, 2), grad = b.operand(node, 3), first = b.operand(node, 4),
          second = b.operand(node, 5), signal = b.operand(node, isOld ? 9 : 6);
  if (ValueId scale = isOld ? b.operand(node, 7) : kNone; scale != kNone) {
    b.namesScale(scale);
    grad = b.quotient(grad, scale);
  }
  AdamResult result = addAdam(
      b, {.param = weights, .grad = grad, .first = first, .second = second, .skip = signal, .skipIfFalse = true});
  b.overwrites(weights, result.param);
  b.overwrites(first, result.first);
  b.overwrites(second, result.second);
  if (isOld) { // new_T, new_moment1, new_moment2, new_weights, new_gradients, new_mixed_precision_weights
    ValueId outputs[] = {b.anyNumber(), result.first, result.second, result.param, grad, result.param};
    for (unsigned i = 0; i < node.numOutputs() && i < 6; ++i)
      b.set(node.output(i), outputs[i]);
    return;
  }
  ValueId outputs[] = {b.anyNumber(), result.param, result.first, result.second};
  for (unsigned i = 0; i < node.numOutputs() && i < 4; ++i)
    b.set(node.output(i), outputs[i]);
}

// SGDOptimizer: ETA weights gradients; outputs new weights, gradients. SGDOptimizerV2: lr weights gradients
// update_signal?; outputs flag, weights.
void addMicrosoftSgd(FlowBuilder &b, Node node) {
  bool isV2 = node.opType() == "SGDOptimizerV2";
  ValueId weights = b.operand(node, 1), grad = b.operand(node, 2);
  ValueId next = b.sum({weights, b.product(b.operand(node, 0), grad)}, true);
  if (ValueId signal = isV2 ? b.operand(node, 3) : kNone; signal != kNone)
    next = b.select(signal, next, weights);
  b.overwrites(weights, next);
  for (auto [i, result] : llvm::enumerate(node->getResults()))
    b.set(result, isV2 ? (i == 0 ? b.anyNumber() : next) : (i == 0 ? next : grad));
}

// InPlaceAccumulatorV2: buffer value overwrite_flag?; outputs flag, buffer. The older two: buffer value do_update?;
// output the new buffer.
void addAccumulator(FlowBuilder &b, Node node) {
  bool isV2 = node.opType() == "InPlaceAccumulatorV2";
  ValueId buffer = b.operand(node, 0), value = b.operand(node, 1), flag = b.operand(node, 2);
  ValueId next = b.sum({buffer, value});
  if (flag != kNone)
    next = isV2 ? b.select(flag, value, next) : b.select(flag, next, buffer);
  b.at(next).element = b.at(buffer).element;
  b.overwrites(buffer, next, /*isBuffer=*/true);
  for (auto [i, result] : llvm::enumerate(node->getResults()))
    b.set(result, isV2 && i == 0 ? b.anyNumber() : next);
}

} // namespace

bool addMicrosoft(FlowBuilder &b, Node node) {
  StringRef op = node.opType();
  if (node.domain() == "org.pytorch.aten") {
    if (!node.getString("operator", "").contains("backward"))
      return false;
    addLinear(b, node);
    return true;
  }
  if (node.domain() != "com.microsoft")
    return false;
  if (op == "AdamWOptimizer" || op == "AdamOptimizer" || op == "LambOptimizer") {
    addMicrosoftAdam(b, node);
  } else if (op == "SGDOptimizer" || op == "SGDOptimizerV2") {
    addMicrosoftSgd(b, node);
  } else if (op == "InPlaceAccumulatorV2" || op == "InPlaceAccumulator" || op == "GradientAccumulator") {
    addAccumulator(b, node);
  } else if (op == "SoftmaxCrossEntropyLossGrad" || op == "SoftmaxCrossEntropyLossInternalGrad") {
    // dY log_prob labels weights? ignore_index?
    addLossGradient(b, node, 2, node.hasAttr("ignore_index") || node.input(3) || node.input(4));
  } else if (op == "SoftmaxCrossEntropyLossInternal") {
    ValueId scores = b.operand(node, 0), labels = b.operand(node, 1);
    ValueId loss = b.bind(node.output(), Kind::Nonlinear, {scores}, {labels});
    if (node.getString("reduction", "mean") == "mean" && (node.input(2) || node.input(3)))
      b.bind(node.output(), Kind::Quotient, {loss, b.add(Kind::Count, {labels})});
    if (node.numOutputs() > 1)
      b.bind(node.output(1), Kind::Nonlinear, {scores});
  } else if (op == "MixedPrecisionScale") {
    for (auto [i, result] : llvm::enumerate(node->getResults()))
      b.bind(result, Kind::Product, {b.operand(node, 0), b.operand(node, static_cast<unsigned>(i + 1))}, {},
             FlowNode::Elementwise);
  } else if (op == "IsAllFinite" || op == "IsFinite") {
    bool nanOnly = node.getInt("isnan_only", 0), infOnly = node.getInt("isinf_only", 0);
    b.bind(node.output(), Kind::Test, operands(b, node), {},
           static_cast<uint16_t>(FlowNode::TrueIfFinite | (infOnly ? 0 : FlowNode::TestsNan) |
                                 (nanOnly ? 0 : FlowNode::TestsInf)));
  } else if (op == "ReduceAllL2") {
    b.bind(node.output(), Kind::Statistic, operands(b, node));
  } else if (op == "YieldOp") { // Hands out the loss and takes its gradient from outside.
    for (Value result : node->getResults())
      b.bind(result, Kind::Source, {}, {}, FlowNode::External);
  } else if (op == "ConcatTraining") {
    b.bind(node.output(), Kind::Join, operands(b, node));
    if (node.numOutputs() > 1)
      b.bind(node.output(1), Kind::Constant, {});
  } else if (op == "FusedMatMul" || op == "TransposeMatMul") {
    b.bind(node.output(), Kind::Product, operands(b, node));
  } else if (op == "BroadcastGradientArgs") {
    for (Value result : node->getResults())
      b.bind(result, Kind::Constant, {});
  } else if (op == "GatherGrad") { // shape indices dY
    addLinear(b, node, 2);
  } else if (op == "ReduceSumTraining") {
    b.bind(node.output(), Kind::Move, {b.operand(node, 0)}, {}, FlowNode::Reduce);
  } else if (op.contains("Grad")) {
    addLinear(b, node);
  } else {
    return false;
  }
  return true;
}

} // namespace recast::verify
