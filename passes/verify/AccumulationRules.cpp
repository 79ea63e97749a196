// What is summed over micro-batches: in which type, and divided by what.
#include "passes/verify/Degrees.h"
#include "passes/verify/Rules.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/Hashing.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::verify {

namespace {

/// Numbers of labels or mask elements, each known by the tensors that it counts in.
struct Counts {
  Counts(const FlowGraph &flow, const Roles &roles) : flow(flow), roles(roles) {}

  const FlowGraph &flow;
  const Roles &roles;
  llvm::DenseMap<ValueId, Symbol> symbols;
  std::vector<char> isMask; ///< Computed from the batch by comparisons and look-ups alone.
  std::vector<int> varying; ///< The innermost loop in which the value differs from iteration to iteration.

  void find() {
    if (llvm::none_of(flow.nodes, [](const FlowNode &node) {
          return node.kind == Kind::Count || (node.has(FlowNode::Reduce) && node.isSingle);
        }))
      return;
    std::vector<uint64_t> numbers = numberValues(flow, roles, /*anySlice=*/false);
    isMask.assign(flow.size(), 0);
    varying.assign(flow.size(), -1);
    llvm::DenseMap<uint64_t, uint32_t> known;
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      bool leaves = node.kind == Kind::LoopResult || node.has(FlowNode::Collects);
      if (!leaves && (node.has(FlowNode::Slice) || node.kind == Kind::Carry))
        varying[value] = node.loop;
      for (ValueId input : node.inputs)
        if (input < value && !(leaves && varying[input] == node.loop))
          varying[value] = std::max(varying[value], varying[input]);
      isMask[value] = roles.dependsOnBatch[value] && looksLikeMask(node);
      bool isCount =
          node.kind == Kind::Count || (node.has(FlowNode::Reduce) && node.isSingle && isMask[node.inputs[0]]);
      if (!isCount)
        continue;
      std::vector<ValueId> leavesOf = leavesUnder(node.inputs[0]);
      std::vector<uint64_t> key;
      int loop = -1;
      for (ValueId leaf : leavesOf) {
        key.push_back(numbers[leaf]);
        loop = std::max(loop, varying[leaf]);
      }
      llvm::sort(key);
      uint64_t hash = llvm::hash_combine_range(key.begin(), key.end());
      auto [symbol, isNew] = known.try_emplace(hash, static_cast<uint32_t>(known.size()));
      symbols[value] = {symbol->second, 1, loop};
    }
  }

private:
  bool looksLikeMask(const FlowNode &node) const {
    auto isMaskOrFixed = [&](ValueId input) { return isMask[input] || !roles.dependsOnBatch[input]; };
    switch (node.kind) {
    case Kind::Source:
    case Kind::Compare:
    case Kind::Logic:
      return true;
    case Kind::Move: // A look-up in a table of weights, too.
      return !node.has(FlowNode::Reduce) && isMaskOrFixed(node.inputs[0]);
    case Kind::Select:
    case Kind::Sum:
    case Kind::Product:
      return node.has(FlowNode::Elementwise) && llvm::all_of(node.main(), isMaskOrFixed);
    default:
      return false;
    }
  }

  // The tensors that a mask is made from: inputs and their slices.
  std::vector<ValueId> leavesUnder(ValueId mask) const {
    std::vector<ValueId> leaves;
    walkBack(flow, mask, [&](ValueId value, auto push) {
      const FlowNode &node = flow[value];
      bool isTable = node.kind == Kind::Move && !node.inputs.empty() && !roles.dependsOnBatch[node.inputs[0]];
      bool isLeaf = node.inputs.empty() || (node.has(FlowNode::Slice) && !isTable) || !isMask[value];
      if (isLeaf && roles.dependsOnBatch[value])
        leaves.push_back(value);
      else if (!isLeaf)
        llvm::for_each(node.inputs, push);
    });
    return leaves;
  }
};

struct MeanOfMeans {
  MeanOfMeans(RuleContext &context, const Counts &counts, const Degrees &degrees)
      : context(context), flow(context.flow), roles(context.roles), counts(counts), degrees(degrees) {}

  RuleContext &context;
  const FlowGraph &flow;
  const Roles &roles;
  const Counts &counts;
  const Degrees &degrees;
  llvm::DenseMap<uint32_t, int> loopOf;

  // The loop that a division by a count of its own iteration belongs to; -1 without one.
  int dividedIn(ValueId value) const {
    for (auto [symbol, degree] : degrees.terms(value))
      if (degree < 0)
        if (auto loop = loopOf.find(symbol); loop != loopOf.end() && loop->second >= 0)
          return loop->second;
    return -1;
  }

  bool isDivided(ValueId value) const {
    return llvm::any_of(degrees.terms(value), [](const auto &term) { return term.second < 0; });
  }

  bool isCarried(ValueId value, int loop) const {
    bool found = false;
    walkBack(flow, value, [&](ValueId inner, auto push) {
      const FlowNode &node = flow[inner];
      found |= node.kind == Kind::Carry && node.loop == loop;
      if (node.kind == Kind::Move || node.kind == Kind::Select || node.kind == Kind::Sum)
        llvm::for_each(node.main(), push);
    });
    return found;
  }

  void report(ValueId at, ValueId divided, const char *how, bool reachesLoss) {
    std::string target;
    std::vector<ValueId> onward = context.pathToUpdate(at, target);
    if (onward.empty() && !reachesLoss)
      return;
    std::vector<ValueId> path = context.pathTo(
        divided, [&](ValueId value) { return counts.symbols.contains(value); },
        [&](ValueId user, ValueId operand) { return !degrees.terms(operand).empty(); });
    path.push_back(at);
    if (!onward.empty())
      path.insert(path.end(), onward.begin() + 1, onward.end());
    std::string end = onward.empty() ? "the loss" : "the update of '" + target + "'";
    context.add(
        Rule::MeanOfMeans,
        llvm::formatv("{0} {1}, so that tokens of short micro-batches weigh more, in {2}: sum first, and divide "
                      "once by the number over all micro-batches",
                      flow.describe(at), how, end),
        path, end, target);
  }

  void run() {
    std::vector<char> reachesLoss(flow.size(), 0);
    for (ValueId value :
         walkBack(flow, roles.losses, [&](ValueId value, auto push) { llvm::for_each(flow[value].data(), push); }))
      reachesLoss[value] = 1;
    std::vector<uint64_t> alike = numberValues(flow, roles, /*anySlice=*/true);
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      if (!roles.reachesUpdate[value] && !reachesLoss[value])
        continue;
      auto mains = node.main();
      if (node.kind == Kind::Sum && mains.size() >= 2)
        for (ValueId main : mains)
          if (int loop = dividedIn(main);
              loop >= 0 && llvm::any_of(mains, [&](ValueId other) { return other != main && isCarried(other, loop); }))
            report(value, main, "adds up micro-batches that were each divided by their own count", reachesLoss[value]);
      if (node.has(FlowNode::Reduce) && dividedIn(mains[0]) >= 0 && node.loop != dividedIn(mains[0]))
        report(value, mains[0], "reduces over micro-batches that were each divided by their own count",
               reachesLoss[value]);
      // Written out without a loop: the same function of other slices, each with its own count.
      if ((node.kind == Kind::Sum || node.kind == Kind::Join) && !node.has(FlowNode::Subtract))
        for (size_t i = 1; i < mains.size(); ++i)
          if (isDivided(mains[0]) && isDivided(mains[i]) && degrees.terms(mains[0]) != degrees.terms(mains[i]) &&
              alike[mains[0]] == alike[mains[i]]) {
            report(value, mains[i], "adds up micro-batches that were each divided by their own count",
                   reachesLoss[value]);
            break;
          }
    }
    for (const NamedValue &buffer : roles.buffers)
      walkBack(flow, buffer.value, [&](ValueId value, auto push) {
        const FlowNode &node = flow[value];
        if (node.kind == Kind::Select)
          llvm::for_each(node.main(), push);
        for (ValueId main : node.kind == Kind::Sum ? node.main() : llvm::ArrayRef<ValueId>())
          if (isDivided(main))
            report(value, main, "adds up, run by run, micro-batches that were each divided by their own count", false);
      });
  }
};

struct LowPrecision {
  RuleContext &context;
  const FlowGraph &flow;
  const Roles &roles;

  void report(ValueId at, const std::string &text, const std::string &key) {
    std::string target;
    std::vector<ValueId> path = context.pathToUpdate(at, target);
    if (path.empty())
      path.push_back(at);
    context.add(Rule::LowPrecisionAccumulator, text, path, target.empty() ? "" : "the update of '" + target + "'", key);
  }

  // The first addition in 16 bits or fewer between the old value and the new one.
  ValueId lowSum(ValueId input, ValueId next) const {
    std::vector<ValueId> sums;
    if (!isAdditive(flow, roles.carriesBatch, input, next, &sums))
      return kNone;
    for (ValueId sum : sums)
      if (flow[sum].element == Element::Low || (flow[input].kind == Kind::Carry && flow[input].element == Element::Low))
        return sum;
    return kNone;
  }

  void checkStates(llvm::ArrayRef<State> states, const char *what) {
    for (const State &state : states) {
      ValueId sum = lowSum(state.input, state.next);
      if (sum == kNone && flow[state.input].element != Element::Low)
        continue;
      report(sum == kNone ? state.next : sum,
             llvm::formatv("{0} '{1}' is updated in 16 bits or fewer: {2}", what, state.name,
                           "small updates are lost; keep it in fp32"),
             state.name);
    }
  }

  void run() {
    checkStates(roles.parameters, "the parameter without fp32 master weights");
    checkStates(roles.moments, "the moment");
    for (const NamedValue &buffer : roles.buffers)
      if (flow[buffer.value].element == Element::Low)
        report(
            buffer.value,
            llvm::formatv("the buffer of the gradient of '{0}' sums in 16 bits or fewer: small terms are lost; sum in "
                          "fp32",
                          buffer.name),
            buffer.name);
    checkLoops();
    checkUnrolled();
  }

  // Sums that a loop carries and that nothing in its body looks at.
  void checkLoops() {
    if (llvm::none_of(flow.nodes, [](const FlowNode &node) { return node.kind == Kind::Carry; }))
      return;
    llvm::DenseMap<ValueId, std::vector<ValueId>> users;
    for (ValueId value = 0; value < flow.size(); ++value) {
      for (ValueId input : flow[value].inputs)
        if (flow[input].kind == Kind::Carry)
          users[input].push_back(value);
    }
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      if (node.kind != Kind::Carry || node.main().size() < 2 || !roles.reachesUpdate[value])
        continue;
      bool isOnlySummed = llvm::all_of(users[value], [&](ValueId user) {
        Kind kind = flow[user].kind;
        return kind == Kind::Sum || kind == Kind::Move || kind == Kind::Select || kind == Kind::LoopResult ||
               kind == Kind::Carry;
      });
      ValueId sum = isOnlySummed ? lowSum(value, node.main()[1]) : kNone;
      if (sum != kNone)
        report(sum,
               llvm::formatv("{0} sums over micro-batches in 16 bits or fewer: small terms are lost; sum in fp32",
                             flow.describe(sum)),
               flow.describe(sum));
    }
  }

  void checkUnrolled() {
    std::vector<ValueId> nexts;
    for (const NamedValue &sink : roles.sinks())
      nexts.push_back(sink.value);
    std::vector<ValueId> lowSums;
    for (ValueId value : updateRegion(flow, nexts))
      if (flow[value].kind == Kind::Sum && flow[value].element == Element::Low && flow[value].main().size() > 1)
        lowSums.push_back(value);
    if (lowSums.empty())
      return;
    std::vector<uint64_t> alike = numberValues(flow, roles, true), exact = numberValues(flow, roles, false);
    for (ValueId value : lowSums) {
      ValueId a = flow[value].main()[0], b = flow[value].main()[1];
      if (roles.dependsOnBatch[a] && alike[a] == alike[b] && exact[a] != exact[b])
        report(value,
               llvm::formatv("{0} sums over micro-batches in 16 bits or fewer: small terms are lost; sum in fp32",
                             flow.describe(value)),
               flow.describe(value));
    }
  }
};

} // namespace

void checkAccumulationRules(RuleContext &context) {
  LowPrecision{context, context.flow, context.roles}.run();
  Counts counts(context.flow, context.roles);
  counts.find();
  if (counts.symbols.empty())
    return;
  Degrees degrees(context.flow, counts.symbols, context.roles.dependsOnBatch, /*isCount=*/true);
  MeanOfMeans rule(context, counts, degrees);
  for (const auto &[value, symbol] : counts.symbols)
    rule.loopOf[symbol.index] = std::max(symbol.loop, rule.loopOf.lookup_or(symbol.index, -1));
  rule.run();
}

} // namespace recast::verify
