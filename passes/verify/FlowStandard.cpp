// Operators of ONNX's own domains.
#include "passes/verify/FlowBuilder.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::verify {

namespace {

struct OpRule {
  Kind kind;
  unsigned mains; ///< The first operands that are main; 0: all.
  uint16_t flags = 0;
  float exponent = 1;
};

constexpr uint16_t kElementwise = FlowNode::Elementwise;

const llvm::StringMap<OpRule> &table() {
  static const llvm::StringMap<OpRule> rules = {
      {"Identity", {Kind::Move, 1, kElementwise}},
      {"Cast", {Kind::Move, 1, kElementwise}},
      {"CastLike", {Kind::Move, 1, kElementwise}},
      {"Reshape", {Kind::Move, 1, kElementwise}},
      {"Flatten", {Kind::Move, 1, kElementwise}},
      {"Squeeze", {Kind::Move, 1, kElementwise}},
      {"Unsqueeze", {Kind::Move, 1, kElementwise}},
      {"Neg", {Kind::Move, 1, kElementwise | FlowNode::Negates}},
      {"Transpose", {Kind::Move, 1}},
      {"Expand", {Kind::Move, 1}},
      {"Tile", {Kind::Move, 1}},
      {"Pad", {Kind::Move, 1}},
      {"Trilu", {Kind::Move, 1}},
      {"DepthToSpace", {Kind::Move, 1}},
      {"SpaceToDepth", {Kind::Move, 1}},
      {"ReverseSequence", {Kind::Move, 1}},
      {"Compress", {Kind::Move, 1}},
      {"Slice", {Kind::Move, 1, FlowNode::Slice}},
      {"Split", {Kind::Move, 1, FlowNode::Slice}},
      {"Gather", {Kind::Move, 1, FlowNode::Slice}},
      {"GatherElements", {Kind::Move, 1}},
      {"GatherND", {Kind::Move, 1}},
      {"TopK", {Kind::Move, 1}},
      {"ReduceSum", {Kind::Move, 1, FlowNode::Reduce}},
      {"ReduceMean", {Kind::Move, 1, FlowNode::Reduce | FlowNode::Mean}},
      {"CumSum", {Kind::Move, 1}},
      {"AveragePool", {Kind::Linear, 1}},
      {"GlobalAveragePool", {Kind::Linear, 1}},
      {"Resize", {Kind::Linear, 1}},
      {"Upsample", {Kind::Linear, 1}},
      {"Concat", {Kind::Join, 0}},
      {"ScatterND", {Kind::Join, 0}},
      {"ScatterElements", {Kind::Join, 0}},
      {"Scatter", {Kind::Join, 0}},
      {"Add", {Kind::Sum, 0, kElementwise}},
      {"Sub", {Kind::Sum, 0, kElementwise | FlowNode::Subtract}},
      {"Sum", {Kind::Sum, 0, kElementwise}},
      {"Mean", {Kind::Sum, 0, kElementwise | FlowNode::Mean}},
      {"Mul", {Kind::Product, 0, kElementwise}},
      {"MatMul", {Kind::Product, 0}},
      {"Einsum", {Kind::Product, 0}},
      {"Div", {Kind::Quotient, 0, kElementwise}},
      {"DequantizeLinear", {Kind::Product, 2}},
      {"QuantizeLinear", {Kind::Quotient, 2}},
      {"Reciprocal", {Kind::Power, 1, kElementwise, -1}},
      {"Sqrt", {Kind::Power, 1, kElementwise, 0.5}},
      {"Abs", {Kind::Homogeneous, 1, kElementwise}},
      {"ReduceMax", {Kind::Statistic, 1}},
      {"ReduceMin", {Kind::Statistic, 1}},
      {"ReduceL1", {Kind::Statistic, 1}},
      {"ReduceL2", {Kind::Statistic, 1}},
      {"ReduceSumSquare", {Kind::Statistic, 1, 0, 2}},
      {"Min", {Kind::Extremum, 0, kElementwise}},
      {"Max", {Kind::Extremum, 0, kElementwise}},
      {"Sign", {Kind::Sign, 1, kElementwise}},
      {"Shape", {Kind::Constant, 1}},
      {"Size", {Kind::Constant, 1}},
      {"Range", {Kind::Constant, 1}},
      {"EyeLike", {Kind::Constant, 1}},
      {"RandomNormal", {Kind::Constant, 1}},
      {"RandomUniform", {Kind::Constant, 1}},
      {"RandomNormalLike", {Kind::Constant, 1}},
      {"RandomUniformLike", {Kind::Constant, 1}},
  };
  return rules;
}

SmallVector<ValueId> operands(FlowBuilder &b, Node node, unsigned first = 0, unsigned end = ~0u) {
  SmallVector<ValueId> ids;
  for (unsigned i = first; i < std::min(end, node.numInputs()); ++i)
    ids.push_back(b.operand(node, i));
  return ids;
}

std::optional<CompareOp> comparison(Node node) {
  return llvm::StringSwitch<std::optional<CompareOp>>(node.opType())
      .Case("Less", CompareOp::Less)
      .Case("LessOrEqual", CompareOp::LessOrEqual)
      .Case("Greater", CompareOp::Greater)
      .Case("GreaterOrEqual", CompareOp::GreaterOrEqual)
      .Case("Equal", CompareOp::Equal)
      .Default(std::nullopt);
}

std::optional<LogicOp> logic(Node node) {
  return llvm::StringSwitch<std::optional<LogicOp>>(node.opType())
      .Cases({"And", "BitwiseAnd"}, LogicOp::And)
      .Cases({"Or", "BitwiseOr"}, LogicOp::Or)
      .Cases({"Not", "BitwiseNot"}, LogicOp::Not)
      .Cases({"Xor", "BitwiseXor"}, LogicOp::Xor)
      .Default(std::nullopt);
}

bool addBoolean(FlowBuilder &b, Node node) {
  if (auto op = comparison(node)) {
    b.at(b.bind(node.output(), Kind::Compare, operands(b, node), {}, kElementwise)).code = static_cast<uint8_t>(*op);
    return true;
  }
  if (auto op = logic(node)) {
    b.at(b.bind(node.output(), Kind::Logic, operands(b, node), {}, kElementwise)).code = static_cast<uint8_t>(*op);
    return true;
  }
  if (node.is("IsNaN") || node.is("IsInf")) {
    b.bind(node.output(), Kind::Test, {b.operand(node, 0)}, {},
           kElementwise | (node.is("IsNaN") ? FlowNode::TestsNan : FlowNode::TestsInf));
    return true;
  }
  return false;
}

// Clip before a cast to 8 bits or fewer, or before QuantizeLinear, only makes the cast saturate.
bool onlySaturates(Value clipped) {
  return !clipped.use_empty() && llvm::all_of(clipped.getUsers(), [](Operation *user) {
    Node node(user);
    Type element = node.is("Cast") ? elementTypeOf(node.output()) : Type();
    return node.is("QuantizeLinear") || (element && storageBits(element) > 0 && storageBits(element) <= 8);
  });
}

void addClip(FlowBuilder &b, Node node) {
  ValueId x = b.operand(node, 0);
  if (onlySaturates(node.output())) {
    b.bind(node.output(), Kind::Move, {x}, {}, kElementwise);
    return;
  }
  SmallVector<ValueId> mains{x};
  for (auto [i, name] : {std::pair(1u, "min"), std::pair(2u, "max")})
    if (node.hasAttr(name))
      mains.push_back(b.constant(node.getFloat(name, 0)));
    else
      mains.push_back(b.operand(node, i));
  b.bind(node.output(), Kind::Extremum, mains, {}, kElementwise);
}

void addPow(FlowBuilder &b, Node node) {
  ValueId x = b.operand(node, 0), exponent = b.operand(node, 1);
  if (!b.at(exponent).isNumber()) {
    b.bind(node.output(), Kind::Nonlinear, {x, exponent}, {}, kElementwise);
    return;
  }
  float number = static_cast<float>(b.at(exponent).number);
  b.at(b.bind(node.output(), Kind::Power, {x}, {}, kElementwise)).exponent = number;
}

// A product and a term: Gemm, Conv, ConvTranspose.
void addAffine(FlowBuilder &b, Node node) {
  ValueId bias = b.operand(node, 2);
  bool hasBias = bias != kNone && !(node.is("Gemm") && node.getFloat("beta", 1) == 0);
  ValueId product = b.bind(node.output(), Kind::Product, {b.operand(node, 0), b.operand(node, 1)});
  if (hasBias)
    b.bind(node.output(), Kind::Sum, {product, bias});
}

// y and, when training, the running statistics: a blend of the old ones and those of the batch.
void addBatchNorm(FlowBuilder &b, Node node) {
  ValueId x = b.operand(node, 0);
  b.bind(node.output(), Kind::Nonlinear, operands(b, node, 0, node.getInt("training_mode", 0) ? 3 : 5));
  for (unsigned i = 1; i < node.numOutputs(); ++i) {
    ValueId statistic = b.add(Kind::Nonlinear, {x});
    ValueId old = i < 3 ? b.operand(node, i + 2) : kNone;
    if (old == kNone)
      b.bind(node.output(i), Kind::Nonlinear, {x});
    else
      b.bind(node.output(i), Kind::Sum, {b.product(old, b.anyNumber()), b.product(statistic, b.anyNumber())}, {},
             kElementwise);
  }
}

// The mean over labels that count: a sum, divided by a number that depends on the labels.
void addLoss(FlowBuilder &b, Node node) {
  ValueId scores = b.operand(node, 0), labels = b.operand(node, 1), weights = b.operand(node, 2);
  bool counts = node.getString("reduction", "mean") == "mean" && (node.hasAttr("ignore_index") || weights != kNone);
  ValueId loss = b.bind(node.output(), Kind::Nonlinear, {scores}, {labels, weights});
  if (counts)
    b.bind(node.output(), Kind::Quotient, {loss, b.add(Kind::Count, {labels}, {weights})});
  if (node.numOutputs() > 1)
    b.bind(node.output(1), Kind::Nonlinear, {scores});
}

// Where the runtimes lack Where for a type: Gather(Concat(b, a), condition).
bool addSelectByGather(FlowBuilder &b, Node node) {
  Operation *data = node.input(0).getDefiningOp(), *index = node.input(1).getDefiningOp();
  if (!data || !index || !Node(data).is("Concat") || data->getNumOperands() != 2 || !Node(index).is("Cast"))
    return false;
  ValueId condition = b.of(index->getOperand(0));
  if (condition == kNone || b.at(condition).element != Element::Bool)
    return false;
  b.bind(node.output(), Kind::Select, {b.of(data->getOperand(1)), b.of(data->getOperand(0))}, {condition},
         kElementwise);
  return true;
}

// --- ai.onnx.preview.training ---

// Linear in what is differentiated. The operator names its tensors by attributes, and y is among the values before it.
void addGradient(FlowBuilder &b, Node node) {
  StringRef name = node.getString("y", "");
  ValueId y = kNone;
  for (Operation *op = node->getPrevNode(); op && y == kNone; op = op->getPrevNode())
    for (Value result : op->getResults())
      if (nameOf(result) == name)
        y = b.of(result);
  for (Value result : node->getResults())
    b.bind(result, y == kNone ? Kind::Opaque : Kind::Linear, y == kNone ? ArrayRef<ValueId>() : ArrayRef(y),
           operands(b, node));
}

// Inputs R, T, then as many X, G, V (and H) as there are parameters; outputs the new X, V (and H).
bool addPreviewOptimizer(FlowBuilder &b, Node node) {
  unsigned states = node.opType() == "Adam" ? 2 : 1;
  if (node.opType() != "Adam" && node.opType() != "Adagrad" && node.opType() != "Momentum")
    return false;
  unsigned count = (node.numInputs() - 2) / (2 + states);
  ValueId rate = b.operand(node, 0);
  for (unsigned i = 0; i < count; ++i) {
    auto part = [&](unsigned k) { return b.operand(node, 2 + k * count + i); };
    ValueId x = part(0), gradient = b.sum({part(1), b.product(x, b.anyNumber())}), state = part(2), newState, newX;
    if (states == 2) {
      AdamResult result = addAdam(b, {.param = x, .grad = gradient, .first = state, .second = part(3)});
      b.set(node.output(2 * count + i), result.second);
      newState = result.first;
      newX = result.param;
    } else if (node.opType() == "Adagrad") {
      newState = b.sum({state, b.product(gradient, gradient)});
      newX = b.sum({x, b.product(rate, b.quotient(gradient, b.sum({b.power(newState, 0.5), b.constant(1e-6)})))}, true);
    } else {
      newState = b.sum({b.product(state, b.anyNumber()), b.product(gradient, b.anyNumber())});
      newX = b.sum({x, b.product(rate, newState)}, true);
    }
    b.set(node.output(i), newX);
    b.set(node.output(count + i), newState);
  }
  return true;
}

} // namespace

bool addStandard(FlowBuilder &b, Node node) {
  if (node.domain() == "ai.onnx.preview.training" || node.domain() == "ai.onnx.preview") {
    if (node.opType() != "Gradient")
      return addPreviewOptimizer(b, node);
    addGradient(b, node);
    return true;
  }
  if (!node.domain().empty())
    return false;
  StringRef op = node.opType();
  if (op == "Gather" && addSelectByGather(b, node))
    return true;
  if (auto rule = table().find(op); rule != table().end()) {
    auto [kind, mains, flags, exponent] = rule->second;
    unsigned count = mains ? mains : node.numInputs();
    if (op.starts_with("Scatter") && !op.ends_with("ND")) { // data, indices, updates
      b.bind(node.output(), kind, {b.operand(node, 0), b.operand(node, 2)}, {b.operand(node, 1)});
      return true;
    }
    if (op == "ScatterND") {
      b.bind(node.output(), kind, {b.operand(node, 0), b.operand(node, 2)}, {b.operand(node, 1)});
      return true;
    }
    SmallVector<ValueId> main, sides;
    if (kind != Kind::Constant) {
      main = operands(b, node, 0, count);
      sides = operands(b, node, count);
    }
    for (Value result : node->getResults())
      b.at(b.bind(result, kind, main, sides, flags)).exponent = exponent;
    if (kind == Kind::Extremum)
      b.at(b.of(node.output())).code = static_cast<uint8_t>(op == "Min" ? ExtremumOp::Min : ExtremumOp::Max);
    return true;
  }
  if (addBoolean(b, node))
    return true;
  if (op == "Constant" || op == "ConstantOfShape") {
    auto number = op == "Constant" ? constantScalar(node.output(), /*splat=*/true) : std::optional<double>();
    if (op == "ConstantOfShape") {
      auto value = node->getAttrOfType<TensorAttr>("value");
      auto values = value ? asDoubles(value) : std::optional<SmallVector<double>>(SmallVector<double>{0});
      number = values && values->size() == 1 ? std::optional(values->front()) : std::nullopt;
    }
    ValueId id = b.bind(node.output(), Kind::Constant, {});
    if (number)
      b.at(id).number = *number;
  } else if (op == "Where") {
    b.bind(node.output(), Kind::Select, {b.operand(node, 1), b.operand(node, 2)}, {b.operand(node, 0)}, kElementwise);
  } else if (op == "Clip") {
    addClip(b, node);
  } else if (op == "Pow") {
    addPow(b, node);
  } else if (op == "Gemm" || op == "Conv" || op == "ConvTranspose") {
    addAffine(b, node);
  } else if (op == "BatchNormalization") {
    addBatchNorm(b, node);
  } else if (op == "SoftmaxCrossEntropyLoss" || op == "NegativeLogLikelihoodLoss") {
    addLoss(b, node);
  } else {
    return false;
  }
  return true;
}

} // namespace recast::verify
