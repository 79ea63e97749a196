// Bodies of the gradients of norms, softmax, losses, and operators that move elements.
#include "ir/train/BodyHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {
namespace {

using Values = ArrayRef<Value>;
using Outputs = SmallVectorImpl<Value>;
using Ints = SmallVector<int64_t>;

LogicalResult reduceTo(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto shape = dyn_cast<RankedTensorType>(in[1].getType());
  if (!rankedType(op, in[0]))
    return failure();
  if (!shape || shape.getRank() != 1 || shape.isDynamicDim(0))
    return op->emitError() << "node " << op.describe() << " reduces to a shape of unknown length";
  out.push_back(b.castLike(reduceToShape(b, widen(b, in[0]), in[1]), in[0]));
  return success();
}

/// The wider of the types that the operands are computed in.
Type commonType(Values in) {
  for (Value x : in)
    if (elementTypeOf(x).isF64())
      return elementTypeOf(x);
  return computeType(elementTypeOf(in.front()));
}

struct NormGradient {
  Value dx;
  Value scaled; ///< dy * normalized x: its sums are the gradient of the scale.
};

/// y = (x - mean) / sqrt(variance + epsilon) * scale over `axes`; without the mean where not centered. `scale`
/// broadcasts to x. With g = dy * scale: dx = (g - mean(g) - normalized * mean(g * normalized)) / sqrt(...).
NormGradient normGradient(NodeBuilder &b, Value dy, Value x, Value scale, ArrayRef<int64_t> axes, double epsilon,
                          bool isCentered) {
  auto mean = [&](Value value) { return b.reduce("ReduceMean", value, axes, /*keepDims=*/true); };
  Value centered = isCentered ? b.sub(x, mean(x)) : x;
  Value deviation = b.node("Sqrt", {b.addScalar(mean(b.square(centered)), epsilon)});
  Value normalized = b.div(centered, deviation), g = b.mul(dy, scale);
  Value rest = b.sub(g, b.mul(normalized, mean(b.mul(g, normalized))));
  return {b.div(isCentered ? b.sub(rest, mean(g)) : rest, deviation), b.mul(dy, normalized)};
}

template <bool isCentered> LogicalResult layerNormGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  RankedTensorType type = rankedType(op, in[1]);
  if (!type || !rankedType(op, in[0]) || !rankedType(op, in[2]))
    return failure();
  int64_t axis = op.getInt("axis", -1);
  axis += axis < 0 ? type.getRank() : 0;
  Ints axes = llvm::to_vector(llvm::seq<int64_t>(axis, type.getRank()));
  Type compute = commonType(in);
  Value dy = b.cast(in[0], compute);
  NormGradient gradient = normGradient(b, dy, b.cast(in[1], compute), b.cast(in[2], compute), axes,
                                       op.getFloat("epsilon", 1e-5), isCentered);
  out.push_back(b.castLike(gradient.dx, in[1]));
  out.push_back(b.castLike(reduceToLike(b, gradient.scaled, in[2]), in[2]));
  if (isCentered)
    out.push_back(b.castLike(reduceToLike(b, dy, in[2]), in[2]));
  return success();
}

LogicalResult batchNormGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  RankedTensorType type = rankedType(op, in[1]);
  if (!type)
    return failure();
  Ints axes = {0};
  for (int64_t axis = 2; axis < type.getRank(); ++axis)
    axes.push_back(axis);
  Type compute = commonType(in);
  Value dy = b.cast(in[0], compute), scale = b.unsqueeze(b.cast(in[2], compute), axes);
  NormGradient gradient = normGradient(b, dy, b.cast(in[1], compute), scale, axes, op.getFloat("epsilon", 1e-5), true);
  out.push_back(b.castLike(gradient.dx, in[1]));
  out.push_back(b.castLike(b.sum(gradient.scaled, axes, /*keepDims=*/false), in[2]));
  out.push_back(b.castLike(b.sum(dy, axes, /*keepDims=*/false), in[2]));
  return success();
}

template <bool isLog> LogicalResult softmaxGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  RankedTensorType type = rankedType(op, in[1]);
  if (!type)
    return failure();
  int64_t axis = op.getInt("axis", -1);
  axis += axis < 0 ? type.getRank() : 0;
  Value dy = widen(b, in[0]), y = b.castLike(in[1], dy);
  Value sum = b.sum(isLog ? dy : b.mul(dy, y), {axis}, /*keepDims=*/true);
  Value dx = isLog ? b.sub(dy, b.mul(b.node("Exp", {y}), sum)) : b.mul(y, b.sub(dy, sum));
  out.push_back(b.castLike(dx, in[0]));
  return success();
}

/// What the gradients of the two losses share. Inputs: dloss, scores or log-probabilities [N, C, d...], labels
/// [N, d...], weights? [C]. The operators themselves came in opset 12.
struct LossTerms {
  Value scores;
  Value isLabel; ///< [N, C, d...]
  Value isKept;  ///< [N, 1, d...], null where no label is ignored.
  Value factor;  ///< The gradient of the loss by each position's term: broadcasts to scores.
};

FailureOr<LossTerms> lossTerms(Node op, NodeBuilder &b, Values in) {
  RankedTensorType type = rankedType(op, in[1]);
  if (!type || failed(needsOpset(op, b, 12)))
    return failure();
  Type int64 = b.rewriter().getI64Type();
  StringRef reduction = op.getString("reduction", "mean");
  LossTerms terms;
  terms.scores = widen(b, in[1]);
  Value labels = b.unsqueeze(b.cast(in[2], int64), {1}), zero = b.scalarLike(terms.scores, 0);
  Ints column(type.getRank(), 1);
  column[1] = -1;
  terms.isLabel = b.node("Equal", {labels, b.reshape(iota(b, sizeOf(b, in[1], 1)), column)});

  Value weight;
  if (op.hasAttr("ignore_index"))
    terms.isKept = b.node("Not", {b.node("Equal", {labels, b.intScalar(op.getInt("ignore_index", 0))})});
  if (in.size() > 3 && in[3]) {
    Value known = terms.isKept ? b.where(terms.isKept, labels, b.intScalar(0)) : labels;
    weight = b.node("Gather", {b.castLike(in[3], terms.scores), known}, b.attr("axis", int64_t(0)));
    if (terms.isKept)
      weight = b.where(terms.isKept, weight, zero);
  } else if (terms.isKept) {
    weight = b.castLike(terms.isKept, terms.scores);
  }
  terms.factor = b.castLike(in[0], terms.scores);
  if (reduction == "none")
    terms.factor = b.unsqueeze(terms.factor, {1});
  if (reduction == "mean")
    terms.factor = b.div(terms.factor, weight ? sumAll(b, weight) : b.castLike(b.node("Size", {in[2]}), terms.scores));
  if (weight)
    terms.factor = b.mul(weight, terms.factor);
  return terms;
}

// (softmax(scores) - onehot(label)) * factor; 0 where the label is ignored.
LogicalResult crossEntropyGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto terms = lossTerms(op, b, in);
  if (failed(terms))
    return failure();
  Value scores = terms->scores, probabilities;
  if (b.opset() >= 13) {
    probabilities = b.node("Softmax", {scores}, b.attr("axis", int64_t(1)));
  } else {
    // Softmax normalises over all axes from the first one on.
    Value exponentials = b.node("Exp", {b.sub(scores, b.reduce("ReduceMax", scores, {1}, /*keepDims=*/true))});
    probabilities = b.div(exponentials, b.sum(exponentials, {1}, /*keepDims=*/true));
  }
  Value distance = b.where(terms->isLabel, b.addScalar(probabilities, -1), probabilities);
  Value gradient = b.mul(distance, terms->factor);
  if (terms->isKept)
    gradient = b.where(terms->isKept, gradient, b.scalarLike(gradient, 0));
  out.push_back(b.castLike(gradient, in[1]));
  return success();
}

// -factor at the label, 0 elsewhere.
LogicalResult nllLossGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto terms = lossTerms(op, b, in);
  if (failed(terms))
    return failure();
  Value isCounted = terms->isKept ? b.node("And", {terms->isLabel, terms->isKept}) : terms->isLabel;
  Value gradient = b.where(isCounted, b.neg(terms->factor), b.scalarLike(terms->scores, 0));
  out.push_back(b.castLike(gradient, in[1]));
  return success();
}

/// dx has `size` elements along `axis` of dy's other sizes, and dx[indices[k]] is the sum of dy[k] along that axis.
/// `indices` is a vector; negative ones count from the end. `shape` is the shape of dx, `rank` its length.
Value sumAtIndices(NodeBuilder &b, Value dy, Value indices, Value shape, int64_t axis, int64_t rank) {
  Ints alongAxis(rank, 1);
  alongAxis[axis] = -1;
  if (b.opset() >= 16) {
    Value everywhere = b.expand(b.reshape(indices, alongAxis), b.shapeOf(dy));
    return b.node("ScatterElements", {b.filled(shape, elementTypeOf(dy), 0), everywhere, dy},
                  {b.attr("axis", axis), b.attr("reduction", "add")});
  }
  // Without sums in ScatterElements, a product with the matrix [size, K] that is 1 at (indices[k], k).
  Value size = b.slice(shape, {axis}, {axis + 1}, {0});
  Value rows = b.reshape(iota(b, size), {-1, 1});
  Value selects = b.node("Or", {b.node("Equal", {rows, indices}), b.node("Equal", {b.sub(rows, size), indices})});
  // The axis becomes the last but one; a vector gets a second axis.
  Ints perm = llvm::to_vector(llvm::seq<int64_t>(0, rank));
  std::swap(perm[axis], perm[std::max<int64_t>(rank - 2, 0)]);
  Value columns = rank == 1 ? b.unsqueeze(dy, {1}) : b.transpose(dy, perm);
  Value dx = b.node("MatMul", {b.castLike(selects, dy), columns});
  return rank == 1 ? b.squeeze(dx, {1}) : b.transpose(dx, perm);
}

LogicalResult gatherGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  auto shapeType = dyn_cast<RankedTensorType>(in[2].getType());
  RankedTensorType indicesType = rankedType(op, in[1]);
  if (failed(needsOpset(op, b, 9)) || !indicesType)
    return failure();
  if (!shapeType || shapeType.isDynamicDim(0))
    return op->emitError() << "node " << op.describe() << " has a shape of unknown length";
  int64_t rank = shapeType.getDimSize(0), axis = op.getInt("axis", 0);
  axis += axis < 0 ? rank : 0;
  Value dy = widen(b, in[0]), indices = b.cast(in[1], b.rewriter().getI64Type());
  if (indicesType.getRank() != 1) {
    // The axes that the indices put in dy become one.
    SmallVector<Value> parts;
    for (int64_t i = 0; i < axis; ++i)
      parts.push_back(sizeOf(b, dy, i));
    parts.push_back(b.ints({-1}));
    for (int64_t i = axis; i + 1 < rank; ++i)
      parts.push_back(sizeOf(b, dy, i + indicesType.getRank()));
    dy = b.reshape(dy, joinShape(b, parts));
    indices = b.reshape(indices, {-1});
  }
  out.push_back(b.castLike(sumAtIndices(b, dy, indices, in[2], axis, rank), in[0]));
  return success();
}

// Slicing the numbers of the elements tells where each element of dy came from.
LogicalResult sliceGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  if (failed(needsOpset(op, b, 10)))
    return failure();
  SmallVector<Value> operands(in.drop_front(2));
  operands.insert(operands.begin(), iotaOver(b, in[1]));
  Value places = b.reshape(b.node("Slice", operands), {-1}), dy = widen(b, in[0]);
  Value size = b.reduce("ReduceProd", in[1], {0}, /*keepDims=*/true);
  Value dx = scatterDistinct(b, size, places, b.reshape(dy, {-1}));
  out.push_back(b.castLike(toShape(b, dx, in[1]), in[0]));
  return success();
}

// Padding the numbers of the elements tells which element each element of dy shows.
LogicalResult padGrad(Node op, NodeBuilder &b, Values in, Outputs &out) {
  RankedTensorType type = rankedType(op, in[0]);
  if (!type || failed(needsOpset(op, b, 11)))
    return failure();
  StringRef mode = op.getString("mode", "constant");
  Value dy = widen(b, in[0]), shape = in[1], pads = in[2], axes = in.size() > 3 ? in[3] : Value();
  if (mode == "constant") {
    // What was added is removed, and the other way round.
    Value zero = b.scalarLike(dy, 0), back = b.neg(pads);
    Value dx = axes ? b.node("Pad", {dy, back, zero, axes}) : b.node("Pad", {dy, back, zero});
    out.push_back(b.castLike(dx, in[0]));
    return success();
  }
  auto padded = [&](Value numbers, Value by, Value axes) {
    SmallVector<Value> operands = {numbers, by};
    if (axes)
      operands.append({Value(), axes});
    return b.node("Pad", operands, b.attr("mode", mode));
  };
  if (b.opset() >= 16) {
    Value size = b.reduce("ReduceProd", shape, {0}, /*keepDims=*/true);
    Value places = b.reshape(padded(iotaOver(b, shape), pads, axes), {-1});
    dy = sumAtIndices(b, b.reshape(dy, {-1}), places, size, 0, 1);
    out.push_back(b.castLike(toShape(b, dy, shape), in[0]));
    return success();
  }
  for (int64_t axis = 0, rank = type.getRank(); axis < rank; ++axis) {
    auto element = [&](int64_t i) { return b.slice(pads, {i}, {i + 1}, {0}); };
    Value size = b.slice(shape, {axis}, {axis + 1}, {0});
    Value places = padded(iota(b, size), b.concat({element(axis), element(rank + axis)}, 0), Value());
    dy = sumAtIndices(b, dy, places, shape, axis, rank);
  }
  out.push_back(b.castLike(dy, in[0]));
  return success();
}

} // namespace

ArrayRef<BodyEntry> gradientBodies() {
  static const BodyEntry entries[] = {
      {"reduce_to", reduceTo},
      {"layer_norm_grad", layerNormGrad<true>},
      {"rms_norm_grad", layerNormGrad<false>},
      {"batch_norm_grad", batchNormGrad},
      {"softmax_grad", softmaxGrad<false>},
      {"log_softmax_grad", softmaxGrad<true>},
      {"cross_entropy_grad", crossEntropyGrad},
      {"nll_loss_grad", nllLossGrad},
      {"gather_grad", gatherGrad},
      {"slice_grad", sliceGrad},
      {"pad_grad", padGrad},
  };
  return entries;
}

} // namespace recast::train
