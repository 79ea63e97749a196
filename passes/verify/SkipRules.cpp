// The finite check and the skip. A step whose gradients are not finite must leave parameters and moments as they were:
// evaluated here with every test of a gradient failing. And the tests that decide must look at every gradient.
#include "passes/verify/Rules.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include <map>

namespace recast::verify {

namespace {

constexpr uint8_t kNan = 1, kInf = 2, kBoth = kNan | kInf;
// Largest finite f16: bounds from here on are limits of types.
constexpr double kLargestF16 = 65504;

/// What a value is in a step whose gradients are all non-finite.
struct Outcome {
  enum Type : uint8_t { Unknown, Old, Number } type = Unknown;
  ValueId state = kNone; ///< Of Old: the state input that the value equals.
  double number = 0;     ///< Of Number; booleans are 0 and 1.
  bool operator==(const Outcome &o) const { return type == o.type && state == o.state && number == o.number; }
};

struct SkipAnalysis {
  const FlowGraph &flow;
  const Roles &roles;
  std::vector<Outcome> outcomes;
  std::vector<char> zeroed; ///< x * 0 and x - x: NaN exactly where x is not finite.

  void run(llvm::ArrayRef<State> states) {
    outcomes.resize(flow.size());
    zeroed.resize(flow.size(), 0);
    llvm::DenseSet<ValueId> inputs;
    for (const State &state : states)
      inputs.insert(state.input);
    for (ValueId value = 0; value < flow.size(); ++value) {
      if (inputs.contains(value))
        outcomes[value] = {Outcome::Old, value, 0};
      else
        outcomes[value] = evaluate(value);
    }
  }

  // Through a narrower type it would not be the old value.
  static bool keepsValue(const FlowNode &moved, const FlowNode &old) {
    auto width = [](Element element) {
      return element == Element::F64 ? 3 : element == Element::F32 ? 2 : element == Element::Low ? 1 : 0;
    };
    bool isWider = width(old.element) > 0 && width(moved.element) > width(old.element);
    return moved.elementType == old.elementType || isWider;
  }

  static Outcome number(double x) { return {Outcome::Number, kNone, x}; }

  bool isNumber(ValueId value, double x) const {
    return outcomes[value].type == Outcome::Number && outcomes[value].number == x;
  }

  Outcome evaluate(ValueId value) {
    const FlowNode &node = flow[value];
    auto mains = node.main();
    bool dependsOnBatch = llvm::any_of(mains, [&](ValueId main) { return roles.dependsOnBatch[main]; });
    switch (node.kind) {
    case Kind::Constant:
      return node.isNumber() ? number(node.number) : Outcome();
    case Kind::Test:
      return dependsOnBatch ? number(node.has(FlowNode::TrueIfFinite) ? 0 : 1) : Outcome();
    case Kind::Compare:
      return compare(node);
    case Kind::Logic:
      return logic(node);
    case Kind::Select:
      return choose(node);
    case Kind::Move: {
      zeroed[value] = zeroed[mains[0]];
      const Outcome &moved = outcomes[mains[0]];
      bool isSame = node.has(FlowNode::Elementwise) && !node.has(FlowNode::Negates);
      // A sum or slice of equal numbers still has the sign and the truth of one.
      if (moved.type == Outcome::Number)
        return node.has(FlowNode::Negates) ? number(-moved.number) : moved;
      return isSame && (moved.type != Outcome::Old || keepsValue(node, flow[moved.state])) ? moved : Outcome();
    }
    case Kind::Homogeneous:
    case Kind::Statistic:
      zeroed[value] = zeroed[mains[0]];
      return outcomes[mains[0]].type == Outcome::Number ? number(std::abs(outcomes[mains[0]].number)) : Outcome();
    case Kind::Sum:
      return add(value);
    case Kind::Product:
      return multiply(value);
    case Kind::Extremum:
    case Kind::Join:
      zeroed[value] = llvm::any_of(mains, [&](ValueId main) { return zeroed[main]; });
      return llvm::all_of(mains, [&](ValueId main) { return outcomes[main] == outcomes[mains[0]]; })
                 ? outcomes[mains[0]]
                 : Outcome();
    case Kind::LoopResult:
      return outcomes[mains[0]] == outcomes[mains.back()] ? outcomes[mains[0]] : Outcome();
    case Kind::Carry: // Unchanged only if the body hands it on, which the loop's result tells.
      return outcomes[mains[0]];
    default:
      return {};
    }
  }

  // The truth that a comparison has where the tensor is not finite: none holds for NaN, infinities exceed every bound.
  Outcome compare(const FlowNode &node) {
    if (node.main().size() != 2)
      return {};
    ValueId a = node.main()[0], b = node.main()[1];
    auto op = static_cast<CompareOp>(node.code);
    if (zeroed[a] || zeroed[b])
      return number(0);
    if (a == b && roles.dependsOnBatch[a])
      return number(0);
    if (outcomes[a].type == Outcome::Number && outcomes[b].type == Outcome::Number) {
      double x = outcomes[a].number, y = outcomes[b].number;
      switch (op) {
      case CompareOp::Less:
        return number(x < y);
      case CompareOp::LessOrEqual:
        return number(x <= y);
      case CompareOp::Greater:
        return number(x > y);
      case CompareOp::GreaterOrEqual:
        return number(x >= y);
      case CompareOp::Equal:
        return number(x == y);
      }
    }
    bool isLess = op == CompareOp::Less || op == CompareOp::LessOrEqual;
    auto isLimit = [&](ValueId value) {
      return outcomes[value].type == Outcome::Number && !(std::abs(outcomes[value].number) < kLargestF16);
    };
    if (roles.dependsOnBatch[a] && isLimit(b))
      return number(!isLess);
    if (roles.dependsOnBatch[b] && isLimit(a))
      return number(isLess || op == CompareOp::Equal);
    return {};
  }

  Outcome logic(const FlowNode &node) {
    auto op = static_cast<LogicOp>(node.code);
    Outcome a = outcomes[node.main()[0]];
    if (op == LogicOp::Not)
      return a.type == Outcome::Number ? number(a.number == 0) : Outcome();
    if (node.main().size() != 2)
      return {};
    Outcome b = outcomes[node.main()[1]];
    bool knowsA = a.type == Outcome::Number, knowsB = b.type == Outcome::Number;
    if (op == LogicOp::Or && ((knowsA && a.number != 0) || (knowsB && b.number != 0)))
      return number(1);
    if (op == LogicOp::And && ((knowsA && a.number == 0) || (knowsB && b.number == 0)))
      return number(0);
    if (!knowsA || !knowsB)
      return {};
    bool x = a.number != 0, y = b.number != 0;
    return number(op == LogicOp::Or ? x || y : op == LogicOp::And ? x && y : x != y);
  }

  Outcome choose(const FlowNode &node) {
    if (node.main().size() != 2)
      return {};
    Outcome a = outcomes[node.main()[0]], b = outcomes[node.main()[1]];
    ValueId condition = node.condition();
    if (condition != kNone && outcomes[condition].type == Outcome::Number)
      return outcomes[condition].number != 0 ? a : b;
    return a == b ? a : Outcome();
  }

  Outcome add(ValueId value) {
    const FlowNode &node = flow[value];
    zeroed[value] = (node.has(FlowNode::Subtract) && node.main().size() == 2 && node.main()[0] == node.main()[1] &&
                     roles.dependsOnBatch[value]) ||
                    llvm::any_of(node.main(), [&](ValueId main) { return zeroed[main]; });
    if (node.has(FlowNode::Mean))
      return {};
    Outcome result = number(0);
    for (auto [i, main] : llvm::enumerate(node.main())) {
      Outcome term = outcomes[main];
      bool subtracts = i > 0 && node.has(FlowNode::Subtract);
      if (term.type == Outcome::Unknown)
        return {};
      if (term.type == Outcome::Number && term.number == 0)
        continue;
      if (result.type == Outcome::Number && result.number == 0 && !subtracts)
        result = term;
      else if (result.type == Outcome::Number && term.type == Outcome::Number)
        result.number += subtracts ? -term.number : term.number;
      else
        return {};
    }
    return result;
  }

  // 0 times a gradient that is not finite is NaN: masks by products do not skip.
  Outcome multiply(ValueId value) {
    const FlowNode &node = flow[value];
    auto mains = node.main();
    bool hasZero = llvm::any_of(mains, [&](ValueId main) { return isNumber(main, 0); });
    zeroed[value] =
        (hasZero && roles.dependsOnBatch[value]) || llvm::any_of(mains, [&](ValueId main) { return zeroed[main]; });
    Outcome result = number(1);
    for (ValueId main : mains) {
      Outcome factor = outcomes[main];
      if (hasZero && !roles.dependsOnBatch[main])
        continue;
      if (factor.type == Outcome::Unknown)
        return {};
      if (factor.type == Outcome::Number && result.type == Outcome::Number)
        result.number *= factor.number;
      else if (isNumber(main, 1))
        continue;
      else if (result.type == Outcome::Number && result.number == 1)
        result = factor;
      else
        return {};
    }
    return hasZero ? number(0) : result;
  }
};

/// Which tensors a condition tests, and for what.
class Coverage {
public:
  Coverage(const SkipAnalysis &analysis) : analysis(analysis), flow(analysis.flow), roles(analysis.roles) {}

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
        if (llvm::none_of(node.main(), [&](ValueId main) { return flow[main].kind == Kind::Constant; }))
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
    if (node.kind != Kind::Select || node.condition() == kNone)
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
    analysis.run(states);
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
    Coverage coverage(analysis);
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
      if (outcome.type == Outcome::Old && outcome.state == state.input)
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
  SkipRules rules{context, context.flow, context.roles, {context.flow, context.roles, {}, {}}};
  return rules.run();
}

} // namespace recast::verify
