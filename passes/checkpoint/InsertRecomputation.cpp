#include "passes/checkpoint/InsertRecomputation.h"
#include "passes/Passes.h"
#include "passes/Report.h"
#include "passes/checkpoint/ApplySchedule.h"
#include "passes/checkpoint/Budget.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/Support/FormatVariadic.h"

namespace recast {
#define GEN_PASS_DEF_INSERTRECOMPUTATION
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

using namespace recast::checkpoint;
using remat::Schedule;
using remat::Usage;

/// A schedule, and what the graph is with it.
struct Trial {
  OwningOpRef<ModuleOp> module;
  Usage usage;
  int64_t arenaBytes = 0;
};

class Recomputation {
public:
  Recomputation(ModuleOp module, const MeasureMemory &measure) : module(module), measure(measure) {}

  LogicalResult run(const Policy &policy, const Budget &budget);
  unsigned numRepeated = 0;

private:
  LogicalResult analyse();
  FailureOr<int64_t> arenaOf(ModuleOp module);
  FailureOr<Trial> tryOut(const Schedule &schedule);
  FailureOr<Schedule> choose(const Policy &policy);
  FailureOr<std::vector<char>> marked(ArrayRef<std::string> globs);
  void take(Trial trial, const Schedule &schedule, StringRef what);

  ModuleOp module;
  const MeasureMemory &measure;
  std::optional<MemoryFacts> facts;
  GraphProblem graph;
  Usage before;
  int64_t arenaBefore = 0;
};

LogicalResult Recomputation::analyse() {
  if (measure) {
    FailureOr<MemoryFacts> measured = measure(module);
    if (failed(measured))
      return failure();
    facts = std::move(*measured);
  }
  auto training = findTrainingBlock(module);
  if (failed(training))
    return failure();
  auto built = buildProblem(*training, facts ? &*facts : nullptr);
  if (failed(built))
    return failure();
  graph = std::move(*built);
  before = remat::usage(graph.problem, remat::plainSchedule(graph.problem));
  arenaBefore = facts ? facts->arenaBytes : before.peakBytes;
  return success();
}

FailureOr<Trial> Recomputation::tryOut(const Schedule &schedule) {
  assert(remat::check(graph.problem, schedule).empty());
  Trial trial;
  trial.usage = remat::usage(graph.problem, schedule);
  trial.module = cast<ModuleOp>(module->clone());
  auto training = findTrainingBlock(*trial.module);
  auto copy = buildProblem(*training, facts ? &*facts : nullptr);
  if (failed(copy))
    return failure();
  NameScope names(mainGraph(*trial.module));
  applyRuns(*copy, schedule.runs, names);
  trial.arenaBytes = trial.usage.peakBytes;
  if (measure) {
    FailureOr<MemoryFacts> measured = measure(*trial.module);
    if (failed(measured))
      return failure();
    trial.arenaBytes = measured->arenaBytes;
  }
  return std::move(trial);
}

/// Nodes whose name, or the name of one of whose results, a glob matches.
FailureOr<std::vector<char>> Recomputation::marked(ArrayRef<std::string> globs) {
  std::vector<char> isMarked(graph.ops.size(), 0);
  for (StringRef glob : globs) {
    bool any = false;
    for (auto [i, op] : llvm::enumerate(graph.ops)) {
      bool matches = graph.roles.isForward[i] &&
                     (gradient::matchesGlob(glob, Node(op).name()) || llvm::any_of(op->getResults(), [&](Value result) {
                        return gradient::matchesGlob(glob, nameOf(result));
                      }));
      isMarked[i] |= matches;
      any |= matches;
    }
    if (!any)
      return mainGraph(module).emitError()
             << "--checkpoint=" << glob << " matches no operator and no value that the loss is computed from";
  }
  return isMarked;
}

FailureOr<Schedule> Recomputation::choose(const Policy &policy) {
  switch (policy.kind) {
  case Policy::Kind::EveryN:
    return remat::everyN(graph.problem, graph.roles, policy.count);
  case Policy::Kind::Sqrt:
    return remat::sqrtSegments(graph.problem, graph.roles);
  case Policy::Kind::Selective:
    return remat::selective(graph.problem, graph.roles);
  case Policy::Kind::Names: {
    auto isMarked = marked(policy.globs);
    if (failed(isMarked))
      return failure();
    return remat::keepOnly(graph.problem, graph.roles, *isMarked);
  }
  case Policy::Kind::Auto:
  case Policy::Kind::None:
    break;
  }
  return remat::plainSchedule(graph.problem);
}

/// The trial becomes the module.
void Recomputation::take(Trial trial, const Schedule &schedule, StringRef what) {
  double moreWork = 100.0 * static_cast<double>(trial.usage.cost - before.cost) / static_cast<double>(before.cost);
  llvm::json::Array repeated;
  std::vector<int> runs(graph.ops.size(), 0);
  for (int run : schedule.runs)
    ++runs[run];
  for (auto [i, op] : llvm::enumerate(graph.ops))
    if (runs[i] > 1)
      repeated.push_back(llvm::json::Object{{"operator", originOf(op)}, {"runs", runs[i]}});
  numRepeated = schedule.runs.size() - graph.ops.size();
  mainGraph(module).emitRemark() << llvm::formatv("recomputation ({0}): the arena goes from {1} to {2} ({3:f1} %), {4} "
                                                  "operators run again, {5:f1} % more work",
                                                  what, formatBytes(arenaBefore), formatBytes(trial.arenaBytes),
                                                  100.0 * static_cast<double>(trial.arenaBytes) /
                                                      static_cast<double>(arenaBefore),
                                                  numRepeated, moreWork)
                                        .str();
  llvm::json::Object report{{"policy", what},
                            {"arena_bytes_before", arenaBefore},
                            {"arena_bytes", trial.arenaBytes},
                            {"more_work_percent", moreWork},
                            {"repeated", std::move(repeated)}};
  graph = GraphProblem();
  module.getBodyRegion().takeBody(trial.module->getBodyRegion());
  addReport(module, "insert-recomputation", std::move(report));
}

LogicalResult Recomputation::run(const Policy &policy, const Budget &budget) {
  if (failed(analyse()))
    return failure();
  FailureOr<Schedule> schedule = choose(policy);
  if (failed(schedule))
    return failure();
  FailureOr<Trial> trial = tryOut(*schedule);
  if (failed(trial))
    return failure();
  take(std::move(*trial), *schedule, "policy");
  return success();
}

struct InsertRecomputationPass : impl::InsertRecomputationBase<InsertRecomputationPass> {
  using InsertRecomputationBase::InsertRecomputationBase;
  InsertRecomputationPass(const InsertRecomputationOptions &options, MeasureMemory measure)
      : InsertRecomputationBase(options), measure(std::move(measure)) {}

  void runOnOperation() override {
    auto parsedBudget = parseBudget(budget);
    auto parsedPolicy = parsePolicy(policy);
    if (!parsedBudget || !parsedPolicy) {
      getOperation().emitError() << llvm::toString(
          llvm::joinErrors(parsedBudget.takeError(), parsedPolicy.takeError()));
      return signalPassFailure();
    }
    Recomputation recomputation(getOperation(), measure);
    if (failed(recomputation.run(*parsedPolicy, *parsedBudget)))
      return signalPassFailure();
    numRepeated += recomputation.numRepeated;
  }

  MeasureMemory measure;
};

} // namespace

std::unique_ptr<Pass> createInsertRecomputation(const InsertRecomputationOptions &options,
                                                checkpoint::MeasureMemory measure) {
  return std::make_unique<InsertRecomputationPass>(options, std::move(measure));
}

} // namespace recast
