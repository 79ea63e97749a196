#include "passes/gradient/Rules.h"
#include "passes/gradient/RuleHelpers.h"
#include "llvm/ADT/StringMap.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::gradient {

namespace {

using RulesByName = llvm::StringMap<SmallVector<const Rule *, 2>>; ///< By operator, of any domain.

RulesByName indexRules() {
  RulesByName index;
  for (ArrayRef<Rule> family : {elementwiseRules(), reductionRules(), shapeRules(), indexingRules(), productRules(),
                                convolutionRules(), resizeRules(), normalizationRules(), lossRules()})
    for (const Rule &rule : family)
      index[rule.op].push_back(&rule);
  return index;
}

struct Broadcast {
  Ints leading; ///< Axes that `target` does not have.
  Ints kept;    ///< Axes (of the result) in which `target` has size 1.
};

// Null where the types leave open whether an axis was broadcast.
std::optional<Broadcast> broadcastOf(RankedTensorType from, RankedTensorType target) {
  if (!from || !target || from.getRank() < target.getRank())
    return std::nullopt;
  int64_t extra = from.getRank() - target.getRank();
  Broadcast axes{llvm::to_vector(llvm::seq<int64_t>(0, extra)), {}};
  for (int64_t i = 0; i < target.getRank(); ++i) {
    if (sameDim(from, i + extra, target, i) || from.getDimSize(i + extra) == 1)
      continue;
    if (target.getDimSize(i) == 1)
      axes.kept.push_back(i);
    else if (target.isDynamicDim(i))
      return std::nullopt;
  }
  return axes;
}

} // namespace

const Rule *findRule(Node node) {
  static const RulesByName index = indexRules();
  auto at = index.find(node.opType());
  if (at == index.end())
    return nullptr;
  std::optional<int64_t> since; // Most rules hold for every version, which then need not be looked up.
  for (const Rule *rule : at->second) {
    if (rule->domain != node.domain())
      continue;
    if (rule->sinceFirst <= 1 && rule->sinceLast == kNewest)
      return rule;
    if (!since)
      since = node.sinceVersion();
    if (rule->sinceFirst <= *since && *since <= rule->sinceLast)
      return rule;
  }
  return nullptr;
}

Value reduceTo(NodeBuilder &b, Value gradient, Value target) {
  auto from = rankedType(gradient), to = rankedType(target);
  if (to && to.getRank() == 0)
    return from && from.getRank() == 0 ? gradient : b.sum(gradient, {}, /*keepDims=*/false);
  std::optional<Broadcast> axes = broadcastOf(from, to);
  if (!axes)
    return typed(b.node("train.reduce_to", {gradient, b.shapeOf(target)}), target);
  if (axes->leading.empty() && axes->kept.empty())
    return gradient;
  if (axes->leading.empty())
    return typed(b.sum(gradient, axes->kept, /*keepDims=*/true), target);
  Ints all = axes->leading;
  for (int64_t axis : axes->kept)
    all.push_back(axis + static_cast<int64_t>(axes->leading.size()));
  return typed(b.unsqueeze(b.sum(gradient, all, /*keepDims=*/false), axes->kept), target);
}

void RuleContext::addReduced(unsigned input, Value gradient) {
  add(input, b.castLike(reduceTo(b, gradient, node.input(input)), node.input(input)));
}

} // namespace recast::gradient
