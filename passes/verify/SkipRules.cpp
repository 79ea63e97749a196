// The finite check and the skip. A step whose gradients are not finite must leave parameters and moments as they were:
// evaluated here with every test of a gradient failing. And the tests that decide must look at every gradient.
#include "passes/verify/Rules.h"
#include "passes/verify/SkipAnalysis.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

namespace recast::verify {

namespace {

constexpr uint8_t kNan = 1, kInf = 2, kBoth = kNan | kInf;

/// Which tensors a condition tests, and for what.
class Coverage {
public:
  Coverage(const FlowGraph &flow, const Roles &roles, const SkipAnalysis &analysis)
      : analysis(analysis), flow(flow), roles(roles) {}

  const llvm::DenseMap<ValueId, uint8_t> &of(std::vector<ValueId> conditions) {
    llvm::sort(conditions);
    auto [found, isNew] = known.try_emplace(conditions);
    if (isNew)
      for (ValueId condition : conditions)
        mark(found->second, condition, 0);
    return found->second;
  }

private:
  // `tests` of what lies behind `value`; 0 while no test was passed.
  void mark(llvm::DenseMap<ValueId, uint8_t> &covered, ValueId start, uint8_t initial) {
    std::vector<std::pair<ValueId, uint8_t>> work{{start, initial}};
    llvm::DenseMap<ValueId, uint8_t> logicSeen;
    while (!work.empty()) {
      auto [value, tests] = work.back();
      work.pop_back();
      const FlowNode &node = flow[value];
      if (tests != 0 && (tests &= static_cast<uint8_t>(~hiddenBy(node))) == 0)
        continue;
      auto push = [&, tests = tests](llvm::ArrayRef<ValueId> inputs) {
        for (ValueId input : inputs)
          work.emplace_back(input, tests);
      };
      if (tests == 0) {
        if (!logicSeen.try_emplace(value, 1).second)
          continue;
        if (node.kind == Kind::Test || node.kind == Kind::Compare) {
          uint8_t own = node.kind == Kind::Compare ||
                                llvm::any_of(node.main(), [&](ValueId main) { return analysis.zeroed[main]; })
                            ? kBoth
                            : (node.has(FlowNode::TestsNan) ? kNan : 0) | (node.has(FlowNode::TestsInf) ? kInf : 0);
          for (ValueId main : node.main()) // A count of failed tests may be compared, too.
            work.emplace_back(main, roles.dependsOnBatch[main] && !countsTests(main) ? own : uint8_t(0));
        } else {
          push(node.inputs);
        }
        continue;
      }
      uint8_t &mark = covered[value];
      if ((mark | tests) == mark)
        continue;
      mark |= tests;
      switch (node.kind) {
      case Kind::Move:
      case Kind::Join:
      case Kind::Sum:
      case Kind::Power:
      case Kind::Statistic:
      case Kind::Homogeneous:
      case Kind::Extremum:
      case Kind::LoopResult:
      case Kind::Carry:
        push(node.main());
        break;
      case Kind::Select: // Unless it masks.
        if (node.has(FlowNode::Arithmetic) ||
            llvm::none_of(node.main(), [&](ValueId main) { return flow[main].kind == Kind::Constant; }))
          push(node.main());
        break;
      case Kind::Product:
      case Kind::Quotient: // By scalars, constants and itself only: another tensor hides where the infinity came from.
        for (ValueId main : node.main())
          if (llvm::all_of(node.main(), [&](ValueId other) {
                return other == main || flow[other].isSingle || flow[other].kind == Kind::Constant;
              }))
            push({main});
        break;
      default:
        break;
      }
    }
  }

  // What values are made from by moves, choices and bounds.
  std::vector<ValueId> rootsOf(llvm::ArrayRef<ValueId> values) const {
    return walkBack(flow, values, [&](ValueId value, auto push) {
      Kind kind = flow[value].kind;
      if (kind == Kind::Move || kind == Kind::Homogeneous || kind == Kind::Select || kind == Kind::Extremum)
        for (ValueId main : flow[value].main())
          if (roles.dependsOnBatch[main])
            push(main);
    });
  }

  // What a bound takes away before a test sees it.
  uint8_t hiddenBy(const FlowNode &node) const {
    auto mains = node.main();
    if (node.kind == Kind::Extremum) {
      bool hasBound = llvm::any_of(mains, [&](ValueId main) { return !roles.dependsOnBatch[main]; });
      bool isLeast = static_cast<ExtremumOp>(node.code) == ExtremumOp::Max && llvm::all_of(mains, [&](ValueId main) {
                       Kind kind = flow[main].kind;
                       return !roles.dependsOnBatch[main] || kind == Kind::Statistic || kind == Kind::Homogeneous;
                     });
      return hasBound && !isLeast ? kInf : 0;
    }
    if (node.kind != Kind::Select || node.condition() == kNone || node.has(FlowNode::Arithmetic))
      return 0;
    std::vector<ValueId> list = rootsOf(mains);
    llvm::SmallDenseSet<ValueId> chosen(list.begin(), list.end());
    uint8_t hidden = 0; // By comparing, or testing, what is chosen.
    walkBack(flow, node.condition(), [&](ValueId value, auto push) {
      const FlowNode &test = flow[value];
      bool ofChosen = llvm::any_of(test.main(), [&](ValueId main) {
        return roles.dependsOnBatch[main] &&
               llvm::any_of(rootsOf(main), [&](ValueId root) { return chosen.contains(root); });
      });
      if (test.kind == Kind::Compare && ofChosen)
        hidden |= kInf;
      else if (test.kind == Kind::Test && ofChosen)
        hidden |= (test.has(FlowNode::TestsNan) ? kNan : 0) | (test.has(FlowNode::TestsInf) ? kInf : 0);
      else if (test.kind == Kind::Logic || test.kind == Kind::Move)
        llvm::for_each(test.main(), push);
    });
    return hidden;
  }

  // A number computed from booleans, such as how many tests failed.
  bool countsTests(ValueId value) const {
    bool found = false;
    walkBack(flow, value, [&](ValueId inner, auto push) {
      const FlowNode &node = flow[inner];
      found |= node.element == Element::Bool;
      bool counts = node.kind == Kind::Move || node.kind == Kind::Sum || node.kind == Kind::Statistic ||
                    node.kind == Kind::Extremum || node.kind == Kind::Join;
      if (counts && node.element != Element::Bool)
        llvm::for_each(node.main(), push);
    });
    return found;
  }

  const SkipAnalysis &analysis;
  const FlowGraph &flow;
  const Roles &roles;
  std::map<std::vector<ValueId>, llvm::DenseMap<ValueId, uint8_t>> known;
};

struct SkipRules {
  RuleContext &context;
  const FlowGraph &flow;
  const Roles &roles;
  SkipAnalysis analysis;

  // Booleans by tests of gradients that enter the update: as conditions, or as factors of 0 and 1.
  std::vector<ValueId> conditionsOf(const State &state) {
    std::vector<ValueId> conditions;
    auto isKnown = [&](ValueId value) {
      return analysis.outcomes[value].type == Outcome::Number && roles.dependsOnTest[value];
    };
    walkBack(flow, state.next, [&](ValueId value, auto push) {
      const FlowNode &node = flow[value];
      if (ValueId condition = node.condition(); condition != kNone && isKnown(condition))
        conditions.push_back(condition);
      if (node.element == Element::Bool && isKnown(value))
        conditions.push_back(value);
      else if (node.has(FlowNode::Elementwise) || node.kind == Kind::LoopResult || node.kind == Kind::Carry)
        llvm::for_each(node.data(), push);
    });
    return conditions;
  }

  // A product with weights or activations: it may overflow though what it takes was tested.
  bool isBackward(ValueId value) {
    const FlowNode &node = flow[value];
    bool mixes = node.kind == Kind::Linear || (node.kind == Kind::Product && !node.has(FlowNode::Elementwise));
    return mixes && roles.dependsOnBatch[value] && !node.isSingle && llvm::any_of(node.inputs, [&](ValueId input) {
             while (flow[input].kind == Kind::Move && !roles.feedsLoss[input] && !flow[input].inputs.empty())
               input = flow[input].inputs[0];
             return roles.feedsLoss[input] && flow[input].kind != Kind::Constant;
           });
  }

  // From the batch to the new value past every tested tensor; empty where all is tested. Scalars do not count, unless
  // the parameter is one: norms carry every gradient.
  std::vector<ValueId> untested(const State &state, const llvm::DenseMap<ValueId, uint8_t> &covered, uint8_t tests) {
    bool isSingle = flow[state.next].isSingle;
    bool found = false;
    auto isBatchSource = [&](ValueId value) {
      return roles.dependsOnBatch[value] &&
             llvm::none_of(flow[value].data(), [&](ValueId input) { return roles.dependsOnBatch[input]; });
    };
    std::vector<ValueId> path = context.pathTo(
        state.next,
        [&](ValueId value) {
          found |= isBatchSource(value) || isBackward(value);
          return found;
        },
        [&](ValueId user, ValueId operand) {
          auto mark = covered.find(operand);
          bool isCut = mark != covered.end() && (mark->second & tests) == tests;
          return !isCut && llvm::is_contained(flow[user].data(), operand) && roles.dependsOnBatch[operand] &&
                 (isSingle || !flow[operand].isSingle);
        });
    return found ? path : std::vector<ValueId>();
  }

  bool run() {
    std::vector<State> states = roles.parameters;
    llvm::append_range(states, roles.moments);
    llvm::append_range(states, roles.kept);
    analysis = analyseSkip(flow, roles.dependsOnBatch, states);
    std::vector<ValueId> tests;
    for (const State &state : states)
      llvm::append_range(tests, conditionsOf(state));
    if (tests.empty() && roles.scales.empty())
      return false;
    checkTests(tests);
    checkSkips(states, tests.empty());
    return !tests.empty();
  }

  void checkTests(const std::vector<ValueId> &allTests) {
    Coverage coverage(flow, roles, analysis);
    for (const State &state : roles.parameters) {
      std::vector<ValueId> conditions = conditionsOf(state);
      const auto &covered = coverage.of(conditions.empty() ? allTests : conditions);
      std::vector<ValueId> path = untested(state, covered, kBoth);
      if (path.empty())
        continue;
      const char *what = "is not tested for infinities and NaN by the check that decides about its update";
      if (allTests.empty())
        what = "carries a loss scale and is not tested for infinities and NaN";
      else if (untested(state, covered, kNan).empty())
        what = "is tested for NaN and not for infinities";
      else if (untested(state, covered, kInf).empty())
        what = "is tested for infinities and not for NaN";
      context.add(Rule::UncheckedGradient,
                  llvm::formatv("the gradient of '{0}' {1}: let the check read it", state.name, what), path,
                  "the update of '" + state.name + "'", state.name);
    }
  }

  void checkSkips(const std::vector<State> &states, bool hasNoTest) {
    for (const State &state : states) {
      const Outcome &outcome = analysis.outcomes[state.next];
      if (outcome.isOld(state.input))
        continue;
      if (hasNoTest) // Reported as an unchecked gradient.
        continue;
      bool isCount = !roles.dependsOnBatch[state.next];
      std::vector<ValueId> path = context.pathTo(
          state.next,
          [&](ValueId value) {
            return isCount ? value == state.input : value != state.next && !flow[value].has(FlowNode::Elementwise);
          },
          [&](ValueId user, ValueId operand) {
            return llvm::is_contained(flow[user].data(), operand) && (isCount || roles.dependsOnBatch[operand]);
          });
      context.add(
          Rule::UpdateOutsideSkip,
          llvm::formatv("'{0}' does not keep its value in a step whose gradients are not finite: choose the old "
                        "value by Where or If on the check's result (a product with 0 keeps NaN)",
                        state.name),
          path, "the new value of '" + state.name + "'", state.name);
    }
  }
};

} // namespace

bool checkSkipRules(RuleContext &context) {
  if (context.roles.parameters.empty())
    return false;
  SkipRules rules{context, context.flow, context.roles, {}};
  return rules.run();
}

} // namespace recast::verify
