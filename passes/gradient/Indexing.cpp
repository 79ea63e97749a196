// Reads and writes at indices: repeated indices sum.
#include "passes/gradient/RuleHelpers.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

LogicalResult gatherGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  Value dy = c.dy();
  if (auto padding = c.node->getAttrOfType<IntegerAttr>(kPaddingIndex)) {
    // torch.nn.Embedding(padding_idx): look-ups of that row give it no gradient.
    auto indices = dyn_cast<RankedTensorType>(c.x(1).getType()), gradient = dyn_cast<RankedTensorType>(dy.getType());
    if (!indices || !gradient || c.node.getInt("axis", 0) != 0)
      return c.refuse("a padding index needs axis 0 and known ranks");
    Value isPadding =
        b.node("Equal", {c.x(1), b.scalar(indices.getElementType(), static_cast<double>(padding.getInt()))});
    dy = unless(b, b.unsqueeze(isPadding, llvm::to_vector(llvm::seq(indices.getRank(), gradient.getRank()))), dy);
  }
  c.add(0, typed(b.node("train.gather_grad", {dy, c.x(1), b.shapeOf(c.x())}, b.attr("axis", c.node.getInt("axis", 0))),
                 c.x()));
  return success();
}

// Before opset 16 scatters cannot add: the same gather on the flat indices of x says where each element came from.
LogicalResult gatherElementsGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  NamedAttribute axis = b.attr("axis", c.node.getInt("axis", 0));
  if (b.opset() >= 16) {
    NamedAttribute add = b.attr("reduction", StringRef("add"));
    c.add(0, typed(b.node("ScatterElements", {b.zerosLike(c.x()), c.x(1), c.dy()}, {axis, add}), c.x()));
    return success();
  }
  c.add(0, scatterFlat(b, c.dy(), b.node("GatherElements", {flatIndices(b, c.x()), c.x(1)}, axis), c.x()));
  return success();
}

// ScatterND has no batch_dims.
LogicalResult gatherNdGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (!c.needs(0))
    return success();
  int64_t batch = c.node.getInt("batch_dims", 0);
  if (b.opset() >= 16 && batch == 0) {
    Value zeros = b.zerosLike(c.x());
    c.add(0, typed(b.node("ScatterND", {zeros, c.x(1), c.dy()}, b.attr("reduction", StringRef("add"))), c.x()));
    return success();
  }
  SmallVector<NamedAttribute> attrs;
  if (batch)
    attrs.push_back(b.attr("batch_dims", batch));
  c.add(0, scatterFlat(b, c.dy(), b.node("GatherND", {flatIndices(b, c.x()), c.x(1)}, attrs), c.x()));
  return success();
}

// The largest (or smallest) of data and updates: those that are equal to it share dy, as in PyTorch.
template <bool isNd> void scatterExtremeGrad(RuleContext &c, ArrayRef<NamedAttribute> attrs) {
  NodeBuilder &b = c.b;
  auto gather = [&](Value from) { return b.node(isNd ? "GatherND" : "GatherElements", {from, c.x(1)}, attrs); };
  SmallVector<NamedAttribute> adding(attrs);
  adding.push_back(b.attr("reduction", StringRef("add")));
  Value isData = equal(b, c.x(), c.y()), isUpdate = equal(b, c.x(2), gather(c.y()));
  Value winners = b.node(isNd ? "ScatterND" : "ScatterElements",
                         {b.castLike(isData, c.dy()), c.x(1), b.castLike(isUpdate, c.dy())}, adding);
  Value share = b.div(c.dy(), winners);
  if (c.needs(0))
    c.add(0, typed(select(b, isData, share), c.x()));
  if (c.needs(2))
    c.add(2, typed(select(b, isUpdate, gather(share)), c.x(2)));
}

// data gets dy where nothing was written over it, updates get dy from the places that they went to.
template <bool isNd> LogicalResult scatterGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  StringRef reduction = c.node.getString("reduction", "none");
  if (reduction == "mul")
    return c.refuse("reduction = \"mul\" has no gradient rule; \"none\", \"add\", \"max\" and \"min\" have");
  SmallVector<NamedAttribute> attrs;
  if (!isNd)
    attrs.push_back(b.attr("axis", c.node.getInt("axis", 0)));
  if (reduction == "max" || reduction == "min") {
    scatterExtremeGrad<isNd>(c, attrs);
    return success();
  }
  if (c.needs(0)) {
    StringRef scatter = isNd ? "ScatterND" : "ScatterElements";
    c.add(0, reduction == "add" ? c.dy() : typed(b.node(scatter, {c.dy(), c.x(1), b.zerosLike(c.x(2))}, attrs), c.x()));
  }
  if (c.needs(2))
    c.add(2, typed(b.node(isNd ? "GatherND" : "GatherElements", {c.dy(), c.x(1)}, attrs), c.x(2)));
  return success();
}

LogicalResult reverseSequenceGrad(RuleContext &c) {
  NodeBuilder &b = c.b;
  if (c.needs(0))
    c.add(0, b.node("ReverseSequence", {c.dy(), c.x(1)},
                    {b.attr("batch_axis", c.node.getInt("batch_axis", 1)),
                     b.attr("time_axis", c.node.getInt("time_axis", 0))}));
  return success();
}

const Rule kRules[] = {
    {"", "Gather", 1, kNewest, Kind::Rule, gatherGrad, 1},
    {"", "GatherElements", 11, kNewest, Kind::Rule, gatherElementsGrad, 1},
    {"", "GatherND", 11, kNewest, Kind::Rule, gatherNdGrad, 1},
    {"", "NonZero", 9, kNewest, Kind::Zero},
    {"", "ReverseSequence", 10, kNewest, Kind::Rule, reverseSequenceGrad, 1},
    {"", "ScatterElements", 11, kNewest, Kind::Rule, scatterGrad<false>, 0b101},
    {"", "ScatterND", 11, kNewest, Kind::Rule, scatterGrad<true>, 0b101},
};

} // namespace

ArrayRef<Rule> indexingRules() { return kRules; }

} // namespace recast::gradient
