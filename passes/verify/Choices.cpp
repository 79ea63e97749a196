// Choices that are written as arithmetic become selections: c a + (1 - c) b, and b + c (a - b), with a number c that is
// 0 or 1. All selections are by a condition, none by its opposite.
#include "passes/verify/BuildFlow.h"
#include "llvm/ADT/STLExtras.h"

namespace recast::verify {

namespace {

/// A number that is 0 or 1, or a boolean: `root`, or what is left of it to 1.
struct Switch {
  ValueId root = kNone;
  bool isInverted = false;
  bool operator==(const Switch &o) const { return root == o.root && isInverted == o.isInverted; }
  Switch inverse() const { return {root, !isInverted}; }
};

struct Term {
  ValueId value;
  bool isNegative;
};

class Finder {
public:
  explicit Finder(FlowGraph &flow) : flow(flow), switches(flow.size()) {}

  void run() {
    for (ValueId value = 0; value < flow.size(); ++value) {
      if (flow[value].kind == Kind::Sum && flow[value].has(FlowNode::Elementwise))
        (void)(chooseByProducts(value) || chooseByDifference(value));
      if (flow[value].kind == Kind::Select)
        straighten(flow.nodes[value]);
      switches[value] = switchOf(value);
    }
  }

private:
  /// Through what changes neither the elements nor their type; true where the sign changes on the way.
  Term root(ValueId value, bool isNegative = false) const {
    while (flow[value].kind == Kind::Move && flow[value].has(FlowNode::Elementwise) && flow[value].mains &&
           flow[flow[value].inputs[0]].elementType == flow[value].elementType) {
      isNegative ^= flow[value].has(FlowNode::Negates);
      value = flow[value].inputs[0];
    }
    return {value, isNegative};
  }
  /// The two terms of an element-wise sum; none of another value.
  llvm::SmallVector<Term, 2> termsOf(ValueId value) const {
    const FlowNode &node = flow[value];
    if (node.kind != Kind::Sum || !node.has(FlowNode::Elementwise) || node.has(FlowNode::Mean) || node.mains != 2)
      return {};
    return {root(node.inputs[0]), root(node.inputs[1], node.has(FlowNode::Subtract))};
  }
  bool isNumber(ValueId value, double number) const {
    while (flow[value].kind == Kind::Move && flow[value].mains && !flow[value].has(FlowNode::Negates) &&
           !flow[value].has(FlowNode::Reduce))
      value = flow[value].inputs[0];
    return flow[value].isNumber() && flow[value].number == number;
  }

  Switch switchOf(ValueId value) const {
    const FlowNode &node = flow[value];
    auto mains = node.main();
    Switch own{value, false}, first = mains.empty() ? Switch() : switches[mains[0]];
    auto areSwitches = [&] {
      return llvm::any_of(mains, [&](ValueId main) { return switches[main].root != kNone; }) &&
             llvm::all_of(mains, [&](ValueId main) {
               return switches[main].root != kNone || isNumber(main, 0) || isNumber(main, 1);
             });
    };
    switch (node.kind) {
    case Kind::Move:
      if (first.root != kNone && !node.has(FlowNode::Negates) && !node.has(FlowNode::Reduce))
        return first;
      break;
    case Kind::Logic:
      if (static_cast<LogicOp>(node.code) == LogicOp::Not && first.root != kNone)
        return first.inverse();
      break;
    case Kind::Select:
      if (node.condition() == kNone || mains.size() != 2)
        break;
      for (bool isInverted : {false, true})
        if (isNumber(mains[isInverted], 1) && isNumber(mains[!isInverted], 0))
          return isInverted ? switches[node.condition()].inverse() : switches[node.condition()];
      if (areSwitches())
        return own;
      break;
    case Kind::Sum: // 1 - c
      if (auto terms = termsOf(value); !terms.empty())
        for (size_t i : {0, 1})
          if (!terms[i].isNegative && isNumber(terms[i].value, 1) && terms[1 - i].isNegative &&
              switches[terms[1 - i].value].root != kNone)
            return switches[terms[1 - i].value].inverse();
      break;
    case Kind::Product:
    case Kind::Extremum:
      if (node.has(FlowNode::Elementwise) && areSwitches())
        return own;
      break;
    case Kind::Statistic:
      if (areSwitches())
        return own;
      break;
    default:
      break;
    }
    return node.element == Element::Bool ? own : Switch();
  }

  struct Factors {
    Switch by;
    ValueId rest;
  };
  /// c and a for each way to read the value as c a.
  llvm::SmallVector<Factors, 2> factorsOf(ValueId value) const {
    const FlowNode &node = flow[value];
    llvm::SmallVector<Factors, 2> found;
    if (node.kind == Kind::Product && node.has(FlowNode::Elementwise) && node.mains == 2)
      for (size_t i : {0, 1})
        if (switches[node.inputs[i]].root != kNone)
          found.push_back({switches[node.inputs[i]], node.inputs[1 - i]});
    return found;
  }

  /// By the condition itself, not by its opposite.
  void straighten(FlowNode &node) {
    if (node.condition() == kNone || node.mains != 2 || switches[node.condition()].root == kNone)
      return;
    Switch by = switches[node.condition()];
    node.inputs[2] = by.root;
    if (by.isInverted)
      turn(node);
  }
  static void turn(FlowNode &node) {
    std::swap(node.inputs[0], node.inputs[1]);
    node.code = node.code ? static_cast<uint8_t>(3 - node.code) : 0;
  }

  /// `inexact`: which of the two a difference rounds; -1: neither.
  void choose(ValueId value, Switch by, ValueId ifOn, ValueId ifOff, int inexact = -1) {
    FlowNode &node = flow.nodes[value];
    node.kind = Kind::Select;
    node.flags = FlowNode::Elementwise | FlowNode::Arithmetic;
    node.code = static_cast<uint8_t>(1 + inexact);
    node.inputs = {ifOn, ifOff, by.root};
    node.mains = 2;
    if (by.isInverted)
      turn(node);
  }

  bool chooseByProducts(ValueId value) {
    auto terms = termsOf(value);
    if (terms.empty() || terms[0].isNegative || terms[1].isNegative)
      return false;
    for (const Factors &on : factorsOf(terms[0].value))
      for (const Factors &off : factorsOf(terms[1].value))
        if (on.by == off.by.inverse()) {
          choose(value, on.by, on.rest, off.rest);
          return true;
        }
    return false;
  }

  bool chooseByDifference(ValueId value) {
    auto terms = termsOf(value);
    for (size_t i = 0; i < terms.size(); ++i) {
      Term kept = terms[i], moved = terms[1 - i];
      for (const Factors &factors : kept.isNegative ? llvm::SmallVector<Factors, 2>() : factorsOf(moved.value)) {
        Term difference = root(factors.rest, moved.isNegative);
        auto parts = termsOf(difference.value);
        for (size_t k = 0; k < parts.size(); ++k) { // + a - b, or - (b - a)
          bool isTaken = (parts[k].isNegative != difference.isNegative) && parts[k].value == kept.value;
          if (isTaken && parts[1 - k].isNegative == difference.isNegative) {
            choose(value, factors.by, parts[1 - k].value, kept.value, /*inexact=*/0);
            return true;
          }
        }
      }
    }
    return false;
  }

  FlowGraph &flow;
  std::vector<Switch> switches; ///< Of each value so far.
};

} // namespace

void findArithmeticChoices(FlowGraph &flow) { Finder(flow).run(); }

} // namespace recast::verify
