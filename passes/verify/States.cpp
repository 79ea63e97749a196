#include "passes/verify/Roles.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"

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

  // Outputs computed element by element from a source of the same type, by elimination: a new moment comes from the
  // moment, a new parameter from the parameter and the moment.
  void byFlow() {
    std::vector<std::pair<ValueId, std::vector<ValueId>>> open;
    // State has a value in the file, unless no input has one.
    bool anyDefault = llvm::any_of(flow.sources, [](const NamedValue &source) { return source.hasDefault; });
    llvm::DenseMap<ValueId, llvm::StringRef> names;
    for (const NamedValue &source : flow.sources)
      if (source.hasDefault == anyDefault)
        names[source.value] = source.name;
    for (const NamedValue &output : flow.outputs) {
      if (outputs.contains(output.value) || !flow[output.value].type)
        continue;
      std::vector<ValueId> candidates;
      for (ValueId value : walkBack(flow, output.value, [&](ValueId value, auto push) {
             if (flow[value].has(FlowNode::Elementwise))
               llvm::for_each(flow[value].data(), push);
           }))
        if (names.contains(value) && fits(value, output.value))
          candidates.push_back(value);
      open.emplace_back(output.value, std::move(candidates));
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (auto &[output, candidates] : open) {
        llvm::erase_if(candidates, [&](ValueId source) { return sources.contains(source); });
        if (candidates.size() != 1 || outputs.contains(output))
          continue;
        pair(candidates.front(), output, names[candidates.front()]);
        changed = true;
      }
    }
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
