#include "passes/precision/Assignment.h"
#include "ir/onnx/IntendedValue.h"
#include "ir/train/Dialect.h"
#include "passes/gradient/Differentiability.h"
#include "passes/precision/Constants.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::precision {

namespace {

// Sizes that the graph leaves open, for weighing casts against each other.
constexpr int64_t kNominalDim = 32, kNominalElems = 1024, kNominalTrips = 8;

// A cast reads one type and writes the other.
constexpr int64_t kBytesPerElem = 4 + 2;

int64_t elemsOf(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type)
    return kNominalElems;
  int64_t elems = 1;
  for (int64_t size : type.getShape())
    elems = std::min<int64_t>(elems * (size == ShapedType::kDynamic ? kNominalDim : size), int64_t(1) << 40);
  return elems;
}

bool isOneElement(Value value) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  return type && type.hasStaticShape() && type.getNumElements() == 1;
}

bool isNumber(Value value) { return isOneElement(value) && scalarOf(value).has_value(); }

std::string text(double number) {
  std::string digits;
  llvm::raw_string_ostream(digits) << llvm::format("%.9g", intendedValue(static_cast<float>(number)));
  return digits;
}

} // namespace

StringRef labelOf(Type type) { return type.isF32() ? "f32" : type.isF16() ? "f16" : "bf16"; }

Assignment::Assignment(Operation *holder, Policy &policy, Type low, ArrayRef<std::string> train)
    : holder(holder), policy(policy), low(low), f32(Float32Type::get(holder->getContext())), train(train) {}

bool Assignment::mayTrain(Value value) const {
  while (isa_and_nonnull<CastOp, CastLikeOp>(value.getDefiningOp()))
    value = value.getDefiningOp()->getOperand(0);
  auto initializer = value.getDefiningOp<InitializerOp>();
  return initializer && (gradient::looksLikeParameter(value) || llvm::any_of(train, [&](const std::string &glob) {
                           return gradient::matchesGlob(glob, nameOf(value));
                         }));
}

void Assignment::run() {
  visitBlock(holder->getRegion(0).front(), 1);
  Operation *end = holder->getRegion(0).front().getTerminator();
  for (OpOperand &output : end->getOpOperands()) // keep the types that they have
    if (isOurs(output.get()))
      read(end, output.getOperandNumber(), currentSide(output.get()));
  solved = solveCut(problem, [&](int variable, const std::vector<bool> &isLow) {
    return llvm::all_of(preferred[variable], [&](Value value) {
      int side = sideOf(value);
      return side >= 0 ? isLow[side] : side == kLow;
    });
  });
  writeRemarks();
}

const Choice *Assignment::find(Operation *op) const {
  auto found = choices.find(op);
  return found == choices.end() ? nullptr : &found->second;
}

Type Assignment::typeOf(int side) const {
  if (side == kOpen)
    return {};
  bool isLow = side >= 0 ? static_cast<bool>(solved.isLow[static_cast<size_t>(side)]) : side == kLow;
  return isLow ? low : f32;
}

Type Assignment::wanted(Operation *op, unsigned operand) const {
  if (const Choice *choice = find(op))
    for (auto [index, side] : choice->wants)
      if (index == operand)
        return typeOf(side);
  return {};
}

Type Assignment::typeOf(Value value) const {
  auto found = valueIndex.find(value);
  return found == valueIndex.end() ? Type() : typeOf(problem.values[static_cast<size_t>(found->second)].producer);
}

// --- Values ---

bool Assignment::isOurs(Value value) const {
  Type type = elementTypeOf(value);
  return type && (type == f32 || type == low);
}

int Assignment::currentSide(Value value) const { return elementTypeOf(value) == low ? kLow : kWide; }

Value Assignment::rootOf(Value value) const {
  while (Operation *op = value.getDefiningOp()) {
    bool widens = isa<CastOp, CastLikeOp>(op) && elementTypeOf(value) == f32 && isOurs(op->getOperand(0));
    if (!widens)
      break;
    value = op->getOperand(0);
  }
  return value;
}

int Assignment::sideOf(Value value) const {
  auto found = valueIndex.find(value);
  return found == valueIndex.end() ? currentSide(value) : problem.values[static_cast<size_t>(found->second)].producer;
}

void Assignment::define(Value value, int side, int64_t repeats) {
  if (!isOurs(value))
    return;
  if (policy.hasRanges())
    if (const TensorRange *known = policy.rangeOf(nameOf(value)); known && !known->range.fits(low))
      beyondLow.insert(value);
  valueIndex[value] = static_cast<int>(problem.values.size());
  problem.values.push_back({side, elemsOf(value) * kBytesPerElem * repeats});
}

void Assignment::read(Operation *op, unsigned operand, int side) {
  Value value = op->getOperand(operand);
  choices[op].wants.emplace_back(operand, side);
  if (isNumber(value)) // a constant in the other type costs nothing
    return;
  auto found = valueIndex.find(rootOf(value));
  if (found != valueIndex.end())
    problem.values[static_cast<size_t>(found->second)].readers.push_back(side);
}

int Assignment::addVariable(SmallVector<Value, 2> values) {
  preferred.push_back(std::move(values));
  return problem.addVariable();
}

// --- The walk ---

void Assignment::visitBlock(Block &block, int64_t repeats) {
  int64_t outer = std::exchange(repeatsNow, repeats);
  if (block.getParentOp() == holder)
    for (BlockArgument argument : block.getArguments())
      define(argument, currentSide(argument), repeats);
  for (Operation &op : block)
    visit(&op, repeats);
  repeatsNow = outer;
}

void Assignment::visit(Operation *op, int64_t repeats) {
  if (isa<InitializerOp, ConstantOp>(op)) {
    define(op->getResult(0), currentSide(op->getResult(0)), 1);
  } else if (isa<CastOp, CastLikeOp>(op)) {
    visitCast(op);
  } else if (isNode(op) && op->getNumRegions()) {
    visitControlFlow(op, repeats);
  } else if (isNode(op)) {
    visitNode(Node(op));
  }
}

// A cast that widens is no value of its own. One that rounds reads its input in the low type: where that is f32, the
// rounding stays.
void Assignment::visitCast(Operation *op) {
  choices.try_emplace(op, Choice{AutocastClass::Never, {}});
  Value input = op->getOperand(0), result = op->getResult(0);
  sawCast |= isOurs(input) && isOurs(result);
  if (!isOurs(result) || rootOf(result) != result)
    return;
  define(result, currentSide(result), repeatsNow);
  if (isOurs(input) && !isNumber(input))
    if (auto found = valueIndex.find(rootOf(input)); found != valueIndex.end())
      problem.values[static_cast<size_t>(found->second)].readers.push_back(kLow);
}

// Gets what it had, and its bodies too.
void Assignment::leave(Operation *op) {
  op->walk([&](Operation *inner) {
    choices.try_emplace(inner, Choice{});
    for (OpOperand &operand : inner->getOpOperands())
      if (isOurs(operand.get()) && valueIndex.contains(rootOf(operand.get())))
        read(inner, operand.getOperandNumber(), currentSide(operand.get()));
  });
  for (Value result : op->getResults())
    define(result, currentSide(result), repeatsNow);
}

void Assignment::visitControlFlow(Operation *op, int64_t repeats) {
  Node node(op);
  bool isScan = node.is("Scan") && node.sinceVersion() >= 9; // before, Scan had a batch axis and other inputs
  if (node.is("Loop") || isScan)
    return visitLoop(op, repeats);
  if (!node.is("If"))
    return leave(op);
  choices.try_emplace(op, Choice{AutocastClass::Never, {}});
  for (Region &body : op->getRegions())
    visitBlock(body.front(), repeats);
  // Both branches give one type: the widest.
  for (auto [i, result] : llvm::enumerate(op->getResults())) {
    if (!isOurs(result))
      continue;
    SmallVector<Value, 2> branches;
    for (Region &body : op->getRegions())
      branches.push_back(body.front().getTerminator()->getOperand(static_cast<unsigned>(i)));
    int side = llvm::all_of(branches, [&](Value value) { return isOurs(value); }) ? addVariable(branches) : kOpen;
    for (Region &body : op->getRegions()) {
      if (side == kOpen)
        break;
      Operation *end = body.front().getTerminator();
      problem.rules.push_back({side, sideOf(end->getOperand(static_cast<unsigned>(i)))});
      read(end, static_cast<unsigned>(i), side);
    }
    define(result, side == kOpen ? currentSide(result) : side, repeats);
  }
}

// Carried values are state: they keep their type, or sums over the trips would be rounded at each. What is scanned in
// or collected may be low: the trips' slices and the whole tensor together.
void Assignment::visitLoop(Operation *op, int64_t repeats) {
  Node node(op);
  Block &body = op->getRegion(0).front();
  Operation *end = body.getTerminator();
  choices.try_emplace(op, Choice{AutocastClass::Never, {}});
  bool isLoop = node.is("Loop");
  unsigned scanned = isLoop ? 0 : static_cast<unsigned>(node.getInt("num_scan_inputs", 0));
  unsigned firstCarried = isLoop ? 2 : 0; // of operands and of the body's arguments
  unsigned carried = op->getNumOperands() - firstCarried - scanned;
  unsigned firstYielded = isLoop ? 1 : 0; // a loop yields its condition first
  int64_t trips = kNominalTrips;
  if (auto known = isLoop ? constantScalar(node.input(0)) : std::nullopt)
    trips = std::max<int64_t>(1, static_cast<int64_t>(std::min(*known, 1e6)));

  for (unsigned i = 0; i < op->getNumOperands(); ++i) {
    Value operand = op->getOperand(i);
    if (!isOurs(operand))
      continue;
    bool isScanned = i >= firstCarried + carried;
    int side = isScanned ? addVariable({operand}) : currentSide(operand);
    read(op, i, side);
  }
  for (auto [i, argument] : llvm::enumerate(body.getArguments())) {
    int side = currentSide(argument);
    if (i >= firstCarried + carried && i < op->getNumOperands())
      for (auto [index, chosen] : choices[op].wants)
        if (index == i)
          side = chosen;
    define(argument, side, repeats * trips);
  }
  visitBlock(body, repeats * trips);
  for (unsigned i = 0; i < op->getNumResults(); ++i) {
    Value yielded = end->getOperand(i + firstYielded), result = op->getResult(i);
    if (!isOurs(yielded) || !isOurs(result))
      continue;
    int side = i < carried ? currentSide(result) : addVariable({yielded});
    if (i >= carried)
      problem.rules.push_back({side, sideOf(yielded)});
    read(end, i + firstYielded, side);
    define(result, side, repeats);
  }
}

// --- Nodes ---

// Groups whose operands are all f32 or low. f64 and whatever else the author asked for is left alone.
Assignment::Groups Assignment::groupsOf(Node node) const {
  Groups groups;
  if (node.domain() == "recast") {
    OperandGroup all{"T", {}, /*isComputed=*/true, /*isResult=*/true, /*allowsLow=*/true, /*allowsF32=*/true};
    for (unsigned i = 0; i < node.numInputs(); ++i)
      if (node.input(i) && isFloatTensor(node.input(i)))
        all.operands.push_back(i);
    if (!all.operands.empty())
      groups.push_back(all);
  } else if (const onnx::OpSchema *schema = node.schema()) {
    groups = operandGroups(node, *schema, low);
  }
  llvm::erase_if(groups, [&](const OperandGroup &group) {
    return !llvm::all_of(group.operands, [&](unsigned i) { return isOurs(node.input(i)); });
  });
  return groups;
}

void Assignment::visitNode(Node node) {
  Choice choice;
  bool saturates = false;
  if (auto ruling = policy.find(node, low)) {
    choice.autocast = ruling->autocast;
    choice.rule = ruling->source;
    saturates = ruling->saturates;
    if (ruling->exceedsRange)
      choice.reason = (labelOf(low) + " cannot hold its range (" + ruling->source + ")").str();
  } else if (!isa<NodeGenericOp>(node.operation()) && node.domain().empty()) {
    choice.autocast = cast<NodeInterface>(node.operation()).facts().autocast;
  }
  bool isOpen = llvm::any_of(node->getOperandTypes(), [](Type type) { return isUnknown(type); });
  if (!choice.autocast || isOpen || (node.domain().empty() && !node.schema())) {
    choice.autocast.reset();
    return leave(node.operation());
  }
  Groups groups = groupsOf(node);
  decide(node, choice, groups, saturates);
  choices[node.operation()] = choice;
  for (const OperandGroup &group : groups) {
    // Never: comparisons read both operands in one type. What gives its type to a result keeps it.
    bool isNever = choice.autocast == AutocastClass::Never;
    bool isSide = !isNever && !group.isComputed;
    int side = choice.side;
    if (isSide)
      side = kOpen;
    for (unsigned i : group.operands) {
      int wanted = side;
      if (isSide || (isNever && group.isResult))
        wanted = choice.autocast == AutocastClass::Fp32 && group.allowsF32 ? kWide : currentSide(node.input(i));
      else if (isNever && group.operands.size() < 2)
        wanted = group.allowsLow ? kOpen : kWide;
      if (wanted != kOpen)
        read(node.operation(), i, wanted);
    }
  }
  defineResults(node, choice, groups);
}

void Assignment::decide(Node node, Choice &choice, const Groups &groups, bool saturates) {
  auto computed = [&](const OperandGroup &group) { return group.isComputed; };
  AutocastClass autocast = *choice.autocast;
  if (llvm::none_of(groups, computed))
    return;
  if (autocast == AutocastClass::Fp32) {
    if (llvm::all_of(groups, [&](const OperandGroup &group) { return !computed(group) || group.allowsF32; }))
      choice.side = kWide;
    return;
  }
  if (autocast == AutocastClass::Never &&
      llvm::none_of(groups, [](const OperandGroup &g) { return g.operands.size() > 1 && !g.isResult; }))
    return;
  if (llvm::any_of(groups, [&](const OperandGroup &group) { return computed(group) && !group.allowsLow; })) {
    choice.side = kWide;
    if (autocast == AutocastClass::Low) {
      ++refusals[node.opType()];
      choice.reason = ("opset " + Twine(node.opset()) + " does not define it for " + labelOf(low)).str();
    }
    return;
  }
  choice.reason = blockedBy(node, choice, groups, saturates);
  if (!choice.reason.empty())
    choice.side = kWide;
  else if (autocast == AutocastClass::Low)
    choice.side = kLow;
  else
    addFree(node, choice, groups);
}

// Either type. promote and comparisons take the widest type among their operands; neutral is free.
void Assignment::addFree(Node node, Choice &choice, const Groups &groups) {
  bool isNeutral = choice.autocast == AutocastClass::Neutral;
  SmallVector<Value, 2> decisive;
  SmallVector<int> required;
  for (const OperandGroup &group : groups)
    for (unsigned i : group.operands) {
      if (!group.isComputed || yields(node, i, *choice.autocast))
        continue;
      if (!isNeutral)
        required.push_back(sideOf(node.input(i)));
      if (!isNeutral || decisive.empty())
        decisive.push_back(node.input(i));
    }
  if (decisive.empty()) // nothing but numbers: either type, as they are where that costs the same
    for (const OperandGroup &group : groups)
      if (group.isComputed)
        decisive.push_back(node.input(group.operands.front()));
  choice.side = addVariable(decisive);
  for (int side : required)
    problem.rules.push_back({choice.side, side});
}

void Assignment::defineResults(Node node, const Choice &choice, const Groups &groups) {
  const onnx::OpSchema *schema = node.domain().empty() ? node.schema() : nullptr;
  int side = choice.side;
  for (auto [j, result] : llvm::enumerate(node->getResults())) {
    int own = currentSide(result);
    if (choice.autocast != AutocastClass::Never && side != kOpen) {
      if (!schema) {
        own = side;
      } else if (!schema->outputs().empty()) {
        std::string variable = schema->outputs()[std::min<size_t>(j, schema->outputs().size() - 1)].GetTypeStr();
        auto group = llvm::find_if(groups, [&](const OperandGroup &g) { return g.variable == variable; });
        if (group != groups.end() && group->isComputed)
          own = side;
      }
    }
    define(result, own, repeatsNow);
  }
}

// --- What keeps a node in f32 ---

std::string Assignment::blockedBy(Node node, const Choice &choice, const Groups &groups, bool saturates) {
  auto add = [&](Value tensor, const Twine &what) {
    blocked.push_back({node.operation(), tensor, what.str()});
    return ("'" + nameOf(tensor) + "' " + what).str();
  };
  auto beyond = [&](Value value) {
    const TensorRange &known = *policy.rangeOf(nameOf(value));
    return add(value, "reaches " + Twine(text(std::max(std::fabs(known.range.low), std::fabs(known.range.high)))) +
                          ", which " + labelOf(low) + " cannot hold (" + known.source + ")");
  };
  if (policy.hasRanges())
    for (Value result : node->getResults())
      if (const TensorRange *known = isOurs(result) ? policy.rangeOf(nameOf(result)) : nullptr;
          known && !known->range.fits(low))
        return beyond(result);
  for (const OperandGroup &group : groups)
    for (unsigned i : group.operands) {
      Value operand = node.input(i);
      if (!group.isComputed)
        continue;
      if (beyondLow.contains(rootOf(operand)))
        return beyond(rootOf(operand));
      // Comparisons must not change their outcome.
      if (auto number = isNumber(operand) ? scalarOf(operand) : std::nullopt;
          number && choice.autocast == AutocastClass::Never && !isExact(*number, low))
        return add(operand, "is " + Twine(text(*number)) + ", which " + labelOf(low) + " rounds, in a comparison");
      auto unfit = unfitNumber(operand, low);
      if (!unfit && isNumber(operand))
        if (Loss loss = lossOf(*scalarOf(operand), low); loss != Loss::None)
          unfit = UnfitNumber{*scalarOf(operand), loss};
      if (!unfit)
        continue;
      if (unfit->loss == Loss::Overflows && saturates && !mayTrain(operand)) {
        saturatedConstants.insert(operand);
        saturations.push_back(
            {node.operation(), operand,
             ("saturates: " + text(unfit->number) + " becomes the largest " + labelOf(low) + " (" + choice.rule + ")")
                 .str()});
        continue;
      }
      // A bias that is all small loses what it adds, as in PyTorch; a number on its own (an epsilon) is there for more.
      if (unfit->loss == Loss::Vanishes && isBias(node, i) && !isNumber(operand))
        continue;
      return add(operand,
                 "holds " + Twine(text(unfit->number)) + ", which " + describe(unfit->loss) + " in " + labelOf(low));
    }
  return {};
}

// True where an f32 operand does not make its node run in f32: numbers take the type of the tensor that they meet, as
// in PyTorch.
bool Assignment::yields(Node node, unsigned operand, AutocastClass autocast) const {
  return isNumber(node.input(operand)) || saturatedConstants.contains(node.input(operand)) || isBias(node, operand);
}

// The bias of a linear layer that was exported as MatMul and Add: an initializer or a graph input (the form that
// parameters have in a step model) of one dimension. PyTorch casts it with the weight, and the layer's result stays
// low; as an operand of an ordinary Add it would turn every such layer back to f32.
bool Assignment::isBias(Node node, unsigned operand) const {
  if (!node.is("Add"))
    return false;
  Value other = node.input(1 - operand), bias = node.input(operand);
  const Choice *product = other.getDefiningOp() ? find(other.getDefiningOp()) : nullptr;
  if (!product || product->autocast != AutocastClass::Low || product->side != kLow)
    return false;
  auto type = dyn_cast<RankedTensorType>(bias.getType());
  if (!type || !type.hasStaticShape() || llvm::count_if(type.getShape(), [](int64_t size) { return size != 1; }) > 1)
    return false;
  if (auto argument = dyn_cast<BlockArgument>(bias))
    return argument.getOwner()->getParentOp() == holder && type.getRank() == 1;
  return static_cast<bool>(constantOf(bias));
}

void Assignment::writeRemarks() {
  llvm::MapVector<Value, std::pair<const Blocked *, unsigned>> tensors;
  for (const Blocked &entry : blocked) {
    const Choice &choice = choices.find(entry.op)->second;
    // Without the tensor it would run low: by its class, or because its other operands are.
    bool decides = choice.autocast == AutocastClass::Low || llvm::any_of(entry.op->getOperands(), [&](Value operand) {
                     return operand != entry.tensor && isOurs(operand) && typeOf(sideOf(operand)) == low;
                   });
    if (decides)
      ++tensors.insert({entry.tensor, {&entry, 0}}).first->second.second;
  }
  llvm::DenseSet<Value> said;
  for (const Blocked &entry : saturations)
    if (typeOf(choices.find(entry.op)->second.side) == low && said.insert(entry.tensor).second)
      lines.push_back(("'" + nameOf(entry.tensor) + "' " + entry.text).str());
  for (auto &[tensor, found] : tensors) {
    auto [entry, count] = found;
    std::string others = count > 1 ? " and " + std::to_string(count - 1) + " more" : "";
    lines.push_back(("'" + nameOf(tensor) + "' " + entry->text + ": " + Node(entry->op).describe() + others +
                     (count > 1 ? " stay" : " stays") + " in f32")
                        .str());
  }
}

} // namespace recast::precision
