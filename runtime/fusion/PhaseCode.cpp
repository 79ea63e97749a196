#include "runtime/fusion/PhaseCode.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "runtime/fusion/Compute.h"
#include "runtime/fusion/MathFunctions.h"

using namespace mlir;
namespace recast::fusion {

Value PhaseCode::number(int64_t value) { return constantOf(b, b.getI64Type(), value); }
Value PhaseCode::add(Value x, Value y) { return arith::AddIOp::create(b, x, y); }
Value PhaseCode::mul(Value x, int64_t y) { return y == 1 ? x : arith::MulIOp::create(b, x, number(y)).getResult(); }

SmallVector<Value> PhaseCode::forLoop(Value begin, Value end, Value step, ValueRange init,
                                      function_ref<SmallVector<Value>(Value, ValueRange)> body) {
  auto loop = scf::ForOp::create(b, begin, end, step, init);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<Value> yielded = body(loop.getInductionVar(), loop.getRegionIterArgs());
  if (!init.empty()) {
    b.setInsertionPointToEnd(loop.getBody());
    scf::YieldOp::create(b, yielded);
  }
  return SmallVector<Value>(loop.getResults());
}

Value PhaseCode::address(Value base, DType type, Value offset) {
  return LLVM::GEPOp::create(b, base.getType(), memoryType(b.getContext(), type), base, ArrayRef<LLVM::GEPArg>{offset});
}

Value PhaseCode::loadScalar(DType type, Value base, Value offset) {
  Type memory = memoryType(b.getContext(), type);
  return fromMemory(b, type, LLVM::LoadOp::create(b, memory, address(base, type, offset)));
}

Value PhaseCode::slotBase(int slot) {
  auto offset = static_cast<int64_t>(program.slots[static_cast<size_t>(slot)].offset);
  return LLVM::GEPOp::create(b, workspace.getType(), b.getI8Type(), workspace, ArrayRef<LLVM::GEPArg>{number(offset)});
}

Value PhaseCode::partBase(int slot) {
  const SlotInfo &info = program.slots[static_cast<size_t>(slot)];
  return address(slotBase(slot), info.type, mul(range, info.elems));
}

void PhaseCode::enterRow(Value at, Value elems) {
  row = at;
  length = elems;
  offsets.clear();
  std::ranges::fill(rows, Value());
  for (const Node &node : phase.nodes)
    rowOffset(node.map);
  for (const Store &store : phase.stores)
    rowOffset(store.map);
  for (const Accumulation &accumulation : phase.accumulations)
    rowOffset(accumulation.kept);
}

Value PhaseCode::rowOffset(const Map &map) {
  auto known = offsets.find(&map);
  if (known != offsets.end())
    return known->second;
  Value offset = number(0);
  int64_t numRows = phase.rows();
  for (const Digit &digit : map) {
    int64_t div = digit.div, size = digit.size, stride = digit.stride;
    if (div < phase.inner) { // Goes on within the row.
      if (size <= phase.inner)
        continue;
      stride *= phase.inner;
      size = (size + phase.inner - 1) / phase.inner;
      div = phase.inner;
    }
    div /= phase.inner;
    Value term = row;
    if (div > 1)
      term = arith::DivUIOp::create(b, term, number(div));
    if (div * size < numRows)
      term = arith::RemUIOp::create(b, term, number(size));
    offset = add(offset, mul(term, stride));
  }
  return offsets[&map] = offset;
}

std::vector<int> PhaseCode::reductionsOf(int pass) const {
  std::vector<int> found;
  for (size_t i = 0; i < phase.nodes.size(); ++i)
    if (phase.nodes[i].kind == Node::Reduce && phase.nodes[i].pass == pass + 1)
      found.push_back(static_cast<int>(i));
  return found;
}

bool PhaseCode::sumsOf(int pass, SmallVector<std::pair<Op, DType>> &sums) const {
  for (int node : reductionsOf(pass))
    sums.push_back({phase.nodes[static_cast<size_t>(node)].op, typeOf(node)});
  if (pass + 1 < phase.passes)
    return !sums.empty();
  bool stores = llvm::any_of(phase.stores, [&](const Store &store) { return variesInRow(store.map); });
  bool hasWork = !sums.empty() || !phase.accumulations.empty() || stores;
  for (const Accumulation &accumulation : phase.accumulations)
    if (!variesInRow(accumulation.kept))
      sums.push_back({accumulation.op, program.slots[static_cast<size_t>(accumulation.slot)].type});
  return hasWork;
}

void PhaseCode::emitRowNodes(int pass, function_ref<Value(const Node &)> compute) {
  for (size_t i = 0; i < phase.nodes.size(); ++i) {
    const Node &node = phase.nodes[i];
    if (node.level == Level::Row && node.pass == pass && node.kind != Node::Reduce)
      rows[i] = compute(node);
  }
}

} // namespace recast::fusion
