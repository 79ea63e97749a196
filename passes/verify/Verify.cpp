#include "passes/verify/Verify.h"
#include "passes/verify/BuildFlow.h"
#include "passes/verify/Rules.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/ADT/bit.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::verify {

llvm::StringRef nameOf(Rule rule) {
  switch (rule) {
  case Rule::ClipBeforeUnscale:
    return "clip-before-unscale";
  case Rule::UncheckedGradient:
    return "unchecked-gradient";
  case Rule::UpdateOutsideSkip:
    return "update-outside-skip";
  case Rule::MissingUnscale:
    return "missing-unscale";
  case Rule::DoubleUnscale:
    return "double-unscale";
  case Rule::LossScaledTwice:
    return "loss-scaled-twice";
  case Rule::StatisticsInRecompute:
    return "statistics-in-recompute";
  case Rule::MeanOfMeans:
    return "mean-of-means";
  case Rule::LowPrecisionAccumulator:
    return "low-precision-accumulator";
  }
  return "";
}

std::string RuleContext::nameOf(ValueId source) const {
  for (const NamedValue &named : flow.sources)
    if (named.value == source)
      return named.name;
  return "";
}

std::vector<ValueId> RuleContext::pathTo(ValueId to, llvm::function_ref<bool(ValueId)> isStart,
                                         llvm::function_ref<bool(ValueId, ValueId)> follows) const {
  llvm::DenseMap<ValueId, ValueId> after{{to, kNone}};
  std::vector<ValueId> queue{to};
  ValueId start = to;
  for (size_t i = 0; i < queue.size(); ++i) {
    start = queue[i];
    if (isStart(start))
      break;
    for (ValueId input : flow[start].inputs)
      if (follows(start, input) && after.try_emplace(input, start).second)
        queue.push_back(input);
  }
  std::vector<ValueId> path;
  for (ValueId value = start; value != kNone; value = after[value])
    path.push_back(value);
  return path;
}

const std::vector<std::vector<ValueId>> &RuleContext::users() const {
  if (userLists.empty()) {
    userLists.resize(flow.size());
    for (ValueId value = 0; value < flow.size(); ++value)
      for (ValueId input : flow[value].inputs)
        userLists[input].push_back(value);
  }
  return userLists;
}

std::vector<ValueId> RuleContext::pathToUpdate(ValueId from, std::string &name, bool throughConditions) const {
  llvm::DenseMap<ValueId, ValueId> before{{from, kNone}};
  std::vector<ValueId> queue{from};
  for (size_t i = 0; i < queue.size(); ++i)
    for (ValueId user : users()[queue[i]]) {
      const FlowNode &node = flow[user];
      bool isData = llvm::is_contained(node.data(), queue[i]);
      if ((isData || throughConditions) && before.try_emplace(user, queue[i]).second)
        queue.push_back(user);
    }
  std::vector<NamedValue> sinks = roles.sinks(); // parameters first
  size_t numParameters = roles.parameters.size();
  for (bool onlyParameters : {true, false})
    for (ValueId value : queue)
      for (size_t i = 0; i < (onlyParameters ? numParameters : sinks.size()); ++i)
        if (sinks[i].value == value) {
          name = sinks[i].name;
          std::vector<ValueId> path;
          for (ValueId step = value; step != kNone; step = before[step])
            path.insert(path.begin(), step);
          return path;
        }
  return {};
}

void RuleContext::add(Rule rule, std::string text, llvm::ArrayRef<ValueId> path, const std::string &end,
                      const std::string &key) {
  std::pair<Rule, std::string> id(rule, key);
  if (llvm::is_contained(keys, id))
    return;
  keys.push_back(std::move(id));
  Finding finding{rule, std::move(text), {}};
  const void *last = nullptr;
  for (ValueId value : path) {
    const FlowNode &node = flow[value];
    if (node.kind == Kind::Constant && nameOf(value).empty())
      continue;
    if (node.origin && node.origin == last)
      continue;
    last = node.origin;
    std::string link = flow.describe(value);
    if (finding.chain.empty() || finding.chain.back() != link)
      finding.chain.push_back(std::move(link));
  }
  if (!end.empty())
    finding.chain.push_back(end);
  report.findings.push_back(std::move(finding));
}

namespace {

// In another shape, the same elements in the same order.
bool isReshaped(const FlowGraph &flow, const FlowNode &node) {
  return node.has(FlowNode::Barrier) ||
         (node.kind == Kind::Move && node.has(FlowNode::Elementwise) && node.mains == 1 && node.type &&
          flow[node.inputs[0]].elementType == node.elementType && !node.has(FlowNode::Negates));
}

// Of the function, not of how the operator is called.
llvm::hash_code functionOf(const FlowNode &node) {
  switch (node.kind) {
  case Kind::Select: // However it is written.
    return llvm::hash_combine(static_cast<int>(node.kind), node.loop);
  case Kind::Sum:
  case Kind::Product:
  case Kind::Quotient:
  case Kind::Power:
    if (node.has(FlowNode::Elementwise))
      return llvm::hash_combine(static_cast<int>(node.kind), node.flags & ~FlowNode::Subtract,
                                llvm::bit_cast<uint32_t>(node.exponent), node.loop);
    [[fallthrough]];
  default:
    return llvm::hash_combine(node.signature, static_cast<int>(node.kind), node.loop);
  }
}

bool isCommutative(const FlowNode &node) {
  switch (node.kind) {
  case Kind::Sum: // The sign is in the operand's number.
  case Kind::Product:
    return node.has(FlowNode::Elementwise);
  case Kind::Extremum:
    return static_cast<ExtremumOp>(node.code) != ExtremumOp::Clip;
  case Kind::Compare:
    return static_cast<CompareOp>(node.code) == CompareOp::Equal;
  case Kind::Logic:
    return true;
  default:
    return false;
  }
}

} // namespace

std::vector<uint64_t> numberValues(const FlowGraph &flow, const Roles &roles, bool anySlice) {
  std::vector<uint64_t> numbers(flow.size());
  std::vector<ValueId> roots(flow.size()); // Without reshapes.
  for (ValueId value = 0; value < flow.size(); ++value) {
    const FlowNode &node = flow[value];
    roots[value] = value;
    if (isReshaped(flow, node)) {
      ValueId root = roots[value] = roots[node.inputs[0]];
      bool isSame = node.type == flow[root].type || node.has(FlowNode::Barrier);
      numbers[value] = isSame ? numbers[root] : static_cast<uint64_t>(llvm::hash_combine(numbers[root], node.type));
      continue;
    }
    if (anySlice && node.has(FlowNode::Slice) && node.mains) {
      numbers[value] = numbers[node.inputs[0]];
      continue;
    }
    if (node.has(FlowNode::Negates)) {
      numbers[value] = ~numbers[node.inputs[0]];
      continue;
    }
    if (node.kind == Kind::Source) {
      bool isSame = anySlice && roles.dependsOnBatch[value];
      numbers[value] = isSame ? static_cast<uint64_t>(llvm::hash_combine(node.type, static_cast<int>(node.element)))
                              : static_cast<uint64_t>(llvm::hash_value(value + 1));
      continue;
    }
    llvm::hash_code hash = functionOf(node);
    if (node.isNumber())
      hash = llvm::hash_combine(static_cast<int>(node.kind), llvm::bit_cast<uint64_t>(node.number), node.type);
    llvm::SmallVector<uint64_t> operands; // The number of -x is the complement of that of x.
    for (auto [i, input] : llvm::enumerate(node.inputs))
      if (input < value)
        operands.push_back(node.has(FlowNode::Subtract) && i > 0 ? ~numbers[input] : numbers[input]);
    if (isCommutative(node))
      llvm::sort(operands);
    hash = llvm::hash_combine(hash, llvm::hash_combine_range(operands.begin(), operands.end()));
    numbers[value] = node.kind == Kind::Carry ? static_cast<uint64_t>(llvm::hash_value(value + 1)) : uint64_t(hash);
  }
  return numbers;
}

Report verifyTraining(mlir::ModuleOp module) {
  std::unique_ptr<FlowGraph> flow = buildFlow(module);
  std::vector<State> states = findStates(*flow);
  for (const State &state : states) { // An initializer that an output replaces is no constant.
    FlowNode &node = flow->nodes[state.input];
    node.kind = Kind::Source;
    node.number = std::numeric_limits<double>::quiet_NaN();
  }
  Roles roles = findRoles(*flow, states);
  Report report;
  RuleContext context(*flow, roles, report);
  auto names = [](std::vector<std::string> &to, const auto &from) {
    for (const auto &item : from)
      to.push_back(item.name);
  };
  names(report.parameters, roles.parameters);
  names(report.moments, roles.moments);
  names(report.gradients, roles.gradients);
  names(report.gradients, roles.buffers);
  for (ValueId scale : roles.scales) {
    std::string name = context.nameOf(scale);
    report.scales.push_back(name.empty() ? llvm::formatv("{0}", (*flow)[scale].number).str() : name);
  }
  checkScaleRules(context);
  report.hasCheck = checkSkipRules(context);
  checkAccumulationRules(context);
  checkStatisticsRule(context);
  return report;
}

} // namespace recast::verify
