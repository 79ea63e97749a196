#include "passes/verify/SkipAnalysis.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/STLExtras.h"

namespace recast::verify {

namespace {

// Largest finite f16: bounds from here on are limits of types.
constexpr double kLargestF16 = 65504;

class Evaluation : public SkipAnalysis {
public:
  Evaluation(const FlowGraph &flow, const std::vector<char> &batch) : flow(flow), batch(batch) {}

  void run(llvm::ArrayRef<State> states) {
    outcomes.resize(flow.size());
    zeroed.resize(flow.size(), 0);
    wild.resize(flow.size(), 0);
    llvm::DenseSet<ValueId> inputs;
    for (const State &state : states)
      inputs.insert(state.input);
    for (ValueId value = 0; value < flow.size(); ++value) {
      wild[value] = mayBeWild(value);
      if (inputs.contains(value))
        outcomes[value] = {Outcome::Old, value, 0};
      else
        outcomes[value] = evaluate(value);
      if (outcomes[value].type == Outcome::Number)
        wild[value] = 0;
    }
  }

private:
  // Integers and booleans are finite, and so is what is computed from them element by element: masks, counts.
  bool mayBeWild(ValueId value) const {
    const FlowNode &node = flow[value];
    if (!batch[value] || node.element == Element::Bool || node.element == Element::Int)
      return false;
    if (node.kind == Kind::Source || node.kind == Kind::Carry || node.kind == Kind::LoopResult)
      return true;
    ValueId condition = node.condition();
    if (condition != kNone && node.mains == 2 && !node.has(FlowNode::Arithmetic) &&
        outcomes[condition].type == Outcome::Number)
      return wild[node.main()[outcomes[condition].number != 0 ? 0 : 1]];
    bool isPlain = node.has(FlowNode::Elementwise) || node.kind == Kind::Move || node.kind == Kind::Statistic ||
                   node.kind == Kind::Join;
    bool isPicked = llvm::any_of(node.data().drop_front(node.mains), [&](ValueId side) {
      return batch[side] != 0; // An embedding of labels is an activation.
    });
    return !isPlain || isPicked || llvm::any_of(node.main(), [&](ValueId input) { return wild[input] != 0; });
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
    bool dependsOnBatch = llvm::any_of(mains, [&](ValueId main) { return batch[main]; });
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
      if (node.has(FlowNode::Arithmetic))
        zeroed[value] = llvm::any_of(mains, [&](ValueId main) { return zeroed[main]; });
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
    if (a == b && batch[a])
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
    if (batch[a] && isLimit(b))
      return number(!isLess);
    if (batch[b] && isLimit(a))
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
    if (condition == kNone || outcomes[condition].type != Outcome::Number)
      return a == b && !node.has(FlowNode::Arithmetic) ? a : Outcome();
    size_t chosen = outcomes[condition].number != 0 ? 0 : 1;
    if (node.has(FlowNode::Arithmetic) && (wild[node.main()[1 - chosen]] || node.code == 1 + chosen))
      return {}; // 0 times a gradient that is not finite is NaN, and b + (a - b) is not a to the bit.
    return chosen == 0 ? a : b;
  }

  Outcome add(ValueId value) {
    const FlowNode &node = flow[value];
    zeroed[value] =
        (node.has(FlowNode::Subtract) && node.main().size() == 2 && node.main()[0] == node.main()[1] && batch[value]) ||
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
    zeroed[value] = (hasZero && wild[value]) || llvm::any_of(mains, [&](ValueId main) { return zeroed[main]; });
    Outcome result = number(1);
    for (ValueId main : mains) {
      Outcome factor = outcomes[main];
      if (hasZero && !wild[main])
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

  const FlowGraph &flow;
  const std::vector<char> &batch;
};

} // namespace

SkipAnalysis analyseSkip(const FlowGraph &flow, const std::vector<char> &batch, llvm::ArrayRef<State> states) {
  Evaluation evaluation(flow, batch);
  evaluation.run(states);
  return std::move(evaluation);
}

} // namespace recast::verify
