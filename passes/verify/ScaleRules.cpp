// Scale, unscale, clip: what the degrees in the loss scale say.
#include "passes/verify/Degrees.h"
#include "passes/verify/Rules.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::verify {

namespace {

// The scale itself, and, where it is a constant, every constant that is it or its inverse.
llvm::DenseMap<ValueId, Symbol> symbolsOf(const FlowGraph &flow, const Roles &roles) {
  llvm::DenseMap<ValueId, Symbol> symbols;
  for (ValueId scale : roles.newScales) // What is divided by the scale of the next step still carries this one's.
    symbols[scale] = {Degrees::kUncounted + scale};
  for (auto [i, scale] : llvm::enumerate(roles.scales)) {
    uint32_t index = static_cast<uint32_t>(i);
    symbols[scale] = {index};
    if (flow[scale].kind != Kind::Constant || !flow[scale].isNumber())
      continue;
    double number = flow[scale].number;
    for (ValueId value = 0; value < flow.size(); ++value)
      if (flow[value].isNumber() && flow[value].isSingle &&
          (flow[value].number == number || flow[value].number == 1 / number))
        symbols[value] = {index, flow[value].number == number ? 1.0f : -1.0f};
  }
  return symbols;
}

struct Message {
  Rule rule;
  std::string text;
};

Message messageOf(const DegreeEvent &event, const std::string &node, const std::string &scale,
                  const std::string &target) {
  using llvm::formatv;
  switch (event.type) {
  case DegreeEvent::Clipped:
  case DegreeEvent::Compared:
    return {Rule::ClipBeforeUnscale,
            formatv("{0} compares a gradient that still carries {1} with a bound that does not, before the update of "
                    "{2}: divide the gradient by the scale first",
                    node, scale, target)};
  case DegreeEvent::Distorted:
    return {Rule::ClipBeforeUnscale,
            formatv("{0} is not linear and takes a gradient that still carries {1}, before the update of {2}: divide "
                    "the gradient by the scale first",
                    node, scale, target)};
  case DegreeEvent::Repeated:
    return {Rule::LossScaledTwice, formatv("{0} multiplies by {1} what carries it already, on the way to the update of "
                                           "{2}: scale the loss once",
                                           node, scale, target)};
  case DegreeEvent::Removed:
    return {Rule::DoubleUnscale, formatv("{0} divides by {1} what does not carry it, on the way to the update of {2}: "
                                         "unscale each gradient once",
                                         node, scale, target)};
  case DegreeEvent::Mismatch:
    break;
  }
  if (event.degree < 0)
    return {Rule::DoubleUnscale, formatv("{0} adds a gradient that was divided by {1} once too often, in the update of "
                                         "{2}: unscale each gradient once",
                                         node, scale, target)};
  return {Rule::MissingUnscale,
          formatv("{0} adds a gradient that still carries {1} to a value that does not, in the "
                  "update of {2}: divide the gradient by the scale that the loss was multiplied by",
                  node, scale, target)};
}

} // namespace

void checkScaleRules(RuleContext &context) {
  const FlowGraph &flow = context.flow;
  const Roles &roles = context.roles;
  if (roles.scales.empty())
    return;
  llvm::DenseMap<ValueId, Symbol> symbols = symbolsOf(flow, roles);
  Degrees degrees(flow, symbols, roles.dependsOnBatch, /*isCount=*/false);
  std::vector<std::string> names;
  for (ValueId scale : roles.scales)
    names.push_back(context.nameOf(scale).empty() ? llvm::formatv("{0}", flow[scale].number).str()
                                                  : "'" + context.nameOf(scale) + "'");
  std::string scale = "the loss scale " + llvm::join(names, " and ");
  // A scale that came in twice is found again wherever one of the two is left.
  bool isRepeated = llvm::any_of(degrees.events(), [&](const DegreeEvent &event) {
    return event.type == DegreeEvent::Repeated && roles.reachesUpdate[event.node];
  });
  for (const DegreeEvent &event : degrees.events()) {
    if (isRepeated && event.type != DegreeEvent::Repeated && event.type != DegreeEvent::Removed)
      continue;
    bool isCondition = event.type == DegreeEvent::Compared;
    if (!(isCondition ? roles.decidesUpdate : roles.reachesUpdate)[event.node])
      continue;
    std::string target;
    std::vector<ValueId> onward = context.pathToUpdate(event.node, target, isCondition);
    // Back along what carries the scale to where it comes in; a scale that is taken off twice, along what is divided.
    bool wasRemoved = event.type == DegreeEvent::Removed || (event.type == DegreeEvent::Mismatch && event.degree < 0);
    std::vector<ValueId> path = context.pathTo(
        event.node, [&](ValueId value) { return !wasRemoved && symbols.contains(value); },
        [&](ValueId user, ValueId operand) {
          if (!llvm::is_contained(flow[user].data(), operand))
            return false;
          return degrees.total(operand) != 0 || (wasRemoved && roles.dependsOnBatch[operand]);
        });
    if (wasRemoved) // Every division by the scale on the way.
      path = context.pathTo(
          event.node,
          [&](ValueId value) {
            return value != event.node && !degrees.isPure(value) && degrees.total(value) == 0 &&
                   llvm::any_of(flow[value].main(), [&](ValueId operand) {
                     return degrees.isPure(operand) && degrees.total(operand) != 0;
                   });
          },
          [&](ValueId user, ValueId operand) {
            return llvm::is_contained(flow[user].data(), operand) && roles.dependsOnBatch[operand];
          });
    if (!onward.empty())
      path.insert(path.end(), onward.begin() + 1, onward.end());
    Message message = messageOf(event, flow.describe(event.node), scale, "'" + target + "'");
    context.add(message.rule, std::move(message.text), path, "the update of '" + target + "'", target);
  }
}

} // namespace recast::verify
