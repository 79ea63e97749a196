#include "passes/verify/Roles.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include <tuple>
#include <utility>

namespace recast::verify {

std::vector<ValueId> walkBack(const FlowGraph &flow, llvm::ArrayRef<ValueId> from,
                              llvm::function_ref<void(ValueId, llvm::function_ref<void(ValueId)>)> enters) {
  std::vector<ValueId> order;
  llvm::SmallDenseSet<ValueId, 64> seen;
  auto push = [&](ValueId value) {
    if (value != kNone && seen.insert(value).second)
      order.push_back(value);
  };
  for (ValueId value : from)
    push(value);
  for (size_t i = 0; i < order.size(); ++i)
    enters(order[i], push);
  return order;
}

namespace {

// `w` for "w.next", "w_new", "new_w", ...; the name itself where it has no such part.
llvm::StringRef baseName(llvm::StringRef name) {
  for (llvm::StringRef suffix : {"next", "new", "out", "updated", "after", "t1", "tp1"})
    for (llvm::StringRef separator : {".", "_", "/", ":"})
      if (name.ends_with(suffix) && name.drop_back(suffix.size()).ends_with(separator))
        return name.drop_back(suffix.size() + 1);
  for (llvm::StringRef prefix : {"next", "new", "updated", "out"})
    for (llvm::StringRef separator : {".", "_", "/", ":"})
      if (name.starts_with(prefix) && name.drop_front(prefix.size()).starts_with(separator))
        return name.drop_front(prefix.size() + 1);
  return name;
}

llvm::StringRef baseOfSource(llvm::StringRef name) {
  for (llvm::StringRef suffix : {"_in", ".in", "_old", ".old", "_prev", ".prev", "_t", "_0"})
    if (name.size() > suffix.size() && name.ends_with(suffix))
      return name.drop_back(suffix.size());
  return name;
}

struct Pairing {
  const FlowGraph &flow;
  std::vector<State> states;
  llvm::DenseSet<ValueId> sources, outputs;

  void pair(ValueId source, ValueId next, llvm::StringRef name) {
    if (sources.insert(source).second) {
      states.push_back({source, next, name.str()});
      outputs.insert(next);
    }
  }

  bool fits(ValueId source, ValueId output) const {
    const FlowNode &a = flow[source], &b = flow[output];
    return source != output && (a.type == b.type || !a.type || !b.type) && a.element == b.element;
  }

  void byName() {
    llvm::StringMap<ValueId> named;
    for (const NamedValue &source : flow.sources) {
      named.try_emplace(source.name, source.value);
      named.try_emplace(baseOfSource(source.name), source.value);
    }
    for (const NamedValue &output : flow.outputs) {
      llvm::StringRef base = baseName(output.name);
      auto found = named.find(base);
      if (base != output.name && !outputs.contains(output.value) && found != named.end() &&
          fits(found->second, output.value))
        pair(found->second, output.value, base);
    }
  }

  // Outputs computed element by element from a source of the same type, the nearest first: a new parameter is a choice
  // or a sum of the old one and something, which the moments enter further away.
  // State has a value in the file; where none is found so, state whose value the caller gives: at least one output must
  // be a choice that keeps an input.
  void byFlow() {
    byFlow(/*withDefault=*/true);
    bool keepsInput = llvm::any_of(flow.outputs, [&](const NamedValue &output) {
      const FlowNode &node = flow[output.value];
      return node.kind == Kind::Select && llvm::any_of(node.main(), [&](ValueId main) {
               return flow[main].kind == Kind::Source && flow[main].type == node.type;
             });
    });
    if (states.empty() && keepsInput)
      byFlow(/*withDefault=*/false);
  }

  void byFlow(bool withDefault) {
    llvm::DenseMap<ValueId, llvm::StringRef> names;
    std::vector<char> mixes(flow.size(), 0); // Computed from more than elements of inputs.
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      mixes[value] = (!node.inputs.empty() && !node.has(FlowNode::Elementwise)) ||
                     llvm::any_of(node.data(), [&](ValueId input) { return mixes[input] != 0; });
    }
    // Initializers of one element are constants of formulas.
    for (const NamedValue &source : flow.sources)
      if (source.hasDefault == withDefault && !sources.contains(source.value) &&
          (flow[source.value].kind == Kind::Source || !flow[source.value].isSingle))
        names[source.value] = source.name;

    std::vector<std::tuple<unsigned, ValueId, ValueId>> pairs; // distance, output, source
    for (const NamedValue &output : flow.outputs)
      if (!outputs.contains(output.value) && flow[output.value].type)
        for (auto [source, distance] : distancesFrom(output.value))
          // Scalars multiplied with losses and gradients are scales and rates.
          if (names.contains(source) && fits(source, output.value) &&
              !(flow[source].isSingle && mixes[output.value] && distance >= kProductStep))
            pairs.emplace_back(distance, output.value, source);
    llvm::sort(pairs);
    for (auto [distance, output, source] : pairs)
      if (!outputs.contains(output))
        pair(source, output, names[source]);
  }

  static constexpr unsigned kProductStep = 16; // More than the choices and sums on the way to a new value.

  // Steps to every value that `output` is computed from element by element.
  llvm::DenseMap<ValueId, unsigned> distancesFrom(ValueId output) const {
    llvm::DenseMap<ValueId, unsigned> distances{{output, 0}};
    // Products last: each list holds values at one number of products.
    std::vector<ValueId> queue{output}, later;
    while (!queue.empty()) {
      for (size_t i = 0; i < queue.size(); ++i) {
        ValueId value = queue[i];
        const FlowNode &node = flow[value];
        if (!node.has(FlowNode::Elementwise))
          continue;
        bool multiplies = node.kind == Kind::Product || node.kind == Kind::Quotient || node.kind == Kind::Power;
        unsigned next = distances[value] + (multiplies ? kProductStep : 1);
        for (ValueId input : node.data())
          if (distances.try_emplace(input, next).second)
            (multiplies ? later : queue).push_back(input);
      }
      queue = std::exchange(later, {});
    }
    return distances;
  }
};

} // namespace

std::vector<State> findStates(const FlowGraph &flow) {
  Pairing pairing{flow, {}, {}, {}};
  for (const State &state : flow.states)
    pairing.pair(state.input, state.next, state.name);
  llvm::StringMap<ValueId> named;
  for (const NamedValue &source : flow.sources)
    named.try_emplace(source.name, source.value);
  for (const std::vector<NamedValue> *list : {&flow.inPlace, &flow.buffers})
    for (const NamedValue &written : *list)
      pairing.pair(named.lookup(written.name), written.value, written.name);
  if (flow.states.empty()) {
    pairing.byName();
    pairing.byFlow();
  }
  return std::move(pairing.states);
}

} // namespace recast::verify
