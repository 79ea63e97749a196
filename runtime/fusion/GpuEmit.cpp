#include "runtime/fusion/GpuEmit.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "runtime/fusion/Compute.h"
#include "runtime/fusion/MathFunctions.h"
#include "runtime/fusion/PhaseCode.h"
#include <set>

using namespace mlir;
namespace recast::fusion {

namespace {

constexpr int64_t kWarp = 32;
/// Rows of up to this many elements are a warp's, longer ones a block's.
constexpr int64_t kWarpRow = 1024;
/// More blocks than this fill no device better: they go over the rest in a loop.
constexpr int64_t kMostBlocks = 8192;

bool isElementwise(const Phase &phase) {
  return phase.passes == 1 && phase.accumulations.empty() &&
         std::ranges::none_of(phase.nodes, [](const Node &node) { return node.kind == Node::Reduce; });
}

/// Threads that share a row.
int64_t groupOf(const Phase &phase) { return phase.inner <= kWarpRow ? kWarp : kGpuThreads; }

/// What groups are given one after another: rows, or chunks of them with a part of each slot.
int64_t itemsOf(const Phase &phase) { return phase.accumulations.empty() ? phase.rows() : phase.ranges(); }

class PhaseKernel : PhaseCode {
public:
  PhaseKernel(ImplicitLocOpBuilder &b, const Region &region, const Program &program, const Phase &phase)
      : PhaseCode(b, region, program, phase) {}
  void run(func::FuncOp function);

private:
  /// One element of a row; what is known of it, one a node.
  struct Element {
    Value column;
    SmallVector<Value> known;
  };

  void emitScalars();
  void emitElements();
  void emitGroups();
  void emitRange(Value range);
  void emitRow(Value at);
  void beginRow(Value at);
  void emitPass(int pass);
  void emitRowNodes(int pass) {
    PhaseCode::emitRowNodes(pass, [&](const Node &node) { return computeNode(node, nullptr); });
  }
  SmallVector<Value> emitElement(int pass, Value column, ValueRange sums, bool isLast);
  void storeAll(Element &element, bool varying);

  Value valueOf(int node, Element *element);
  Value computeNode(const Node &node, Element *element);
  Value combine(const Node &node, Value offset);
  void addTo(const Accumulation &accumulation, Value offset, Value x);

  Value offsetOf(const Map &map, Element *element) {
    Value offset = rowOffset(map);
    return element && variesInRow(map) ? add(offset, element->column) : offset;
  }

  /// The reduction over the lanes of the group, which all of them get.
  Value reduceGroup(Op op, DType type, Value x);
  Value shuffleXor(Value x, int64_t lanes);
  void syncGroup() { call(group == kWarp ? gpu_names::kSyncWarp : gpu_names::kSyncThreads, {}, {}); }

  Value isLess(Value x, Value y) { return arith::CmpIOp::create(b, arith::CmpIPredicate::slt, x, y); }
  Value isZero(Value x) { return arith::CmpIOp::create(b, arith::CmpIPredicate::eq, x, number(0)); }
  void store(DType type, Value base, Value offset, Value x) {
    LLVM::StoreOp::create(b, toMemory(b, type, x), address(base, type, offset));
  }
  Value call(StringRef name, Type result, ValueRange args);
  Value index(StringRef name) {
    Value x = call(name, name == gpu_names::kThread ? b.getI32Type() : b.getI64Type(), {});
    return x.getType() == b.getI64Type() ? x : arith::ExtUIOp::create(b, b.getI64Type(), x).getResult();
  }
  void ifThen(Value condition, function_ref<void()> body);

  int64_t group = kWarp;
  Value thread, lane;
};

Value PhaseKernel::call(StringRef name, Type result, ValueRange args) {
  auto module = b.getInsertionBlock()->getParentOp()->getParentOfType<ModuleOp>();
  SmallVector<Type> results;
  if (result)
    results.push_back(result);
  if (!module.lookupSymbol(name)) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    func::FuncOp::create(b, name, b.getFunctionType(args.getTypes(), results)).setPrivate();
  }
  auto made = func::CallOp::create(b, name, results, args);
  return result ? made.getResult(0) : Value();
}

void PhaseKernel::ifThen(Value condition, function_ref<void()> body) {
  auto made = scf::IfOp::create(b, condition, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(made.thenBlock()->getTerminator());
  body();
}

void PhaseKernel::run(func::FuncOp function) {
  Block *entry = function.addEntryBlock();
  b.setInsertionPointToStart(entry);
  operands.assign(entry->args_begin(), std::prev(entry->args_end()));
  workspace = entry->getArguments().back();
  thread = index(gpu_names::kThread);
  row = number(0);
  if (isElementwise(phase)) {
    emitElements();
  } else {
    emitScalars();
    emitGroups();
  }
  b.setInsertionPointToEnd(&function.getBody().back());
  func::ReturnOp::create(b);
}

void PhaseKernel::emitScalars() {
  for (size_t i = 0; i < phase.nodes.size(); ++i)
    if (phase.nodes[i].level == Level::Scalar)
      scalars[i] = computeNode(phase.nodes[i], nullptr);
}

/// A thread an element.
void PhaseKernel::emitElements() {
  bool isSingle = phase.count == 1; // Then one thread reads and writes everything.
  if (!isSingle)
    emitScalars();
  Value first = add(mul(index(gpu_names::kBlock), kGpuThreads), thread);
  Value step = mul(index(gpu_names::kBlocks), kGpuThreads);
  forLoop(first, number(phase.count), step, {}, [&](Value element, ValueRange) {
    if (isSingle)
      emitScalars();
    bool isOneRow = phase.rows() == 1;
    beginRow(isOneRow ? number(0) : arith::DivUIOp::create(b, element, number(phase.inner)).getResult());
    Element at{isOneRow ? element : arith::RemUIOp::create(b, element, number(phase.inner)).getResult(),
               SmallVector<Value>(phase.nodes.size())};
    emitRowNodes(0);
    storeAll(at, /*varying=*/true);
    bool hasRowStores = llvm::any_of(phase.stores, [&](const Store &store) { return !variesInRow(store.map); });
    if (hasRowStores)
      ifThen(isZero(at.column), [&] { storeAll(at, /*varying=*/false); });
    return SmallVector<Value>();
  });
}

/// A group of threads a row, or a chunk of rows.
void PhaseKernel::emitGroups() {
  group = groupOf(phase);
  int64_t groups = kGpuThreads / group;
  Value first = mul(index(gpu_names::kBlock), groups);
  lane = thread;
  if (groups > 1) {
    first = add(first, arith::DivUIOp::create(b, thread, number(group)));
    lane = arith::RemUIOp::create(b, thread, number(group));
  }
  Value step = mul(index(gpu_names::kBlocks), groups);
  forLoop(first, number(itemsOf(phase)), step, {}, [&](Value item, ValueRange) {
    if (phase.accumulations.empty())
      emitRow(item);
    else
      emitRange(item);
    return SmallVector<Value>();
  });
}

void PhaseKernel::emitRange(Value at) {
  range = at;
  for (const Accumulation &accumulation : phase.accumulations) {
    const SlotInfo &slot = program.slots[static_cast<size_t>(accumulation.slot)];
    Value base = partBase(accumulation.slot), start = neutral(b, accumulation.op, slot.type, b.getI64Type());
    forLoop(lane, number(slot.elems), number(group), {}, [&](Value i, ValueRange) {
      store(slot.type, base, i, start);
      return SmallVector<Value>();
    });
  }
  syncGroup(); // Other lanes add to what this one has written.
  Value first = mul(range, phase.rowsPerRange);
  Value last = arith::MinSIOp::create(b, add(first, number(phase.rowsPerRange)), number(phase.rows()));
  forLoop(first, last, number(1), {}, [&](Value item, ValueRange) {
    emitRow(item);
    return SmallVector<Value>();
  });
}

void PhaseKernel::beginRow(Value at) {
  Value elems = number(phase.inner);
  if (phase.count % phase.inner)
    elems = arith::MinSIOp::create(b, elems, arith::SubIOp::create(b, number(phase.count), mul(at, phase.inner)));
  enterRow(at, elems);
}

void PhaseKernel::emitRow(Value at) {
  beginRow(at);
  emitRowNodes(0);
  for (int pass = 0; pass < phase.passes; ++pass) {
    emitPass(pass);
    emitRowNodes(pass + 1);
  }
  if (llvm::any_of(phase.stores, [&](const Store &store) { return !variesInRow(store.map); })) {
    // What other lanes still read may lie where this one writes.
    syncGroup();
    ifThen(isZero(lane), [&] {
      Element none{number(0), SmallVector<Value>(phase.nodes.size())};
      storeAll(none, /*varying=*/false);
    });
  }
}

void PhaseKernel::emitPass(int pass) {
  bool isLast = pass + 1 == phase.passes;
  std::vector<int> reductions = reductionsOf(pass);
  SmallVector<std::pair<Op, DType>> sums;
  if (!sumsOf(pass, sums))
    return;
  SmallVector<Value> carried;
  for (auto [op, type] : sums)
    carried.push_back(neutral(b, op, type, b.getI64Type()));
  carried = forLoop(lane, length, number(group), carried,
                    [&](Value column, ValueRange in) { return emitElement(pass, column, in, isLast); });
  size_t next = 0;
  for (int node : reductions) {
    rows[static_cast<size_t>(node)] = reduceGroup(sums[next].first, sums[next].second, carried[next]);
    ++next;
  }
  if (!isLast)
    return;
  for (const Accumulation &accumulation : phase.accumulations) {
    if (variesInRow(accumulation.kept))
      continue;
    auto [op, type] = sums[next];
    Value total = reduceGroup(op, type, carried[next++]);
    ifThen(isZero(lane), [&] { addTo(accumulation, rowOffset(accumulation.kept), total); });
  }
}

/// Adds to an element of the range's part, which is this lane's alone.
void PhaseKernel::addTo(const Accumulation &accumulation, Value offset, Value x) {
  DType type = program.slots[static_cast<size_t>(accumulation.slot)].type;
  Value base = partBase(accumulation.slot);
  store(type, base, offset, accumulate(b, accumulation.op, type, loadScalar(type, base, offset), x));
}

SmallVector<Value> PhaseKernel::emitElement(int pass, Value column, ValueRange sums, bool isLast) {
  Element element{column, SmallVector<Value>(phase.nodes.size())};
  SmallVector<Value> results;
  auto take = [&](int node, Op op, DType type) {
    Value x = widenTo(b, typeOf(node), type, valueOf(node, &element));
    results.push_back(accumulate(b, op, type, sums[results.size()], x));
  };
  for (int node : reductionsOf(pass))
    take(phase.nodes[static_cast<size_t>(node)].args[0], phase.nodes[static_cast<size_t>(node)].op, typeOf(node));
  if (!isLast)
    return results;
  for (const Accumulation &accumulation : phase.accumulations) {
    DType type = program.slots[static_cast<size_t>(accumulation.slot)].type;
    if (!variesInRow(accumulation.kept))
      take(accumulation.node, accumulation.op, type);
    else
      addTo(accumulation, add(rowOffset(accumulation.kept), column),
            widenTo(b, typeOf(accumulation.node), type, valueOf(accumulation.node, &element)));
  }
  storeAll(element, /*varying=*/true);
  return results;
}

/// Everything is read before anything is written: outputs may lie where inputs do.
void PhaseKernel::storeAll(Element &element, bool varying) {
  SmallVector<Value> values;
  for (const Store &store : phase.stores)
    values.push_back(variesInRow(store.map) == varying ? valueOf(store.node, &element) : Value());
  for (auto [to, x] : llvm::zip(phase.stores, values))
    if (x) {
      store(typeOf(to.node), baseOf(to), offsetOf(to.map, &element), x);
    }
}

Value PhaseKernel::valueOf(int index, Element *element) {
  auto i = static_cast<size_t>(index);
  switch (phase.nodes[i].level) {
  case Level::Scalar:
    return scalars[i];
  case Level::Row:
    return rows[i];
  case Level::Element:
    break;
  }
  if (Value known = element->known[i])
    return known;
  Value made = computeNode(phase.nodes[i], element);
  return element->known[i] = made;
}

Value PhaseKernel::computeNode(const Node &node, Element *element) {
  if (node.kind == Node::Combine)
    return combine(node, offsetOf(node.map, element));
  if (node.kind == Node::Load)
    return loadScalar(node.type, operands[static_cast<size_t>(node.index)], offsetOf(node.map, element));
  if (node.kind == Node::Slot)
    return loadScalar(node.type, slotBase(node.index), offsetOf(node.map, element));
  if (node.op == Op::Counter)
    return offsetOf(node.map, element);
  SmallVector<Value> args;
  SmallVector<DType> types;
  for (int arg : node.args) {
    args.push_back(valueOf(arg, element));
    types.push_back(typeOf(arg));
  }
  return compute(b, node, args, types);
}

Value PhaseKernel::combine(const Node &node, Value offset) {
  const SlotInfo &slot = program.slots[static_cast<size_t>(node.index)];
  Value base = slotBase(node.index), start = neutral(b, node.op, slot.type, b.getI64Type());
  return forLoop(number(0), number(slot.chunks), number(1), start, [&](Value chunk, ValueRange sums) {
    Value part = loadScalar(slot.type, base, add(mul(chunk, slot.elems), offset));
    return SmallVector<Value>({accumulate(b, node.op, slot.type, sums[0], part)});
  })[0];
}

Value PhaseKernel::shuffleXor(Value x, int64_t lanes) {
  Type type = x.getType(), i32 = b.getI32Type(), i64 = b.getI64Type();
  unsigned width = type.getIntOrFloatBitWidth();
  Value bits = isa<FloatType>(type) ? arith::BitcastOp::create(b, b.getIntegerType(width), x).getResult() : x;
  Value distance = constantOf(b, i32, lanes);
  auto move = [&](Value word) { return call(gpu_names::kShuffleXor, i32, {word, distance}); };
  if (width < 32) {
    Value moved = move(arith::ExtUIOp::create(b, i32, bits));
    bits = arith::TruncIOp::create(b, bits.getType(), moved);
  } else if (width == 32) {
    bits = move(bits);
  } else {
    Value shift = constantOf(b, i64, int64_t(32));
    Value low = move(arith::TruncIOp::create(b, i32, bits));
    Value high = move(arith::TruncIOp::create(b, i32, arith::ShRUIOp::create(b, bits, shift)));
    Value wideHigh = arith::ShLIOp::create(b, arith::ExtUIOp::create(b, i64, high), shift);
    bits = arith::OrIOp::create(b, arith::ExtUIOp::create(b, i64, low), wideHigh);
  }
  return isa<FloatType>(type) ? arith::BitcastOp::create(b, type, bits).getResult() : bits;
}

Value PhaseKernel::reduceGroup(Op op, DType type, Value x) {
  // Lanes add the same pairs, in either order: all have the same bits.
  for (int64_t lanes = kWarp / 2; lanes; lanes /= 2)
    x = accumulate(b, op, type, x, shuffleXor(x, lanes));
  if (group == kWarp)
    return x;
  Value shared = call(gpu_names::kShared, LLVM::LLVMPointerType::get(b.getContext()), {});
  Type word = memoryType(b.getContext(), type);
  auto place = [&](Value warp) {
    return LLVM::GEPOp::create(b, shared.getType(), b.getI64Type(), shared, ArrayRef<LLVM::GEPArg>{warp}).getResult();
  };
  Value warp = arith::DivUIOp::create(b, thread, number(kWarp));
  Value isFirst = isZero(arith::RemUIOp::create(b, thread, number(kWarp)));
  ifThen(isFirst, [&] { LLVM::StoreOp::create(b, toMemory(b, type, x), place(warp)); });
  syncGroup();
  Value total;
  for (int64_t i = 0; i < group / kWarp; ++i) {
    Value part = fromMemory(b, type, LLVM::LoadOp::create(b, word, place(number(i))));
    total = total ? accumulate(b, op, type, total, part) : part;
  }
  syncGroup(); // The next reduction writes there.
  return total;
}

} // namespace

std::vector<GpuLaunch> gpuLaunches(const std::string &name, const Region &region, const Program &program) {
  std::vector<GpuLaunch> launches;
  for (const Phase &phase : program.phases) {
    int64_t items = isElementwise(phase) ? phase.count : itemsOf(phase) * groupOf(phase);
    int64_t blocks = std::clamp<int64_t>((items + kGpuThreads - 1) / kGpuThreads, 1, kMostBlocks);
    std::set<int64_t> operands;
    for (const Node &node : phase.nodes)
      if (node.kind == Node::Load)
        operands.insert(node.index);
    for (const Store &store : phase.stores)
      if (!store.isSlot)
        operands.insert(static_cast<int64_t>(region.inputs.size()) + store.index);
    launches.push_back({name + "_" + std::to_string(launches.size()), blocks, kGpuThreads,
                        std::vector<int64_t>(operands.begin(), operands.end())});
  }
  return launches;
}

std::vector<InPlace> gpuInPlace(const Region &region, const Program &program) {
  std::vector<InPlace> pairs = inPlaceOf(program, region.inputs.size(), region.outputs.size());
  std::erase_if(pairs, [&](InPlace pair) {
    for (const Phase &phase : program.phases) {
      bool stores = llvm::any_of(phase.stores, [&](const Store &store) {
        return !store.isSlot && static_cast<size_t>(store.index) == pair.output;
      });
      // What many threads read, one of them must not write over: other groups know nothing of it.
      for (const Node &node : phase.nodes)
        if (stores && node.kind == Node::Load && static_cast<size_t>(node.index) == pair.input &&
            (node.level == Level::Scalar ? phase.count > 1 : node.level == Level::Row && isElementwise(phase)))
          return true;
    }
    return false;
  });
  return pairs;
}

void emitGpu(ModuleOp module, const std::string &name, const Region &region, const Program &program) {
  ImplicitLocOpBuilder b(UnknownLoc::get(module.getContext()), module.getContext());
  SmallVector<Type> pointers(region.inputs.size() + region.outputs.size() + 1,
                             LLVM::LLVMPointerType::get(b.getContext()));
  for (auto [index, phase] : llvm::enumerate(program.phases)) {
    b.setInsertionPointToEnd(module.getBody());
    auto function = func::FuncOp::create(b, name + "_" + std::to_string(index), b.getFunctionType(pointers, {}));
    PhaseKernel(b, region, program, phase).run(function);
  }
}

} // namespace recast::fusion
