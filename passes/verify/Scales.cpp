// Which scalars scale the loss.
#include "passes/verify/Roles.h"
#include "passes/verify/SkipAnalysis.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include <map>

namespace recast::verify {

namespace {

// Constants below this are factors of formulas: a static loss scale that small would not be worth its name.
constexpr double kSmallestConstantScale = 128;
constexpr size_t kMostCandidates = 64;

struct Candidate {
  ValueId value;
  std::string name;
  bool isConstant = false;
  bool enters = false, leaves = false; ///< Multiplies, divides values that depend on the batch.
  bool scalesLoss = false;
  bool isDynamic = false;
};

struct Finder {
  Finder(const FlowGraph &flow, const Roles &roles) : flow(flow), roles(roles) {}

  const FlowGraph &flow;
  const Roles &roles;
  std::vector<ValueId> roots; ///< Through moves.
  std::vector<Candidate> candidates;
  llvm::DenseMap<ValueId, std::pair<unsigned, int>> factors; ///< Value -> candidate and sign.

  void findRoots() {
    roots.resize(flow.size());
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      bool moves =
          node.kind == Kind::Move && !node.inputs.empty() && node.inputs[0] < value && !node.has(FlowNode::Collects);
      roots[value] = moves ? roots[node.inputs[0]] : value;
    }
  }

  void findCandidates(llvm::ArrayRef<State> states) {
    auto isFloat = [&](ValueId value) {
      Element element = flow[value].element;
      return element == Element::F32 || element == Element::F64 || element == Element::Low;
    };
    llvm::DenseSet<ValueId> learned; // Parameters of one element, their moments.
    for (const State &state : states)
      if (roles.dependsOnBatch[state.next])
        learned.insert(state.input);
    for (const NamedValue &source : flow.sources)
      if (flow[source.value].kind == Kind::Source && flow[source.value].isSingle && isFloat(source.value) &&
          !learned.contains(source.value)) {
        factors[source.value] = {static_cast<unsigned>(candidates.size()), 1};
        candidates.push_back({source.value, source.name});
      }
    std::map<double, unsigned> byNumber;
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      if (!node.isNumber() || !node.isSingle || !isFloat(value) || !(node.number > 0) || std::isinf(node.number))
        continue;
      double number = std::max(node.number, 1 / node.number);
      int exponent;
      if (number < kSmallestConstantScale || std::frexp(number, &exponent) != 0.5)
        continue;
      auto [known, isNew] = byNumber.try_emplace(number, static_cast<unsigned>(candidates.size()));
      if (isNew)
        candidates.push_back({value, "", true});
      factors[value] = {known->second, node.number >= 1 ? 1 : -1};
      if (node.number >= 1)
        candidates[known->second].value = value;
    }
    // Powers -1.
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      bool inverts = node.kind == Kind::Power && node.exponent == -1;
      bool divides = node.kind == Kind::Quotient && flow[roots[node.main()[0]]].kind == Kind::Constant;
      if (!inverts && !divides)
        continue;
      if (auto found = factors.find(roots[node.main().back()]); found != factors.end())
        factors[value] = {found->second.first, -found->second.second};
    }
    SkipAnalysis skip = analyseSkip(flow, roles.dependsOnBatch, states);
    for (const State &state : states)
      markDynamic(state, skip.outcomes[state.next]);
  }

  // Its new value is itself times a constant, chosen by a test of gradients; a state that a step which fails the test
  // leaves alone is another.
  void markDynamic(const State &state, const Outcome &whenSkipped) {
    auto factor = factors.find(state.input);
    if (factor == factors.end() || whenSkipped.isOld(state.input))
      return;
    bool isMultiplied = false, isDecided = false;
    walkBack(flow, state.next, [&](ValueId value, auto push) {
      const FlowNode &node = flow[value];
      if (node.kind == Kind::Product || node.kind == Kind::Quotient)
        isMultiplied |= llvm::any_of(node.main(), [&](ValueId main) { return roots[main] == state.input; }) &&
                        llvm::none_of(node.main(), [&](ValueId main) { return roles.dependsOnBatch[main]; });
      if (ValueId condition = node.condition(); condition != kNone)
        isDecided |= roles.dependsOnTest[condition];
      llvm::for_each(node.data(), push);
    });
    candidates[factor->second.first].isDynamic |= isMultiplied && isDecided;
  }

  void findUses() {
    llvm::DenseSet<ValueId> losses, differentiated;
    for (ValueId loss : roles.losses)
      losses.insert(roots[loss]);
    for (const FlowNode &node : flow.nodes)
      if (node.kind == Kind::Linear && !node.inputs.empty())
        differentiated.insert(roots[node.inputs[0]]);
    for (ValueId value = 0; value < flow.size(); ++value) {
      const FlowNode &node = flow[value];
      if (node.kind != Kind::Product && node.kind != Kind::Quotient)
        continue;
      for (auto [i, main] : llvm::enumerate(node.main())) {
        auto found = factors.find(roots[main]);
        if (found == factors.end())
          continue;
        Candidate &candidate = candidates[found->second.first];
        int sign = found->second.second * (node.kind == Kind::Quotient && i > 0 ? -1 : 1);
        for (ValueId other : node.main()) {
          if (other == main || !roles.dependsOnBatch[other])
            continue;
          (sign > 0 ? candidate.enters : candidate.leaves) = true;
          bool isLoss = losses.contains(roots[other]) || losses.contains(value) ||
                        (differentiated.contains(value) && !roles.reachesUpdate[other]);
          candidate.scalesLoss |= sign > 0 && flow[other].isSingle && isLoss;
        }
        // Seeds: constants times the scale.
        if (sign > 0 && llvm::all_of(node.main(), [&](ValueId other) {
              return other == main || flow[roots[other]].kind == Kind::Constant;
            }))
          candidate.enters = true;
      }
    }
  }

  struct Reach {
    uint64_t any = 0;    ///< Candidates that the value depends on.
    uint64_t spread = 0; ///< Those that passed an operator which mixes elements, together with the batch.
  };

  // Candidates `first` to `first` + 63 at once.
  std::vector<Reach> reach(size_t first) {
    std::vector<Reach> reaches(flow.size());
    for (int sweep = 0; sweep < 3; ++sweep) // Twice around a loop is enough for what a body hands on.
      for (ValueId value = 0; value < flow.size(); ++value) {
        const FlowNode &node = flow[value];
        Reach &reach = reaches[value];
        if (auto own = factors.find(value);
            own != factors.end() && own->second.first >= first && own->second.first < first + kMostCandidates)
          reach.any |= uint64_t(1) << (own->second.first - first);
        for (ValueId input : node.data()) {
          reach.any |= reaches[input].any;
          reach.spread |= reaches[input].spread;
        }
        if (!node.has(FlowNode::Elementwise) && node.kind != Kind::Source && roles.dependsOnBatch[value])
          reach.spread |= reach.any;
      }
    return reaches;
  }

  std::vector<ValueId> choose() {
    std::vector<ValueId> chosen;
    std::vector<NamedValue> sinks = roles.sinks();
    for (size_t first = 0; first < candidates.size(); first += kMostCandidates) {
      std::vector<Reach> reaches = reach(first);
      Reach all{~uint64_t(0), ~uint64_t(0)};
      for (const NamedValue &sink : sinks) {
        all.any &= reaches[sink.value].any;
        all.spread &= reaches[sink.value].spread;
      }
      uint64_t inLoss = roles.losses.empty() ? 0 : ~uint64_t(0);
      for (ValueId loss : roles.losses)
        inLoss &= reaches[loss].any;
      for (size_t i = first; i < candidates.size() && i < first + kMostCandidates; ++i) {
        const Candidate &candidate = candidates[i];
        uint64_t bit = uint64_t(1) << (i - first);
        bool reachesAll = !sinks.empty() && (all.any & bit), spreads = reachesAll && (all.spread & bit);
        bool isInLoss = inLoss & bit;
        llvm::StringRef name = candidate.name;
        bool isNamed = reachesAll && name.contains_insensitive("scale") && !isInLoss;
        bool byFlow = candidate.isConstant ? spreads && candidate.enters && candidate.leaves && !isInLoss
                                           : (spreads && candidate.enters && !isInLoss) ||
                                                 (reachesAll && candidate.enters && candidate.leaves && !isInLoss);
        bool scalesLoss = candidate.scalesLoss && (sinks.empty() || reachesAll);
        bool isDynamic = candidate.isDynamic && (candidate.enters || candidate.leaves);
        if (isDynamic || scalesLoss || byFlow || isNamed ||
            llvm::any_of(flow.scales, [&](ValueId scale) { return roots[scale] == candidate.value; }))
          chosen.push_back(candidate.value);
      }
    }
    return chosen;
  }
};

} // namespace

std::vector<ValueId> findScales(const FlowGraph &flow, const Roles &roles, llvm::ArrayRef<State> states) {
  Finder finder(flow, roles);
  finder.findRoots();
  finder.findCandidates(states);
  finder.findUses();
  return finder.choose();
}

} // namespace recast::verify
