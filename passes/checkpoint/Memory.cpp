// The passes' own figure, where no runtime gives one.
#include "passes/checkpoint/Memory.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"
#include "passes/checkpoint/BuildProblem.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::checkpoint {

namespace {

/// Constants, and what is computed from constants and from static shapes: no step of a plan.
class KnownValues {
public:
  bool contains(Operation *op) {
    auto [at, isNew] = known.try_emplace(op, false);
    if (isNew) {
      bool isKnown = find(op); // May move `at`.
      return known[op] = isKnown;
    }
    return at->second;
  }

private:
  bool find(Operation *op) {
    if (!isNode(op))
      return isa<InitializerOp, AbsentOp>(op);
    if (isa<ConstantOp>(op))
      return true;
    if (isa<ShapeOp, SizeOp>(op))
      if (auto type = dyn_cast<RankedTensorType>(op->getOperand(0).getType()); type && type.hasStaticShape())
        return true;
    if (op->getNumRegions() || isa<NodeGenericOp>(op) || cast<NodeInterface>(op).facts().effects)
      return false;
    return op->getNumOperands() && llvm::all_of(op->getOperands(), [&](Value operand) {
             Operation *producer = operand.getDefiningOp();
             return producer && producer->getBlock() == op->getBlock() && contains(producer);
           });
  }

  llvm::DenseMap<Operation *, bool> known;
};

/// The error says how to fix the size.
LogicalResult needsSize(Value value, const Twine &where, InFlightDiagnostic error) {
  auto type = dyn_cast<RankedTensorType>(value.getType());
  StringRef symbol = "NAME";
  for (unsigned i = 0; type && i < type.getRank(); ++i)
    if (type.isDynamicDim(i) && !dimSymbol(type, i).empty())
      symbol = dimSymbol(type, i);
  return error << where << "the size of '" << nameOf(value) << "' is not known, which planning memory needs; give "
               << "symbolic dimensions a size with --dim=" << symbol << "=N";
}

bool isStatic(Type type) {
  auto ranked = dyn_cast<RankedTensorType>(type);
  return ranked && ranked.hasStaticShape();
}

FailureOr<int64_t> bytesOf(OpResult value) {
  if (!isStatic(value.getType()))
    return needsSize(value, "node " + Node(value.getOwner()).describe() + ": ", value.getOwner()->emitError());
  auto type = cast<RankedTensorType>(value.getType());
  return type.getNumElements() * storageBits(type.getElementType()) / 8;
}

} // namespace

FailureOr<MemoryFacts> measureMemory(ModuleOp module, const MeasureMemory &measure) {
  GraphOp graph = mainGraph(module);
  for (BlockArgument input : graph.getBody().getArguments())
    if (isa<TensorType>(input.getType()) && !isStatic(input.getType()))
      return needsSize(input, "", graph.emitError());
  if (measure)
    return measure(module);
  MemoryFacts facts;
  for (const TrainingBlock &training : stepBlocks(module)) {
    KnownValues known;
    for (Operation &op : *training.block) {
      if (!isNode(&op) || isView(&op) || known.contains(&op))
        continue;
      facts.steps[originOf(&op)];
      for (OpResult result : op.getResults()) {
        if (isAbsent(result) || isa<train::OffloadOp>(op)) // The host has it.
          continue;
        FailureOr<int64_t> bytes = bytesOf(result);
        if (failed(bytes))
          return failure();
        facts.tensors[nameOf(result)] = *bytes;
      }
    }
    remat::Problem problem = buildProblem(training, facts).problem;
    facts.arenaBytes = remat::usage(problem, remat::plainSchedule(problem)).peakBytes;
    // A body's arena is workspace of the operator that runs it.
    if (Operation *parent = training.block->getParentOp(); !isa<GraphOp>(parent))
      facts.steps[originOf(parent)].workspaceBytes = facts.arenaBytes;
  }
  return facts;
}

} // namespace recast::checkpoint
