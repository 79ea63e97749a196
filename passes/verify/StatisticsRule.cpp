// Running statistics take part of each batch once: not again by a forward that is recomputed.
#include "passes/verify/Rules.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast::verify {

namespace {

// What an addition takes in, without the factor of the blend.
ValueId withoutFactor(const FlowGraph &flow, const Roles &roles, ValueId value) {
  while (flow[value].kind == Kind::Product) {
    ValueId inner = kNone;
    for (ValueId main : flow[value].main())
      if (roles.dependsOnBatch[main])
        inner = main;
    if (inner == kNone)
      break;
    value = inner;
  }
  return value;
}

} // namespace

void checkStatisticsRule(RuleContext &context) {
  const FlowGraph &flow = context.flow;
  const Roles &roles = context.roles;
  if (roles.statistics.empty())
    return;
  std::vector<uint64_t> numbers = numberValues(flow, roles, /*anySlice=*/false);
  std::vector<char> isRecomputed(flow.size(), 0);
  for (ValueId value = 0; value < flow.size(); ++value)
    isRecomputed[value] = flow[value].has(FlowNode::Barrier) ||
                          llvm::any_of(flow[value].data(), [&](ValueId input) { return isRecomputed[input] != 0; });
  for (const State &state : roles.statistics) {
    std::vector<ValueId> sums;
    if (!isAdditive(flow, roles.carriesBatch, state.input, state.next, &sums))
      continue;
    llvm::DenseMap<uint64_t, ValueId> seen;
    for (ValueId sum : sums)
      for (ValueId main : flow[sum].main()) {
        if (!roles.dependsOnBatch[main] || llvm::is_contained(sums, main))
          continue;
        ValueId term = withoutFactor(flow, roles, main);
        if (llvm::is_contained(sums, term))
          continue;
        auto [first, isNew] = seen.try_emplace(numbers[term], sum);
        const char *what = !isNew               ? "are updated twice from the same batch"
                           : isRecomputed[term] ? "are updated by a node that recomputes the forward"
                                                : nullptr;
        if (!what)
          continue;
        std::vector<ValueId> path;
        if (isNew)
          path = context.pathTo(
              sum, [&](ValueId value) { return flow[value].has(FlowNode::Barrier); },
              [&](ValueId user, ValueId operand) { return isRecomputed[operand] != 0; });
        else
          path = {state.input, first->second, sum};
        context.add(Rule::StatisticsInRecompute,
                    llvm::formatv("the running statistics '{0}' {1}: take them from the first computation only",
                                  state.name, what),
                    path, "the new value of '" + state.name + "'", state.name);
      }
  }
}

} // namespace recast::verify
