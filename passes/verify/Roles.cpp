#include "passes/verify/Roles.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include <utility>

namespace recast::verify {

std::vector<NamedValue> Roles::sinks() const {
  std::vector<NamedValue> all;
  for (const std::vector<State> *states : {&parameters, &moments})
    for (const State &state : *states)
      all.push_back({state.next, state.name});
  llvm::append_range(all, gradients);
  llvm::append_range(all, buffers);
  return all;
}

namespace {

bool isFloat(const FlowNode &node) {
  return node.element == Element::F64 || node.element == Element::F32 || node.element == Element::Low ||
         (node.element == Element::Other && !node.type); // sequences of tensors, values of unknown type
}

// Forward from `seeds` (marked already) until nothing changes; loops take more than one sweep.
template <typename Transfer> void propagate(const FlowGraph &flow, std::vector<char> &marks, Transfer marked) {
  for (bool changed = true; changed;) {
    changed = false;
    for (ValueId value = 0; value < flow.size(); ++value)
      if (!marks[value] && marked(flow[value])) {
        marks[value] = 1;
        changed = true;
      }
    changed &= llvm::any_of(flow.nodes, [](const FlowNode &node) { return node.kind == Kind::Carry; });
  }
}

std::vector<char> batchDependence(const FlowGraph &flow, llvm::ArrayRef<State> states) {
  llvm::DenseSet<ValueId> stateInputs;
  for (const State &state : states)
    stateInputs.insert(state.input);
  std::vector<char> marks(flow.size(), 0);
  bool found = false;
  // Scalars that are no state are rates and switches, unless there is no other input.
  for (bool withSingles : {false, true})
    for (ValueId value = 0; value < flow.size() && !(withSingles && found); ++value) {
      const FlowNode &node = flow[value];
      if (node.kind == Kind::Source && !stateInputs.contains(value) &&
          (withSingles || !node.isSingle || node.has(FlowNode::External)) && !llvm::is_contained(flow.scales, value)) {
        marks[value] = 1;
        found |= !withSingles;
      }
    }
  propagate(flow, marks, [&](const FlowNode &node) {
    return node.kind != Kind::Constant && llvm::any_of(node.data(), [&](ValueId input) { return marks[input]; });
  });
  return marks;
}

// Single numbers computed from booleans alone, 0 and 1 for skips, do not carry the batch.
std::vector<char> withoutSwitches(const FlowGraph &flow, const std::vector<char> &dependsOnBatch) {
  std::vector<char> isSwitch(flow.size(), 0), marks = dependsOnBatch;
  propagate(flow, isSwitch, [&](const FlowNode &node) {
    bool fits = node.isSingle && !node.main().empty() && node.kind != Kind::Carry && node.kind != Kind::LoopResult;
    return fits && (node.element == Element::Bool || llvm::all_of(node.data(), [&](ValueId input) {
                      return isSwitch[input] || !dependsOnBatch[input];
                    }));
  });
  for (ValueId value = 0; value < flow.size(); ++value)
    if (isSwitch[value])
      marks[value] = 0;
  return marks;
}

std::vector<char> ancestors(const FlowGraph &flow, llvm::ArrayRef<ValueId> of, bool withConditions) {
  std::vector<char> marks(flow.size(), 0);
  std::vector<ValueId> open;
  auto mark = [&](ValueId value) {
    if (value != kNone && !std::exchange(marks[value], 1))
      open.push_back(value);
  };
  llvm::for_each(of, mark);
  while (!open.empty()) {
    const FlowNode &node = flow[open.back()];
    open.pop_back();
    llvm::for_each(withConditions ? llvm::ArrayRef(node.inputs) : node.data(), mark);
  }
  return marks;
}

void findLosses(const FlowGraph &flow, llvm::ArrayRef<State> states, Roles &roles) {
  llvm::DenseSet<ValueId> nexts;
  for (const State &state : states)
    nexts.insert(state.next);
  for (const NamedValue &output : flow.outputs)
    if (output.name == flow.lossName)
      roles.losses.push_back(output.value);
  if (!roles.losses.empty())
    return;
  for (const NamedValue &output : flow.outputs)
    if (flow[output.value].isSingle && isFloat(flow[output.value]) && roles.dependsOnBatch[output.value] &&
        !nexts.contains(output.value))
      roles.losses.push_back(output.value);
}

// For each value: depends on the batch in another way than through new parameters. Averages of the weights do not.
std::vector<char> dependenceBeside(const FlowGraph &flow, const Roles &roles) {
  std::vector<ValueId> updates;
  for (const State &state : roles.parameters) {
    updates.push_back(state.next);
    isAdditive(flow, roles.carriesBatch, state.input, state.next, &updates);
  }
  std::vector<char> isUpdate(flow.size(), 0), marks(flow.size(), 0);
  for (ValueId value : updates)
    isUpdate[value] = 1;
  for (ValueId value = 0; value < flow.size(); ++value)
    marks[value] = flow[value].kind == Kind::Source && roles.dependsOnBatch[value];
  propagate(flow, marks, [&](const FlowNode &node) {
    return !isUpdate[static_cast<size_t>(&node - flow.nodes.data())] && node.kind != Kind::Constant &&
           llvm::any_of(node.data(), [&](ValueId input) { return marks[input] != 0; });
  });
  return marks;
}

void findUpdates(const FlowGraph &flow, llvm::ArrayRef<State> states, Roles &roles) {
  llvm::DenseSet<ValueId> buffers;
  for (const NamedValue &buffer : flow.buffers)
    buffers.insert(buffer.value);
  const std::vector<char> &feedsLoss = roles.feedsLoss = ancestors(flow, roles.losses, /*withConditions=*/false);
  // Masters: their casts are the next values of state that feeds the loss.
  llvm::DenseSet<ValueId> copied;
  for (const State &state : states)
    if (feedsLoss[state.input])
      for (ValueId value : walkBack(flow, state.next, [&](ValueId value, auto push) {
             if (flow[value].kind == Kind::Move || flow[value].kind == Kind::Select)
               llvm::for_each(flow[value].main(), push);
           }))
        copied.insert(value);
  std::vector<State> candidates;
  for (const State &state : states) {
    if (!isFloat(flow[state.input]) || !roles.dependsOnBatch[state.next] || buffers.contains(state.next))
      continue;
    bool isUpdate = isAdditive(flow, roles.carriesBatch, state.input, state.next);
    if (isUpdate && (feedsLoss[state.input] || copied.contains(state.next)))
      roles.parameters.push_back(state);
    else
      candidates.push_back(state);
  }
  if (roles.parameters.empty()) { // Only an optimizer: parameters are what no other new value is computed from.
    llvm::DenseSet<ValueId> used;
    for (const State &state : candidates)
      for (ValueId value : updateRegion(flow, state.next))
        if (value != state.input)
          used.insert(value);
    std::vector<State> rest;
    for (const State &state : candidates) {
      bool isUpdate = isAdditive(flow, roles.carriesBatch, state.input, state.next);
      (isUpdate && !used.contains(state.input) ? roles.parameters : rest).push_back(state);
    }
    candidates = std::move(rest);
  }
  std::vector<ValueId> nexts;
  llvm::DenseSet<char> sizes;
  for (const State &state : roles.parameters) {
    nexts.push_back(state.next);
    sizes.insert(flow[state.input].isSingle);
  }
  std::vector<char> statistical = dependenceBeside(flow, roles);
  std::vector<ValueId> list = updateRegion(flow, nexts);
  llvm::DenseSet<ValueId> region(list.begin(), list.end());
  for (const State &state : candidates)
    if (region.contains(state.input) && sizes.contains(flow[state.input].isSingle))
      roles.moments.push_back(state);
    else if (statistical[state.next])
      roles.statistics.push_back(state);
  roles.buffers = flow.buffers;
  if (!roles.parameters.empty() || !roles.buffers.empty())
    return;
  for (const NamedValue &output : flow.outputs)
    for (const NamedValue &source : flow.sources)
      if (isFloat(flow[output.value]) && roles.dependsOnBatch[output.value] && flow[source.value].type &&
          flow[output.value].type == flow[source.value].type && !llvm::is_contained(roles.losses, output.value) &&
          output.name != source.name && llvm::StringRef(output.name).contains(source.name)) {
        roles.gradients.push_back({output.value, source.name});
        break;
      }
}

// Computed from norms or extrema, and from nothing else of the batch.
bool isFromStatistics(const FlowGraph &flow, const Roles &roles, const State &state) {
  bool found = false, isOnly = true;
  walkBack(flow, state.next, [&](ValueId value, auto push) {
    const FlowNode &node = flow[value];
    bool passes = (node.has(FlowNode::Elementwise) && node.element != Element::Bool) || node.kind == Kind::Join ||
                  node.kind == Kind::Move || node.kind == Kind::LoopResult || node.kind == Kind::Carry;
    if (node.kind == Kind::Statistic)
      found = true;
    else if (passes && !node.main().empty())
      llvm::for_each(node.data(), push);
    else
      isOnly &= !roles.dependsOnBatch[value];
  });
  return found && isOnly;
}

// States that are neither parameters nor moments: averages of the parameters, what updates are computed from besides
// gradients (counts of steps, powers and products of factors), and histories of norms and magnitudes.
void findKept(const FlowGraph &flow, llvm::ArrayRef<State> states, Roles &roles) {
  std::vector<ValueId> nexts;
  llvm::DenseSet<ValueId> known(roles.scales.begin(), roles.scales.end());
  for (const std::vector<State> *list : {&roles.parameters, &roles.moments})
    for (const State &state : *list) {
      nexts.push_back(state.next);
      known.insert(state.input);
    }
  std::vector<ValueId> list = updateRegion(flow, nexts);
  llvm::DenseSet<ValueId> region(list.begin(), list.end());
  std::vector<char> statistical = dependenceBeside(flow, roles);
  for (const State &state : states) {
    if (known.contains(state.input))
      continue;
    std::vector<char> under = ancestors(flow, state.next, /*withConditions=*/false);
    bool isBlend = under[state.input] && isFloat(flow[state.input]);
    bool isAverage = isBlend && roles.dependsOnBatch[state.next] && !statistical[state.next];
    bool isFactor = !roles.carriesBatch[state.next] && region.contains(state.input) && !roles.feedsLoss[state.input];
    if (isAverage || isFactor)
      roles.kept.push_back(state);
  }
  // Histories that updates are computed from, or other histories.
  std::vector<char> enters = roles.reachesUpdate;
  for (bool changed = true; changed;) {
    changed = false;
    for (const State &state : states) {
      if (known.contains(state.input) || !enters[state.input] || !isFloat(flow[state.input]) ||
          !isFromStatistics(flow, roles, state))
        continue;
      known.insert(state.input);
      roles.kept.push_back(state);
      std::vector<char> under = ancestors(flow, state.next, /*withConditions=*/false);
      for (ValueId value = 0; value < flow.size(); ++value)
        enters[value] |= under[value];
      changed = true;
    }
  }
}

} // namespace

bool isAdditive(const FlowGraph &flow, const std::vector<char> &batch, ValueId input, ValueId next,
                std::vector<ValueId> *sums) {
  auto othersDepend = [&](const FlowNode &node, ValueId operand) {
    return llvm::any_of(node.main(), [&](ValueId other) { return other != operand && batch[other]; });
  };
  // Products on the way are decays: with anything but the batch.
  std::vector<ValueId> visited = walkBack(flow, next, [&](ValueId value, auto push) {
    const FlowNode &node = flow[value];
    bool passes = node.has(FlowNode::Elementwise) || node.kind == Kind::Carry || node.kind == Kind::LoopResult;
    if (value == input || !passes || node.kind == Kind::Extremum || node.kind == Kind::Power)
      return;
    for (ValueId operand : node.main())
      if ((node.kind != Kind::Product && node.kind != Kind::Quotient) || !othersDepend(node, operand))
        push(operand);
  });
  // Of those, what the old value flows into; `plus` where something was added on the way.
  llvm::sort(visited);
  llvm::SmallDenseSet<ValueId, 32> carries, plus;
  for (bool changed = true; changed;) {
    changed = false;
    for (ValueId value : visited) {
      const FlowNode &node = flow[value];
      bool isCarrying = value == input, isPlus = false;
      for (ValueId operand : value == input ? llvm::ArrayRef<ValueId>() : node.main()) {
        if (!carries.contains(operand) ||
            ((node.kind == Kind::Product || node.kind == Kind::Quotient) && othersDepend(node, operand)))
          continue;
        isCarrying = true;
        isPlus |= plus.contains(operand) || (node.kind == Kind::Sum && othersDepend(node, operand));
      }
      changed |= isCarrying && carries.insert(value).second;
      changed |= isPlus && plus.insert(value).second;
    }
    changed &= llvm::any_of(visited, [&](ValueId value) { return flow[value].kind == Kind::Carry; });
  }
  if (sums)
    for (ValueId value : visited)
      if (carries.contains(value) && flow[value].kind == Kind::Sum &&
          llvm::any_of(flow[value].main(),
                       [&](ValueId operand) { return batch[operand] && !carries.contains(operand); }))
        sums->push_back(value);
  return plus.contains(next);
}

std::vector<ValueId> updateRegion(const FlowGraph &flow, llvm::ArrayRef<ValueId> values) {
  return walkBack(flow, values, [&](ValueId value, auto push) {
    const FlowNode &node = flow[value];
    if (node.has(FlowNode::Elementwise) || node.kind == Kind::Carry || node.kind == Kind::LoopResult)
      llvm::for_each(node.data(), push);
  });
}

Roles findRoles(const FlowGraph &flow, llvm::ArrayRef<State> states) {
  Roles roles;
  roles.dependsOnBatch = batchDependence(flow, states);
  roles.dependsOnTest.assign(flow.size(), 0);
  propagate(flow, roles.dependsOnTest, [&](const FlowNode &node) {
    bool isTest = node.kind == Kind::Test || node.kind == Kind::Compare;
    return llvm::any_of(node.inputs, [&](ValueId input) {
      return roles.dependsOnTest[input] || (isTest && roles.dependsOnBatch[input]);
    });
  });
  roles.carriesBatch = withoutSwitches(flow, roles.dependsOnBatch);
  findLosses(flow, states, roles);
  findUpdates(flow, states, roles);
  std::vector<ValueId> ends;
  for (const NamedValue &sink : roles.sinks())
    ends.push_back(sink.value);
  roles.reachesUpdate = ancestors(flow, ends, /*withConditions=*/false);
  roles.decidesUpdate = ancestors(flow, ends, /*withConditions=*/true);
  roles.scales = findScales(flow, roles, states);
  for (const State &state : states)
    if (llvm::is_contained(roles.scales, state.input))
      for (ValueId value : walkBack(flow, state.next, [&](ValueId value, auto push) {
             if (flow[value].kind == Kind::Move || flow[value].kind == Kind::Select)
               llvm::for_each(flow[value].main(), push);
           }))
        if (roles.dependsOnTest[value])
          roles.newScales.push_back(value);
  findKept(flow, states, roles);
  return roles;
}

} // namespace recast::verify
