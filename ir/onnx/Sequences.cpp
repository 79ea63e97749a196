#include "ir/onnx/Sequences.h"

using namespace mlir;
namespace recast::onnx_ir {

namespace {

constexpr int64_t kUnknown = INT64_MIN;

bool isSequenceOp(Node node) {
  static constexpr StringRef kNames[] = {"SequenceEmpty",  "SequenceConstruct",  "SplitToSequence",
                                         "SequenceInsert", "SequenceErase",      "SequenceAt",
                                         "SequenceLength", "ConcatFromSequence", "Identity"};
  return node.domain().empty() && llvm::is_contained(kNames, node.opType());
}

// The sizes that SplitToSequence cuts `axis` into; nothing where they depend on data.
std::optional<SmallVector<int64_t>> splitSizes(Node node, int64_t axis) {
  auto type = cast<RankedTensorType>(node.input(0).getType());
  std::optional<SmallVector<int64_t>> given;
  if (Value split = node.input(1)) {
    given = constantInts(split);
    if (!given)
      return std::nullopt;
    if (cast<RankedTensorType>(split.getType()).getRank() == 1)
      return given;
  }
  if (type.isDynamicDim(axis))
    return std::nullopt;
  // A scalar is the size of every part, of which the last may be smaller.
  int64_t whole = type.getDimSize(axis), part = given ? given->front() : 1;
  if (part < 1)
    return std::nullopt;
  SmallVector<int64_t> sizes;
  for (int64_t at = 0; at < whole; at += part)
    sizes.push_back(std::min(part, whole - at));
  return sizes;
}

} // namespace

const Sequences::Elements *Sequences::elementsOf(Value sequence) const {
  auto found = sequence ? elements.find(sequence) : elements.end();
  return found == elements.end() ? nullptr : &found->second;
}

// The index that an operand gives, counted from 0; `fallback` where the operand is left out, kUnknown where it is no
// constant. Negative ones count from `length`, `last` is the largest.
FailureOr<int64_t> Sequences::position(Node node, unsigned operand, int64_t length, int64_t last,
                                       int64_t fallback) const {
  Value index = node.input(operand);
  int64_t at = fallback;
  if (index) {
    auto given = constantInts(index);
    if (!given || given->size() != 1)
      return kUnknown;
    at = given->front();
  }
  if (at < -length || at > last)
    return node->emitError() << "node " << node.describe() << ": position " << at << " is outside of its sequence, "
                             << "which has " << last + 1 << " positions";
  return at < 0 ? at + length : at;
}

void Sequences::split(Node node) {
  auto type = dyn_cast<RankedTensorType>(node.input(0).getType());
  int64_t axis = node.getInt("axis", 0);
  if (!type || axis < -type.getRank() || axis >= type.getRank())
    return;
  axis += axis < 0 ? type.getRank() : 0;
  auto sizes = splitSizes(node, axis);
  if (!sizes)
    return;
  Elements &parts = elements[node.output()];
  if (sizes->size() == 1) {
    parts.push_back(node.input(0));
  } else if (!sizes->empty()) {
    SmallVector<Value> inputs{node.input(0)};
    SmallVector<NamedAttribute> attrs{b.attr("axis", axis)};
    if (b.opset() >= 13)
      inputs.push_back(b.ints(*sizes));
    else
      attrs.push_back(b.attr("split", ArrayRef<int64_t>(*sizes)));
    llvm::append_range(parts, b.node("Split", inputs, static_cast<unsigned>(sizes->size()), attrs)->getResults());
  }
  if (!node.input(1) && node.getInt("keepdims", 1) == 0)
    for (Value &part : parts)
      part = b.squeeze(part, {axis});
  if (sizes->size() > 1)
    fresh.insert(parts.begin(), parts.end());
}

Value Sequences::concat(Node node, const Elements &parts) {
  int64_t axis = node.getInt("axis", 0);
  SmallVector<Value> joined(parts);
  if (node.getInt("new_axis", 0)) {
    auto type = dyn_cast<RankedTensorType>(parts.front().getType());
    if (axis < 0 && !type)
      return nullptr;
    axis += axis < 0 ? type.getRank() + 1 : 0;
    for (Value &part : joined)
      part = b.unsqueeze(part, {axis});
  }
  return joined.size() == 1 ? joined.front() : b.concat(joined, axis);
}

// Gives the uses of `result` to `value`, and its name where `value` is new or a result of the graph must keep it.
void Sequences::replace(Value result, Value value) {
  if (llvm::any_of(result.getUsers(), [](Operation *user) { return isa<ReturnOp>(user); })) {
    value = b.node("Identity", {value});
    fresh.insert(value);
  }
  result.replaceAllUsesWith(value);
  if (fresh.erase(value))
    setName(value, nameOf(result));
}

LogicalResult Sequences::resolve(Operation *op) {
  Node node(op);
  if (!isNode(op) || !isSequenceOp(node))
    return success();
  b.before(op);
  b.setScope(node.name().empty() ? nameOf(op->getResult(0)) : node.name());
  const Elements *known = elementsOf(node.input(0));
  Value result = op->getResult(0);
  if (node.is("SequenceEmpty")) {
    elements[result];
  } else if (node.is("SequenceConstruct")) {
    elements[result].assign(op->operand_begin(), op->operand_end());
  } else if (node.is("SplitToSequence")) {
    split(node);
  } else if (!known) {
    return success();
  } else if (node.is("Identity")) {
    elements[result] = Elements(*known);
  } else if (node.is("SequenceLength")) {
    replace(result, b.intScalar(static_cast<int64_t>(known->size())));
  } else if (node.is("ConcatFromSequence")) {
    if (Value joined = known->empty() ? Value() : concat(node, *known))
      replace(result, joined);
  } else {
    bool inserts = node.is("SequenceInsert");
    int64_t length = static_cast<int64_t>(known->size());
    int64_t last = inserts ? length : length - 1;
    auto at = position(node, inserts ? 2 : 1, length, last, last);
    if (failed(at))
      return failure();
    if (*at == kUnknown)
      return success();
    if (node.is("SequenceAt")) {
      replace(result, (*known)[*at]);
    } else {
      Elements changed(*known);
      if (inserts)
        changed.insert(changed.begin() + *at, node.input(1));
      else
        changed.erase(changed.begin() + *at);
      elements[result] = std::move(changed);
    }
  }
  return success(!b.failed());
}

LogicalResult Sequences::resolveAll(Block &block) {
  SmallVector<Operation *> seen;
  for (Operation &op : llvm::make_early_inc_range(block)) {
    for (Region &body : op.getRegions())
      if (failed(resolveAll(body.front())))
        return failure();
    if (failed(resolve(&op)))
      return failure();
    if (isNode(&op) && isSequenceOp(Node(&op)))
      seen.push_back(&op);
  }
  for (Operation *op : llvm::reverse(seen))
    if (op->use_empty()) {
      b.inference().forget(op);
      forget(op);
      op->erase();
    }
  return success();
}

} // namespace recast::onnx_ir
