// What the rules share. Internal to passes/verify.
#pragma once
#include "passes/verify/Verify.h"

namespace recast::verify {

class RuleContext {
public:
  RuleContext(const FlowGraph &flow, const Roles &roles, Report &report) : flow(flow), roles(roles), report(report) {}

  const FlowGraph &flow;
  const Roles &roles;

  std::string nameOf(ValueId source) const; ///< Of a source; "" for others.
  /// Operands that a path follows backward may be chosen by `follows(user, operand)`. From the first value that
  /// `isStart` accepts, or the farthest that was reached, to `to`.
  std::vector<ValueId> pathTo(ValueId to, llvm::function_ref<bool(ValueId)> isStart,
                              llvm::function_ref<bool(ValueId, ValueId)> follows) const;
  /// Along data from a value to the nearest new value of a parameter, or else any other sink; its name. Empty where
  /// there is none.
  std::vector<ValueId> pathToUpdate(ValueId from, std::string &name, bool throughConditions = false) const;
  /// One finding; the chain names each operator once, and what ends it. Findings of one rule with the same `key` are
  /// reported once.
  void add(Rule rule, std::string text, llvm::ArrayRef<ValueId> path, const std::string &end, const std::string &key);

private:
  const std::vector<std::vector<ValueId>> &users() const;
  Report &report;
  std::vector<std::pair<Rule, std::string>> keys;
  mutable std::vector<std::vector<ValueId>> userLists;
};

void checkScaleRules(RuleContext &context);        ///< Scale, unscale, clip.
bool checkSkipRules(RuleContext &context);         ///< Finite check and skip; true where the graph tests gradients.
void checkAccumulationRules(RuleContext &context); ///< Mean of means, low-precision accumulators.
void checkStatisticsRule(RuleContext &context);    ///< Running statistics and recomputation.

/// A number for every value, equal where values are computed in the same way from the same sources; barriers and
/// identities are looked through. With `anySlice`, different slices, and different batch inputs of a type, count as
/// the same.
std::vector<uint64_t> numberValues(const FlowGraph &flow, const Roles &roles, bool anySlice);

} // namespace recast::verify
