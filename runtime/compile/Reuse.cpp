#include "runtime/compile/Reuse.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

Reuse::Reuse(Unit &unit, Block &block, bool inPlace) : unit(unit), block(block) {
  bool isGraph = isa<GraphOp>(block.getParentOp());
  int at = 0;
  for (Operation &op : block) {
    order[&op] = at;
    op.walk([&](Operation *inner) {
      if (auto prepared = unit.prepared.find(inner); isGraph && prepared != unit.prepared.end())
        lastFailing = prepared->second.mayFail ? at : lastFailing;
      if (sharesOperand(unit, inner))
        return;
      for (Value operand : inner->getOperands()) {
        Value source = sourceOf(unit, operand);
        if (source.getParentBlock() != &block)
          continue;
        lastRead[source] = at;
        if (inner != &op)
          captures.insert({&op, source});
      }
    });
    ++at;
  }
  if (!inPlace)
    return;
  for (auto [output, state] : carriedStates(unit, block))
    for (Value value = sourceOf(unit, output->get()); value && fits(value, state); value = takenOver(value, state))
      places[value] = state;
}

bool Reuse::isLastRead(Value value, Operation *op) const {
  auto read = lastRead.find(sourceOf(unit, value));
  return read != lastRead.end() && read->second == order.lookup(op);
}

bool Reuse::allows(OpResult result, Value value) const {
  Operation *op = result.getOwner();
  Value source = sourceOf(unit, value);
  if (captures.contains({op, source}))
    return false;
  const std::vector<InPlace> &pairs = unit.prepared.at(op).inPlace;
  bool any = false;
  for (auto [i, operand] : llvm::enumerate(op->getOperands())) {
    if (sourceOf(unit, operand) != source)
      continue;
    any = true;
    if (llvm::none_of(pairs,
                      [&, i = i](InPlace pair) { return pair.output == result.getResultNumber() && pair.input == i; }))
      return false;
  }
  return any;
}

/// True where a value can be computed in the memory of a state: nothing reads the old state afterwards, and nothing can
/// fail from then on.
bool Reuse::fits(Value value, BlockArgument state) const {
  Operation *op = value.getDefiningOp();
  if (!op || op->getBlock() != &block || !unit.prepared.contains(op) || places.contains(value) ||
      bytesOf(value) != bytesOf(state))
    return false;
  int at = order.lookup(op);
  auto read = lastRead.find(state);
  if (at <= lastFailing || (read != lastRead.end() && read->second > at))
    return false;
  return read == lastRead.end() || read->second < at || allows(cast<OpResult>(value), state);
}

/// An operand whose memory the operation of `value` could take over, and which could lie in the state's memory as well:
/// then the state's memory serves for the whole chain.
Value Reuse::takenOver(Value value, BlockArgument state) const {
  Operation *op = value.getDefiningOp();
  for (Value operand : op->getOperands()) {
    Value source = sourceOf(unit, operand);
    if (!isAbsent(source) && isLastRead(source, op) && allows(cast<OpResult>(value), source) && fits(source, state))
      return source;
  }
  return nullptr;
}

size_t Reuse::bytesOf(Value value) const {
  TensorType type;
  return unit.values.typeOf(value, type).empty() ? type.bytes() : 0;
}

} // namespace recast::compile
