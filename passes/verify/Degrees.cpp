#include "passes/verify/Degrees.h"
#include "llvm/ADT/STLExtras.h"

namespace recast::verify {

// Bounds that only keep a value away from 0 or from the end of its type; PyTorch adds 1e-6 to norms.
static constexpr double kTiny = 1e-5, kHuge = 6e4;
// Loops are followed until nothing changes; degrees that still change then grow with every iteration.
static constexpr int kMostSweeps = 8;

Degrees::Degrees(const FlowGraph &flow, const llvm::DenseMap<ValueId, Symbol> &symbols, const std::vector<char> &batch,
                 bool isCount)
    : flow(flow), symbols(symbols), batch(batch), isCount(isCount), degrees(flow.size(), kUnset), pure(flow.size(), 0),
      statistic(flow.size(), 0), touched(flow.size(), 0), misjudged(flow.size(), 0) {
  intern({});
  for (const auto &[value, symbol] : symbols) {
    loops[symbol.index] = symbol.loop;
    isFixed &= flow[value].kind == Kind::Constant;
  }
  for (ValueId value = 0; value < flow.size(); ++value) {
    const FlowNode &node = flow[value];
    auto isMarked = [&](const std::vector<char> &marks) { return [&](ValueId input) { return marks[input] != 0; }; };
    pure[value] = symbols.contains(value) || node.kind == Kind::Constant ||
                  (node.kind != Kind::Carry && !node.data().empty() && llvm::all_of(node.data(), isMarked(pure)));
    touched[value] = symbols.contains(value) || llvm::any_of(node.data(), isMarked(touched));
    bool keeps = node.kind != Kind::Constant && node.kind != Kind::Source &&
                 llvm::all_of(node.main(), [&](ValueId input) { return statistic[input] || pure[input]; });
    statistic[value] = node.kind == Kind::Statistic || (keeps && llvm::any_of(node.main(), isMarked(statistic)));
  }
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    bool changed = false, hasLoops = false;
    recorded.clear();
    for (ValueId value = 0; value < flow.size(); ++value) {
      int degree = transfer(value);
      changed |= degree != degrees[value];
      hasLoops |= flow[value].kind == Kind::Carry;
      degrees[value] = degree;
    }
    if (!changed || !hasLoops)
      return;
  }
}

int Degrees::intern(Terms terms) {
  llvm::erase_if(terms, [](const auto &term) { return term.second == 0; });
  auto [found, isNew] = index.try_emplace(terms, static_cast<int>(table.size()));
  if (isNew)
    table.push_back(std::move(terms));
  return found->second;
}

int Degrees::plus(int a, int b, float factor) {
  if (a < 0 || b < 0)
    return a == kUnset || b == kUnset ? kUnset : kAny;
  if (table[b].empty())
    return a;
  std::map<uint32_t, float> sum(table[a].begin(), table[a].end());
  for (auto [symbol, degree] : table[b])
    sum[symbol] += factor * degree;
  return intern(Terms(sum.begin(), sum.end()));
}

int Degrees::scaled(int id, float factor) {
  if (id <= 0)
    return id;
  Terms terms = table[id];
  for (auto &[symbol, degree] : terms)
    degree *= factor;
  return intern(std::move(terms));
}

int Degrees::withoutLoop(int id, int loop) {
  if (id <= 0)
    return id;
  Terms terms = table[id];
  llvm::erase_if(terms, [&](const auto &term) {
    auto found = loops.find(term.first);
    return found != loops.end() && found->second == loop;
  });
  return intern(std::move(terms));
}

float Degrees::totalOf(int id) const {
  float sum = 0;
  if (id >= 0)
    for (auto [symbol, degree] : table[id])
      sum += symbol < kUncounted ? degree : 0;
  return sum;
}

float Degrees::total(ValueId value) const { return totalOf(degrees[value]); }

llvm::ArrayRef<std::pair<uint32_t, float>> Degrees::terms(ValueId value) const {
  if (degrees[value] < 0)
    return {};
  return table[degrees[value]];
}

bool Degrees::isGuard(ValueId value) const {
  const FlowNode &node = flow[value];
  if (node.kind != Kind::Constant)
    return node.kind == Kind::Move && !node.inputs.empty() && isGuard(node.inputs[0]);
  if (isCount)
    return true;
  return node.isNumber() && (std::abs(node.number) <= kTiny || !(std::abs(node.number) < kHuge));
}

int Degrees::constantDegree(ValueId value) const {
  double number = flow[value].number;
  return flow[value].isNumber() && (number == 0 || std::isinf(number)) ? kAny : 0;
}

// A gradient that comes from outside, or whose constant scale was folded into another constant.
bool Degrees::mayCarryUnseen(ValueId value) const {
  if (touched[value])
    return false;
  while (flow[value].kind == Kind::Move && !flow[value].inputs.empty())
    value = flow[value].inputs[0];
  return isFixed || flow[value].kind == Kind::Source || flow[value].kind == Kind::Constant;
}

// The common degree of the main operands.
int Degrees::join(ValueId value, DegreeEvent::Type type, bool report) {
  const FlowNode &node = flow[value];
  int result = kUnset;
  float low = 0, high = 0;
  bool first = true;
  for (ValueId input : node.main()) {
    int degree = degrees[input];
    if (degree < 0 || (isGuard(input) && degree == 0)) {
      if (result == kUnset && degree != kUnset)
        result = degree;
      continue;
    }
    float total = totalOf(degree);
    bool better = first || (type == DegreeEvent::Clipped ? total > totalOf(result)
                                                         : std::abs(total) < std::abs(totalOf(result)) || isCount);
    if (better || result < 0)
      result = degree;
    low = first ? total : std::min(low, total);
    high = first ? total : std::max(high, total);
    first = false;
  }
  // A function of norms that is not homogeneous moves with the scale in a way of its own.
  bool isUnknown = type == DegreeEvent::Compared && llvm::any_of(node.main(), [&](ValueId input) {
                     return llvm::any_of(terms(input), [](const auto &term) { return term.first >= kFirstFresh; });
                   });
  if (report && low != high && !isUnknown)
    record(type, value, std::abs(low) > std::abs(high) ? low : high);
  return result;
}

// Products, quotients, and what is linear in one operand: where pure powers of the scale meet values.
int Degrees::product(ValueId value) {
  const FlowNode &node = flow[value];
  int result = 0;
  float fromPure = 0, fromRest = 0;
  bool anyPure = false, anyBatch = false, isUnseen = true;
  for (auto [i, input] : llvm::enumerate(node.main())) {
    float factor = node.kind == Kind::Quotient && i > 0 ? -1 : 1;
    if (node.kind == Kind::Quotient && i > 0 && degrees[input] == kAny)
      continue;
    result = plus(result, degrees[input], factor);
    float total = factor * totalOf(degrees[input]);
    bool isScale = pure[input] && total != 0;
    (isScale ? fromPure : fromRest) += total;
    anyPure |= isScale;
    anyBatch |= batch[input] != 0;
    isUnseen &= isScale || mayCarryUnseen(input);
  }
  if (!anyPure || pure[value] || result < 0 || isCount)
    return result;
  float sum = fromPure + fromRest;
  if (fromPure > 0 && fromPure + std::max(fromRest, 0.0f) > 1) {
    record(DegreeEvent::Repeated, value, sum);
    return result;
  }
  if (fromPure < 0 && sum < 0 && anyBatch) {
    if (!isUnseen)
      record(DegreeEvent::Removed, value, sum);
    return 0;
  }
  return result;
}

int Degrees::fresh(ValueId value, bool report) {
  bool any = llvm::any_of(flow[value].data(), [&](ValueId input) { return degrees[input] > 0; });
  if (!any)
    return 0;
  if (isCount)
    return 0;
  if (report) {
    float degree = 0;
    for (ValueId input : flow[value].data())
      degree = degree != 0 ? degree : totalOf(degrees[input]);
    if (degree != 0)
      record(DegreeEvent::Distorted, value, degree);
    return 0;
  }
  return intern({{kFirstFresh + value, 1}});
}

// A function that is not homogeneous. Of norms and extrema it is another scale, of which nothing is known but that it
// is the same wherever it is used; of tensors it is an error.
int Degrees::distort(ValueId value) {
  bool ofTensor =
      llvm::any_of(flow[value].data(), [&](ValueId input) { return degrees[input] > 0 && !statistic[input]; });
  return fresh(value, ofTensor && !pure[value]);
}

int Degrees::transfer(ValueId value) {
  const FlowNode &node = flow[value];
  if (auto symbol = symbols.find(value); symbol != symbols.end())
    return intern({{symbol->second.index, symbol->second.sign}});
  if (node.kind == Kind::Constant)
    return constantDegree(value);
  if (node.main().empty())
    return 0;
  int first = degrees[node.main().front()];
  switch (node.kind) {
  case Kind::Move:
    misjudged[value] = misjudged[node.main().front()];
    return first;
  case Kind::Homogeneous:
    return first;
  case Kind::Linear:
  case Kind::Product:
  case Kind::Quotient:
    return product(value);
  case Kind::Power:
    return scaled(first, node.exponent);
  case Kind::Statistic:
    return scaled(join(value, DegreeEvent::Mismatch, true), node.exponent);
  case Kind::Sum:
    if (node.has(FlowNode::Subtract) && llvm::all_equal(node.main()))
      return kAny;
    return join(value, DegreeEvent::Mismatch, true);
  case Kind::Extremum:
    return join(value, DegreeEvent::Clipped, true);
  case Kind::Select: {
    // A branch that is a constant is a guard or a mask.
    bool hasConstant = llvm::any_of(node.main(), [&](ValueId input) { return pure[input] && degrees[input] == 0; });
    if (!hasConstant)
      return join(value, DegreeEvent::Mismatch, true);
    if (ValueId condition = node.condition(); condition != kNone && misjudged[condition])
      return join(value, DegreeEvent::Clipped, false); // Reported at the comparison.
    for (ValueId input : node.main())
      if (degrees[input] > 0)
        return degrees[input];
    return 0;
  }
  case Kind::Join:
  case Kind::Carry:
    return join(value, DegreeEvent::Mismatch, false);
  case Kind::LoopResult:
    return withoutLoop(join(value, DegreeEvent::Mismatch, false), node.loop);
  case Kind::Compare: {
    size_t before = recorded.size();
    join(value, DegreeEvent::Compared, true);
    misjudged[value] = recorded.size() > before;
    return 0;
  }
  case Kind::Logic:
    misjudged[value] = llvm::any_of(node.main(), [&](ValueId input) { return misjudged[input] != 0; });
    return 0;
  case Kind::Opaque:
    return fresh(value, false);
  case Kind::Nonlinear:
    return distort(value);
  default:
    return 0;
  }
}

} // namespace recast::verify
