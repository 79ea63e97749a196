#include "runtime/fusion/Emit.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "runtime/fusion/Compute.h"
#include "runtime/fusion/MathFunctions.h"
#include "runtime/fusion/PhaseCode.h"
#include "runtime/fusion/RowSums.h"

using namespace mlir;
namespace recast::fusion {

namespace {

/// Vectors that a turn of a loop that sums takes: enough work between dependent operations.
constexpr int64_t kGroupSpans = 4;

class PhaseEmitter : PhaseCode {
public:
  PhaseEmitter(ImplicitLocOpBuilder &b, const Region &region, const Program &program, const Phase &phase,
               const EmitOptions &options)
      : PhaseCode(b, region, program, phase), options(options) {}
  void run(func::FuncOp function);

private:
  /// Where elements of a row are: vectors from `first` on, of which `mask` (null: all) are there.
  struct Span {
    Value first, mask;
    int64_t lanes;
    SmallVector<Value> known; ///< One a node.
  };

  void emitRow(Value row);
  void emitPass(int pass);
  void emitSpan(int pass, Value first, Value mask, bool isLast, RowSums::Terms &terms);
  void prefetch(int pass, Value first);
  void emitRowNodes(int pass) {
    PhaseCode::emitRowNodes(pass, [&](const Node &node) { return computeNode(node, nullptr); });
  }

  Value elementValue(int node, Span &span);
  Value computeNode(const Node &node, Span *span);
  Value combine(const Node &node, Value offset, Span *span);
  void storeElement(DType type, Value base, Value offset, Value x, const Span &span);

  Level levelOf(int node) const { return phase.nodes[static_cast<size_t>(node)].level; }
  Value knownOnce(int node) const {
    return levelOf(node) == Level::Scalar ? scalars[static_cast<size_t>(node)] : rows[static_cast<size_t>(node)];
  }
  void keepExpensive();
  void hideLength();

  Value operand(int index) { return operands[static_cast<size_t>(index)]; }
  Value splat(Value x, int64_t lanes) {
    return vector::BroadcastOp::create(b, VectorType::get({lanes}, x.getType()), x);
  }
  void forLoop(Value begin, Value end, int64_t step, ValueRange init,
               function_ref<SmallVector<Value>(Value, ValueRange)> body, SmallVector<Value> &results);

  const EmitOptions &options;
  Value hiddenLength; ///< Where the last vector of a row is not whole: the elements of a row, or of all rows.
  /// One a node: memory for a row of it, where passes after the first one that computes it read it again.
  std::vector<Value> kept;
  std::vector<bool> isComputed;  ///< One a node: its row is in that memory since an earlier pass.
  std::vector<bool> computedNow; ///< Since this pass.
};

void PhaseEmitter::forLoop(Value begin, Value end, int64_t step, ValueRange init,
                           function_ref<SmallVector<Value>(Value, ValueRange)> body, SmallVector<Value> &results) {
  results = PhaseCode::forLoop(begin, end, number(step), init, body);
}

void PhaseEmitter::run(func::FuncOp function) {
  Block *entry = function.addEntryBlock();
  b.setInsertionPointToStart(entry);
  Value buffers = entry->getArgument(0);
  workspace = entry->getArgument(1);
  Value begin = entry->getArgument(2), end = entry->getArgument(3);
  auto pointer = LLVM::LLVMPointerType::get(b.getContext());
  for (size_t k = 0; k < region.inputs.size() + region.outputs.size(); ++k) {
    Value at = LLVM::GEPOp::create(b, pointer, pointer, buffers, ArrayRef<LLVM::GEPArg>{static_cast<int32_t>(k)});
    operands.push_back(LLVM::LoadOp::create(b, pointer, at, 8));
  }
  keepExpensive();
  hideLength();
  row = number(0);
  for (size_t i = 0; i < phase.nodes.size(); ++i)
    if (phase.nodes[i].level == Level::Scalar)
      scalars[i] = computeNode(phase.nodes[i], nullptr);
  SmallVector<Value> none;
  forLoop(
      begin, end, 1, {},
      [&](Value at, ValueRange) {
        range = at;
        if (phase.accumulations.empty() && phase.rowsPerRange == 1) {
          emitRow(range);
          return SmallVector<Value>();
        }
        for (const Accumulation &accumulation : phase.accumulations) {
          const SlotInfo &slot = program.slots[static_cast<size_t>(accumulation.slot)];
          Value base = partBase(accumulation.slot), start = neutral(b, accumulation.op, slot.type, b.getI64Type());
          start = toMemory(b, slot.type, start);
          forLoop(
              number(0), number(slot.elems), 1, {},
              [&](Value i, ValueRange) {
                LLVM::StoreOp::create(b, start, address(base, slot.type, i));
                return SmallVector<Value>();
              },
              none);
        }
        Value first = mul(range, phase.rowsPerRange);
        Value last = arith::MinSIOp::create(b, add(first, number(phase.rowsPerRange)), number(phase.rows()));
        forLoop(
            first, last, 1, {},
            [&](Value at, ValueRange) {
              emitRow(at);
              return SmallVector<Value>();
            },
            none);
        return SmallVector<Value>();
      },
      none);
  b.setInsertionPointToEnd(&function.getBody().back());
  func::ReturnOp::create(b);
}

bool isExpensive(const Node &node) {
  if (node.kind != Node::Compute || node.type == DType::Bool)
    return false;
  switch (node.op) {
  case Op::Exp:
  case Op::Log:
  case Op::Tanh:
  case Op::Erf:
  case Op::Sin:
  case Op::Cos:
  case Op::Expm1:
  case Op::Log1p:
    return true;
  default:
    return false;
  }
}

/// What is expensive and read in several passes over the row is kept from the first to the others: on the stack, where
/// the row is short enough.
void PhaseEmitter::keepExpensive() {
  constexpr int64_t kMostBytes = 1 << 18;
  kept.assign(phase.nodes.size(), Value());
  isComputed.assign(phase.nodes.size(), false);
  std::vector<int> passesOf(phase.nodes.size());
  for (int pass = 0; pass < phase.passes; ++pass) {
    std::vector<bool> isRead(phase.nodes.size());
    for (int reduction : reductionsOf(pass))
      isRead[static_cast<size_t>(phase.nodes[static_cast<size_t>(reduction)].args[0])] = true;
    if (pass + 1 == phase.passes) {
      for (const Store &store : phase.stores)
        isRead[static_cast<size_t>(store.node)] = isRead[static_cast<size_t>(store.node)] || variesInRow(store.map);
      for (const Accumulation &accumulation : phase.accumulations)
        isRead[static_cast<size_t>(accumulation.node)] = true;
    }
    for (size_t i = phase.nodes.size(); i-- > 0;) {
      const Node &node = phase.nodes[i];
      if (!isRead[i] || node.level != Level::Element)
        continue;
      ++passesOf[i];
      for (int arg : node.args)
        isRead[static_cast<size_t>(arg)] = true;
    }
  }
  int64_t elems = (phase.inner + options.lanes - 1) / options.lanes * options.lanes, bytes = 0;
  for (size_t i = 0; i < phase.nodes.size(); ++i) {
    int64_t own = elems * static_cast<int64_t>(byteSize(phase.nodes[i].type) == 2 ? 4 : byteSize(phase.nodes[i].type));
    if (passesOf[i] < 2 || !isExpensive(phase.nodes[i]) || bytes + own > kMostBytes)
      continue;
    bytes += own;
    kept[i] = LLVM::AllocaOp::create(b, LLVM::LLVMPointerType::get(b.getContext()),
                                     computeType(b.getContext(), phase.nodes[i].type), number(elems), 64);
  }
}

/// Masks must not be constants: LLVM 22 makes a store of one 32-bit element of a masked store of 16-bit elements that
/// it narrows itself, where the mask is known to have one element. A volatile read is known to nobody.
void PhaseEmitter::hideLength() {
  bool isBlocked = phase.count % phase.inner != 0;
  Value at = LLVM::AllocaOp::create(b, LLVM::LLVMPointerType::get(b.getContext()), b.getI64Type(), number(1), 8);
  LLVM::StoreOp::create(b, number(isBlocked ? phase.count : phase.inner), at, 8, /*isVolatile=*/true);
  hiddenLength = LLVM::LoadOp::create(b, b.getI64Type(), at, 8, /*isVolatile=*/true);
}

void PhaseEmitter::emitRow(Value at) {
  Value elems = number(phase.inner);
  if (phase.count % phase.inner)
    elems = arith::MinSIOp::create(b, elems, arith::SubIOp::create(b, hiddenLength, mul(at, phase.inner)));
  else if (phase.inner % options.lanes)
    elems = hiddenLength;
  enterRow(at, elems);
  emitRowNodes(0);
  for (int pass = 0; pass < phase.passes; ++pass) {
    computedNow.assign(phase.nodes.size(), false);
    emitPass(pass);
    for (size_t i = 0; i < phase.nodes.size(); ++i)
      isComputed[i] = isComputed[i] || computedNow[i];
    emitRowNodes(pass + 1);
  }
  for (const Store &store : phase.stores)
    if (!variesInRow(store.map)) {
      DType type = typeOf(store.node);
      Value base = baseOf(store);
      LLVM::StoreOp::create(b, toMemory(b, type, knownOnce(store.node)), address(base, type, rowOffset(store.map)));
    }
}

void PhaseEmitter::emitPass(int pass) {
  bool isLast = pass + 1 == phase.passes;
  SmallVector<std::pair<Op, DType>> kinds;
  if (!sumsOf(pass, kinds))
    return;
  RowSums sums(b, kinds, options.lanes);
  int64_t lanes = options.lanes;
  Type index = VectorType::get({lanes}, b.getI32Type());
  SmallVector<int32_t> steps(static_cast<size_t>(lanes));
  for (size_t i = 0; i < steps.size(); ++i)
    steps[i] = static_cast<int32_t>(i);
  Value iota = arith::ConstantOp::create(b, DenseElementsAttr::get(cast<VectorType>(index), ArrayRef(steps)));
  auto maskFrom = [&](Value first) {
    Value left = arith::MinSIOp::create(b, arith::SubIOp::create(b, length, first), number(lanes));
    Value bound = splat(arith::TruncIOp::create(b, b.getI32Type(), left), lanes);
    return arith::CmpIOp::create(b, arith::CmpIPredicate::slt, iota, bound).getResult();
  };
  SmallVector<Value> carried = sums.start();
  Value begin = number(0);
  auto forSpans = [&](Value end, int64_t spans, bool isMasked) {
    forLoop(
        begin, end, spans * lanes, carried,
        [&](Value first, ValueRange in) {
          RowSums::Terms terms(sums.size());
          for (int64_t i = 0; i < spans; ++i) {
            Value own = i ? add(first, number(i * lanes)) : first;
            if (!isMasked)
              prefetch(pass, own);
            emitSpan(pass, own, isMasked ? maskFrom(own) : Value(), isLast, terms);
          }
          return sums.take(std::move(terms), in);
        },
        carried);
    begin = end;
  };
  auto wholeEnd = [&](int64_t step) {
    return phase.count % phase.inner || phase.inner % step ? arith::AndIOp::create(b, length, number(-step)).getResult()
                                                           : length;
  };
  if (sums.size() && phase.inner >= kGroupSpans * lanes)
    forSpans(wholeEnd(kGroupSpans * lanes), kGroupSpans, false);
  bool isWhole = phase.count % phase.inner == 0 && phase.inner % lanes == 0;
  if (isWhole || !options.isMasked)
    forSpans(wholeEnd(lanes), 1, false);
  if (!isWhole)
    forSpans(length, 1, true);
  SmallVector<Value> results = sums.totals(carried);
  size_t next = 0;
  for (int node : reductionsOf(pass))
    rows[static_cast<size_t>(node)] = results[next++];
  if (!isLast)
    return;
  for (const Accumulation &accumulation : phase.accumulations) {
    if (variesInRow(accumulation.kept))
      continue;
    auto [op, type] = kinds[next];
    Value total = results[next++];
    Value at = address(partBase(accumulation.slot), type, rowOffset(accumulation.kept));
    Value old = fromMemory(b, type, LLVM::LoadOp::create(b, memoryType(b.getContext(), type), at));
    LLVM::StoreOp::create(b, toMemory(b, type, accumulate(b, op, type, old, total)), at);
  }
}

/// Rows of several passes: while the second one computes, memory fetches what the first one reads of a later row.
void PhaseEmitter::prefetch(int pass, Value first) {
  constexpr int64_t kMostRowBytes = 1 << 18, kLeastAheadBytes = 1 << 11;
  if (pass != 1)
    return;
  for (const Node &node : phase.nodes) {
    bool isStreamed =
        node.kind == Node::Load && node.pass == 0 && variesInRow(node.map) && node.map == Map{{1, phase.count, 1}};
    int64_t bytes = phase.inner * static_cast<int64_t>(byteSize(node.type));
    if (!isStreamed || bytes > kMostRowBytes)
      continue;
    int64_t ahead = (kLeastAheadBytes + bytes - 1) / bytes * phase.inner;
    Value at = address(operand(node.index), node.type, add(add(rowOffset(node.map), first), number(ahead)));
    LLVM::Prefetch::create(b, at, /*rw=*/0, /*hint=*/3, /*cache=*/1);
  }
}

void PhaseEmitter::emitSpan(int pass, Value first, Value mask, bool isLast, RowSums::Terms &terms) {
  Span span{first, mask, options.lanes, SmallVector<Value>(phase.nodes.size())};
  size_t next = 0;
  auto give = [&](int node, Op op, DType type) {
    Value x = widenTo(b, typeOf(node), type, elementValue(node, span));
    if (mask)
      x = arith::SelectOp::create(b, mask, x, neutral(b, op, type, x.getType()));
    terms[next++].push_back(x);
  };
  for (int node : reductionsOf(pass))
    give(phase.nodes[static_cast<size_t>(node)].args[0], phase.nodes[static_cast<size_t>(node)].op, typeOf(node));
  if (!isLast)
    return;
  // Everything is read before anything is written: outputs may lie where inputs do.
  SmallVector<Value> stored;
  for (const Store &store : phase.stores)
    stored.push_back(variesInRow(store.map) ? elementValue(store.node, span) : Value());
  for (const Accumulation &accumulation : phase.accumulations) {
    DType type = program.slots[static_cast<size_t>(accumulation.slot)].type;
    if (!variesInRow(accumulation.kept)) {
      give(accumulation.node, accumulation.op, type);
      continue;
    }
    Value x = widenTo(b, typeOf(accumulation.node), type, elementValue(accumulation.node, span));
    Value at = address(partBase(accumulation.slot), type, add(rowOffset(accumulation.kept), first));
    Type memory = VectorType::get({span.lanes}, memoryType(b.getContext(), type));
    unsigned align = static_cast<unsigned>(byteSize(type));
    Value old = mask ? LLVM::MaskedLoadOp::create(b, memory, at, mask, neutral(b, Op::ReduceSum, type, memory), align)
                           .getResult()
                     : LLVM::LoadOp::create(b, memory, at, align).getResult();
    Value sum = accumulate(b, accumulation.op, type, old, x);
    if (mask)
      LLVM::MaskedStoreOp::create(b, sum, at, mask, align);
    else
      LLVM::StoreOp::create(b, sum, at, align);
  }
  for (auto [store, x] : llvm::zip(phase.stores, stored))
    if (x) {
      Value base = baseOf(store);
      storeElement(typeOf(store.node), base, add(rowOffset(store.map), first), x, span);
    }
}

Value PhaseEmitter::elementValue(int index, Span &span) {
  Value &known = span.known[static_cast<size_t>(index)];
  if (known)
    return known;
  if (levelOf(index) != Level::Element)
    return known = splat(knownOnce(index), span.lanes);
  auto i = static_cast<size_t>(index);
  Value memory = kept[i];
  Type element = computeType(b.getContext(), phase.nodes[i].type);
  if (memory)
    memory = LLVM::GEPOp::create(b, memory.getType(), element, memory, ArrayRef<LLVM::GEPArg>{span.first});
  if (memory && isComputed[i])
    return span.known[i] = LLVM::LoadOp::create(b, VectorType::get({span.lanes}, element), memory, 4);
  Value made = computeNode(phase.nodes[i], &span);
  if (memory) { // It has room for a whole last vector.
    LLVM::StoreOp::create(b, made, memory, 4);
    computedNow[i] = true;
  }
  return span.known[i] = made;
}

/// A node as a vector in a span, else as a scalar.
Value PhaseEmitter::computeNode(const Node &node, Span *span) {
  if (node.kind == Node::Combine)
    return combine(node, rowOffset(node.map), span);
  bool isLoad = node.kind == Node::Load || node.kind == Node::Slot;
  if (isLoad || node.op == Op::Counter) {
    Value offset = rowOffset(node.map);
    if (span)
      offset = add(offset, span->first);
    if (!isLoad && !span)
      return offset;
    if (!isLoad) {
      SmallVector<int64_t> steps = llvm::to_vector(llvm::seq<int64_t>(0, span->lanes));
      auto type = VectorType::get({span->lanes}, b.getI64Type());
      Value iota = arith::ConstantOp::create(b, DenseElementsAttr::get(type, ArrayRef(steps)));
      return add(splat(offset, span->lanes), iota);
    }
    Value base = node.kind == Node::Slot ? slotBase(node.index) : operand(node.index);
    if (!span)
      return loadScalar(node.type, base, offset);
    Type memory = VectorType::get({span->lanes}, memoryType(b.getContext(), node.type));
    Value at = address(base, node.type, offset);
    unsigned align = static_cast<unsigned>(byteSize(node.type));
    Value raw;
    if (span->mask) {
      Type element = getElementTypeOrSelf(memory);
      Value zero = isa<FloatType>(element) ? constantOf(b, memory, 0.0) : constantOf(b, memory, int64_t(0));
      raw = LLVM::MaskedLoadOp::create(b, memory, at, span->mask, zero, align);
    } else {
      raw = LLVM::LoadOp::create(b, memory, at, align);
    }
    return fromMemory(b, node.type, raw);
  }
  SmallVector<Value> args;
  SmallVector<DType> types;
  for (int arg : node.args) {
    args.push_back(span ? elementValue(arg, *span) : knownOnce(arg));
    types.push_back(typeOf(arg));
  }
  return compute(b, node, args, types);
}

Value PhaseEmitter::combine(const Node &node, Value offset, Span *span) {
  const SlotInfo &slot = program.slots[static_cast<size_t>(node.index)];
  Value base = slotBase(node.index);
  if (span)
    offset = add(offset, span->first);
  Type memory = memoryType(b.getContext(), slot.type);
  if (span)
    memory = VectorType::get({span->lanes}, memory);
  SmallVector<Value> result = {neutral(b, node.op, slot.type, memory)};
  unsigned align = static_cast<unsigned>(byteSize(slot.type));
  forLoop(
      number(0), number(slot.chunks), 1, result,
      [&](Value chunk, ValueRange sums) {
        Value at = address(base, slot.type, add(mul(chunk, slot.elems), offset));
        bool isPart = span && span->mask;
        Value part = isPart ? LLVM::MaskedLoadOp::create(b, memory, at, span->mask,
                                                         neutral(b, node.op, slot.type, memory), align)
                                  .getResult()
                            : LLVM::LoadOp::create(b, memory, at, align).getResult();
        return SmallVector<Value>({accumulate(b, node.op, slot.type, sums[0], fromMemory(b, slot.type, part))});
      },
      result);
  return result[0];
}

void PhaseEmitter::storeElement(DType type, Value base, Value offset, Value x, const Span &span) {
  Value at = address(base, type, offset), stored = toMemory(b, type, x);
  unsigned align = static_cast<unsigned>(byteSize(type));
  if (span.mask)
    LLVM::MaskedStoreOp::create(b, stored, at, span.mask, align);
  else
    LLVM::StoreOp::create(b, stored, at, align);
}

} // namespace

void emit(ModuleOp module, const std::string &name, const Region &region, const Program &program,
          const EmitOptions &options) {
  ImplicitLocOpBuilder b(UnknownLoc::get(module.getContext()), module.getContext());
  auto pointer = LLVM::LLVMPointerType::get(b.getContext());
  Type i64 = b.getI64Type();
  for (auto [index, phase] : llvm::enumerate(program.phases)) {
    b.setInsertionPointToEnd(module.getBody());
    auto function = func::FuncOp::create(b, name + "_" + std::to_string(index),
                                         b.getFunctionType({pointer, pointer, i64, i64}, {}));
    PhaseEmitter(b, region, program, phase, options).run(function);
  }
}

} // namespace recast::fusion
