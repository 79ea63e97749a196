#include "ir/train/Dialect.h"
#include "passes/Report.h"
#include "passes/checkpoint/ApplySchedule.h"
#include "passes/checkpoint/Budget.h"
#include "passes/checkpoint/Passes.h"
#include "passes/checkpoint/remat/Order.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast {
#define GEN_PASS_DEF_ORDERFORMEMORY
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

using namespace recast::checkpoint;

/// Writers before readers through operators that are no steps, and effects one after another.
remat::Precedences precedencesOf(const GraphProblem &graph) {
  llvm::DenseMap<Operation *, int> nodeOf;
  for (auto [i, op] : llvm::enumerate(graph.ops))
    nodeOf[op] = static_cast<int>(i);
  remat::Precedences result;
  llvm::DenseMap<Operation *, SmallVector<int>> sourcesOf; // Steps that an operator that is none comes from.
  auto addSources = [&](Operation *op, SmallVectorImpl<int> &sources) {
    forEachOperand(op, *graph.block, [&](OpOperand &operand) {
      Operation *producer = operand.get().getDefiningOp();
      if (!producer)
        return;
      if (auto node = nodeOf.find(producer); node != nodeOf.end())
        sources.push_back(node->second);
      else if (auto known = sourcesOf.find(producer); known != sourcesOf.end())
        llvm::append_range(sources, known->second);
    });
    llvm::sort(sources);
    sources.erase(llvm::unique(sources), sources.end());
  };
  int lastEffect = -1;
  for (Operation &op : *graph.block) {
    SmallVector<int> sources;
    addSources(&op, sources);
    auto node = nodeOf.find(&op);
    if (node == nodeOf.end()) {
      sourcesOf[&op] = sources;
      continue;
    }
    for (int source : sources)
      result.emplace_back(source, node->second);
    if (!hasEffects(&op))
      continue;
    if (lastEffect >= 0)
      result.emplace_back(lastEffect, node->second);
    lastEffect = node->second;
  }
  return result;
}

struct OrderForMemoryPass : impl::OrderForMemoryBase<OrderForMemoryPass> {
  using OrderForMemoryBase::OrderForMemoryBase;
  OrderForMemoryPass(const OrderForMemoryOptions &options, MeasureMemory measure)
      : OrderForMemoryBase(options), measure(std::move(measure)) {}

  void runOnOperation() override {
    ModuleOp module = getOperation();
    if (!isOptional) {
      if (failed(run(module)))
        signalPassFailure();
      return;
    }
    ScopedDiagnosticHandler quiet(module.getContext(), [](Diagnostic &) { return success(); });
    if (canPlan(module))
      (void)run(module);
  }

  /// Sizes are fixed, and planning takes little time.
  static bool canPlan(ModuleOp module) {
    constexpr int64_t kMostOperators = 10'000;
    int64_t count = 0;
    module.walk([&](Operation *) { ++count; });
    return count <= kMostOperators && llvm::all_of(mainGraph(module).getBody().getArgumentTypes(), [](Type type) {
             auto ranked = dyn_cast<RankedTensorType>(type);
             return ranked && ranked.hasStaticShape();
           });
  }

  LogicalResult run(ModuleOp module) {
    auto before = measureMemory(module, measure);
    if (failed(before))
      return failure();
    auto better = orderForMemory(module, *before, measure);
    if (failed(better))
      return failure();
    if (!better->module)
      return success();
    int64_t saved = before->arenaBytes - better->facts.arenaBytes;
    savedBytes += static_cast<unsigned>(saved);
    module.getBodyRegion().takeBody(better->module->getBodyRegion());
    addReport(module, "order-for-memory", llvm::json::Object{{"saved_bytes", saved}});
    mainGraph(module).emitRemark() << "order of operators: the arena is " << formatBytes(saved) << " smaller";
    return success();
  }

  MeasureMemory measure;
};

} // namespace

FailureOr<checkpoint::Measured> checkpoint::orderForMemory(ModuleOp module, const MemoryFacts &facts,
                                                           const MeasureMemory &measure) {
  Measured trial{cast<ModuleOp>(module->clone()), {}};
  NameScope names(mainGraph(*trial.module));
  bool isBetter = false;
  for (const TrainingBlock &block : stepBlocks(*trial.module)) {
    GraphProblem graph = buildProblem(block, facts);
    std::vector<int> order = remat::orderForMemory(graph.problem, precedencesOf(graph));
    isBetter |= !llvm::is_sorted(order);
    applyRuns(graph, order, names);
  }
  if (!isBetter)
    return Measured();
  auto measured = measureMemory(*trial.module, measure);
  if (failed(measured))
    return failure();
  trial.facts = std::move(*measured);
  return trial.facts.arenaBytes < facts.arenaBytes ? std::move(trial) : Measured();
}

std::unique_ptr<Pass> createOrderForMemory(const OrderForMemoryOptions &options, MeasureMemory measure) {
  return std::make_unique<OrderForMemoryPass>(options, std::move(measure));
}

} // namespace recast
