#include "ir/onnx/CheckOperands.h"
#include "ir/onnx/Types.h"
#include "onnx/defs/schema.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using llvm::formatv;
namespace recast::onnx_ir {

namespace {

RankedTensorType shapeOf(Node node, unsigned i) {
  return i < node.numInputs() && node.input(i) ? dyn_cast<RankedTensorType>(node.input(i).getType())
                                               : RankedTensorType();
}

bool differ(int64_t a, int64_t b) { return !ShapedType::isDynamic(a) && !ShapedType::isDynamic(b) && a != b; }

// Conv: x [N, C, ...], w [M, C/group, ...]. ConvTranspose: w [C, M/group, ...].
std::string checkConvolution(Node node) {
  int64_t group = node.getInt("group", 1);
  if (group < 1)
    return formatv("group is {0}, and must be at least 1", group);
  RankedTensorType x = shapeOf(node, 0), w = shapeOf(node, 1);
  if (!x || !w || x.getRank() < 3 || w.getRank() != x.getRank())
    return x && w
               ? formatv("x has {0} dimensions and w {1}: both need 3 or more, and as many", x.getRank(), w.getRank())
               : std::string();
  int64_t channels = x.getDimSize(1), first = w.getDimSize(0), second = w.getDimSize(1);
  bool isTransposed = node.is("ConvTranspose");
  int64_t wanted = isTransposed ? first : ShapedType::isDynamic(second) ? second : second * group;
  if (differ(channels, wanted))
    return formatv("x has {0} channels, and w is for {1} in {2} groups", channels, wanted, group);
  if (!ShapedType::isDynamic(first) && first % group != 0)
    return formatv("{0} {1} channels cannot be split into {2} groups", first, isTransposed ? "input" : "output", group);
  return "";
}

// scores [N, C, d...], labels [N, d...], weights [C].
std::string checkLabelLoss(Node node) {
  StringRef reduction = node.getString("reduction", "mean");
  if (reduction != "mean" && reduction != "sum" && reduction != "none")
    return formatv("reduction is '{0}', and must be mean, sum or none", reduction);
  RankedTensorType scores = shapeOf(node, 0), labels = shapeOf(node, 1), weights = shapeOf(node, 2);
  if (scores && scores.getRank() < 2)
    return "scores need the axes [N, C, ...]";
  if (scores && weights && (weights.getRank() != 1 || differ(weights.getDimSize(0), scores.getDimSize(1))))
    return formatv("the weights are {0}, for scores that are {1}", Type(weights), Type(scores));
  if (!scores || !labels)
    return "";
  bool fits = labels.getRank() == scores.getRank() - 1;
  for (int64_t i = 0; fits && i < labels.getRank(); ++i)
    fits = !differ(labels.getDimSize(i), scores.getDimSize(i == 0 ? 0 : i + 1));
  return fits ? "" : formatv("the labels are {0}, for scores that are {1}", Type(labels), Type(scores)).str();
}

} // namespace

std::string problemWithOperands(Node node) {
  if (!node.domain().empty())
    return "";
  if (node.is("Conv") || node.is("ConvTranspose"))
    return checkConvolution(node);
  if (node.is("SoftmaxCrossEntropyLoss") || node.is("NegativeLogLikelihoodLoss"))
    return checkLabelLoss(node);
  return "";
}

std::string problemWithTypes(Node node) {
  const onnx::OpSchema *schema = node.schema();
  if (!schema || schema->inputs().empty())
    return "";
  llvm::StringMap<std::pair<Type, unsigned>> types; // by the name of the constraint, with the first such input
  for (unsigned i = 0; i < node.numInputs(); ++i) {
    const auto &parameter = schema->inputs()[std::min<size_t>(i, schema->inputs().size() - 1)];
    Type element = node.input(i) ? elementTypeOf(node.input(i)) : Type();
    if (!element || !parameter.GetIsHomogeneous() || !schema->typeConstraintMap().count(parameter.GetTypeStr()))
      continue;
    auto [first, isNew] = types.try_emplace(parameter.GetTypeStr(), element, i);
    if (!isNew && first->second.first != element)
      return formatv("'{0}' is {1} and '{2}' is {3}, where both must be of one type",
                     nameOf(node.input(first->second.second)), first->second.first, nameOf(node.input(i)), element);
  }
  return "";
}

} // namespace recast::onnx_ir
