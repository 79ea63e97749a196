#include "passes/forms/OrtOperators.h"
#include "passes/gradient/Rules.h"
#include <numbers>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::forms {

namespace {

using Outputs = SmallVectorImpl<Value>;

InFlightDiagnostic refuse(Node node) { return node->emitError() << "node " << node.describe() << " of ONNX Runtime: "; }

// Formulas in at least f32: ONNX Runtime's kernels round a low type once, at the end.
Value widen(NodeBuilder &b, Value x) {
  Type type = elementTypeOf(x);
  return type.isF16() || type.isBF16() ? b.cast(x, b.rewriter().getF32Type()) : x;
}

// x + bias where there is one.
Value biased(Node node, NodeBuilder &b) {
  Value x = widen(b, node.input(0)), bias = node.input(1);
  return bias ? b.add(x, widen(b, bias)) : x;
}

LogicalResult asCalled(Node node, NodeBuilder &b, Value y, Outputs &out) {
  out.push_back(b.castLike(y, node.input(0)));
  return success();
}

// (scores, labels, weights?, ignore_index?); reduction, output_type. The index is an input here.
LogicalResult crossEntropy(Node node, NodeBuilder &b, Outputs &out) {
  SmallVector<NamedAttribute> attrs{b.attr("reduction", node.getString("reduction", "mean"))};
  if (Value index = node.input(3)) {
    auto number = constantInts(index);
    if (!number || number->size() != 1)
      return refuse(node) << "its ignore_index '" << nameOf(index)
                          << "' is no constant; export the model with a fixed one";
    attrs.push_back(b.attr("ignore_index", number->front()));
  }
  SmallVector<Value> inputs{node.input(0), node.input(1)};
  if (Value weights = node.input(2))
    inputs.push_back(weights);
  Operation *loss = b.node("SoftmaxCrossEntropyLoss", inputs, node.numOutputs(), attrs);
  for (Value result : loss->getResults()) {
    int64_t type = node.getInt("output_type", 0);
    out.push_back(type ? b.cast(result, elementTypeFromOnnx(b.context(), static_cast<int>(type))) : result);
  }
  return success();
}

// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), x = input + bias.
LogicalResult fastGelu(Node node, NodeBuilder &b, Outputs &out) {
  Value x = biased(node, b);
  Value cubic = b.add(x, b.mulScalar(b.mul(b.square(x), x), 0.044715));
  Value gate = b.node("Tanh", {b.mulScalar(cubic, std::sqrt(2 / std::numbers::pi))});
  return asCalled(node, b, b.mul(b.mulScalar(x, 0.5), b.addScalar(gate, 1)), out);
}

// x / 2 * (1 + erf(x / sqrt(2))), x = input + bias.
LogicalResult gelu(Node node, NodeBuilder &b, Outputs &out) {
  Value x = biased(node, b);
  Value gate = b.node("Erf", {b.mulScalar(x, std::sqrt(0.5))});
  return asCalled(node, b, b.mul(b.mulScalar(x, 0.5), b.addScalar(gate, 1)), out);
}

// x * sigmoid(alpha x).
LogicalResult quickGelu(Node node, NodeBuilder &b, Outputs &out) {
  Value x = widen(b, node.input(0));
  return asCalled(node, b, b.mul(x, b.node("Sigmoid", {b.mulScalar(x, node.getFloat("alpha", 1.702))})), out);
}

// The second output, the length of each input, is read by the backward alone.
LogicalResult concat(Node node, NodeBuilder &b, Outputs &out) {
  out.push_back(b.concat(node->getOperands(), node.getInt("axis", 0)));
  return success();
}

// (x, axes or split): the forms of before opset 13 gave these as inputs, as the standard operators do now.
LogicalResult withInput(StringRef op, Node node, NodeBuilder &b, Outputs &out) {
  SmallVector<NamedAttribute> attrs;
  for (StringRef name : {"axis", "keepdims", "noop_with_empty_axes"})
    if (node.hasAttr(name))
      attrs.push_back(b.attr(name, node.getInt(name, 0)));
  Operation *made = b.node(op, node->getOperands(), node.numOutputs(), attrs);
  out.append(made->result_begin(), made->result_end());
  return success();
}
LogicalResult reduceSum(Node node, NodeBuilder &b, Outputs &out) { return withInput("ReduceSum", node, b, out); }
LogicalResult split(Node node, NodeBuilder &b, Outputs &out) { return withInput("Split", node, b, out); }

Value transposed(NodeBuilder &b, Node node, Value x, StringRef attribute) {
  return node.getInt(attribute, 0) ? b.matrixTranspose(x) : x;
}

LogicalResult fusedMatMul(Node node, NodeBuilder &b, Outputs &out) {
  for (StringRef name : {"transBatchA", "transBatchB"})
    if (node.getInt(name, 0))
      return refuse(node) << name << " = 1 has no counterpart here; export the model without ONNX Runtime's "
                          << "optimisations for inference";
  for (Value x : {node.input(0), node.input(1)})
    if (!isa<RankedTensorType>(x.getType()))
      return refuse(node) << "the rank of '" << nameOf(x) << "' is not known";
  Value y =
      b.node("MatMul", {transposed(b, node, node.input(0), "transA"), transposed(b, node, node.input(1), "transB")});
  double alpha = node.getFloat("alpha", 1);
  out.push_back(alpha == 1 ? y : b.mulScalar(y, alpha));
  return success();
}

// (data, ratio?, training_mode?) -> (y, bit mask).
LogicalResult dropout(Node node, NodeBuilder &b, Outputs &out) {
  SmallVector<NamedAttribute> attrs;
  if (node.hasAttr("seed"))
    attrs.push_back(b.attr("seed", node.getInt("seed", 0)));
  out.push_back(b.node("Dropout", {node.input(0), node.input(1), node.input(2)}, attrs));
  return success();
}

// (data, bias, residual?, ratio?, training_mode?) -> (Dropout(data + bias) + residual, mask).
LogicalResult biasDropout(Node node, NodeBuilder &b, Outputs &out) {
  SmallVector<NamedAttribute> attrs;
  if (node.hasAttr("seed"))
    attrs.push_back(b.attr("seed", node.getInt("seed", 0)));
  Value x = b.add(node.input(0), node.input(1));
  Operation *made = b.node("Dropout", {x, node.input(3), node.input(4)}, 2, attrs);
  out.push_back(node.input(2) ? b.add(made->getResult(0), node.input(2)) : made->getResult(0));
  if (node.opType() == "BiasDropout") // the other's mask is packed to bits
    out.push_back(made->getResult(1));
  return success();
}

// PyTorch's operators by name. embedding: (weight, indices, padding_idx, scale_grad_by_freq, sparse).
LogicalResult aten(Node node, NodeBuilder &b, Outputs &out) {
  StringRef name = node.getString("operator", "");
  if (name != "embedding")
    return refuse(node) << "PyTorch's operator '" << name << "' has no counterpart here (embedding has)";
  auto scalar = [&](unsigned i, double fallback) -> std::optional<double> {
    Value input = node.input(i);
    return input ? constantScalar(input) : fallback;
  };
  std::optional<double> padding = scalar(2, -1), byFrequency = scalar(3, 0);
  if (!padding || !byFrequency || *byFrequency != 0)
    return refuse(node) << "an embedding whose padding_idx is a constant and whose gradient is not scaled by frequency "
                        << "is needed";
  auto row = static_cast<int64_t>(*padding);
  auto table = dyn_cast<RankedTensorType>(node.input(0).getType());
  // PyTorch's Python API counts from the end for negative rows before it calls the operator, where -1 says none.
  if (table && !table.isDynamicDim(0) && row >= table.getDimSize(0))
    return refuse(node) << "padding_idx " << row << " is no row of '" << nameOf(node.input(0)) << "', which has "
                        << table.getDimSize(0);
  Operation *gather = b.node("Gather", {node.input(0), node.input(1)}, 1, b.attr("axis", int64_t(0)));
  gather->setAttr(gradient::kPaddingIndex, b.rewriter().getI64IntegerAttr(row));
  out.push_back(gather->getResult(0));
  return success();
}

struct Entry {
  llvm::StringLiteral type;
  LogicalResult (*expand)(Node, NodeBuilder &, Outputs &);
};

constexpr Entry kEntries[] = {
    {"SoftmaxCrossEntropyLossInternal", crossEntropy},
    {"FastGelu", fastGelu},
    {"Gelu", gelu},
    {"BiasGelu", gelu},
    {"QuickGelu", quickGelu},
    {"ConcatTraining", concat},
    {"SplitTraining", split},
    {"ReduceSumTraining", reduceSum},
    {"FusedMatMul", fusedMatMul},
    {"TransposeMatMul", fusedMatMul},
    {"BitmaskDropout", dropout},
    {"BiasDropout", biasDropout},
    {"BitmaskBiasDropout", biasDropout},
    {"ATen", aten},
};

} // namespace

bool isOrtDomain(StringRef domain) { return domain == "com.microsoft" || domain == "org.pytorch.aten"; }

LogicalResult expandOrtOperator(Node node, NodeBuilder &b, SmallVectorImpl<Value> &outputs) {
  for (const Entry &entry : kEntries) {
    if (entry.type != node.opType())
      continue;
    if (failed(entry.expand(node, b, outputs)) || b.failed())
      return failure();
    outputs.resize(node.numOutputs());
    for (unsigned i = 0; i < node.numOutputs(); ++i)
      if (!outputs[i] && node.usedOutput(i))
        return refuse(node) << "its output '" << nameOf(node.output(i))
                            << "' is used outside the backward, which has no counterpart here";
    return success();
  }
  return refuse(node) << "the operator has no standard counterpart here; export the model without it";
}

} // namespace recast::forms
