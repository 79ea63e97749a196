#include "passes/Report.h"
#include "passes/checkpoint/ApplySchedule.h"
#include "passes/checkpoint/Budget.h"
#include "passes/checkpoint/Passes.h"
#include "passes/checkpoint/remat/Candidates.h"
#include "passes/checkpoint/remat/Hoist.h"
#include "passes/gradient/Differentiability.h"
#include "llvm/Support/FormatVariadic.h"
#include <numeric>

namespace recast {
#define GEN_PASS_DEF_INSERTRECOMPUTATION
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

using namespace recast::checkpoint;
using remat::Schedule;
using remat::Usage;

double percent(int64_t part, int64_t whole) {
  return whole ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

/// Which of `count` candidates are tried for the least arena: those with the lowest peaks, of which any may have it,
/// since placement loses some bytes; and those that a search for a budget that none fits comes past.
std::vector<size_t> smallest(size_t count) {
  constexpr size_t kLowest = 6;
  std::vector<size_t> tried;
  for (size_t low = 0; low < count; low = tried.back() + 1)
    tried.push_back((low + count) / 2);
  for (size_t i = count - std::min(kLowest, count); i < count; ++i)
    if (!llvm::is_contained(tried, i))
      tried.push_back(i);
  llvm::sort(tried);
  return tried;
}

class Recomputation {
public:
  Recomputation(ModuleOp module, const MeasureMemory &measure, const cost::Profile &profile,
                const remat::SolverOptions &effort, bool offloads)
      : module(module), measure(measure), profile(profile), effort(effort), offloads(offloads) {}

  /// `text` is the policy as it was asked for.
  LogicalResult run(const Policy &policy, StringRef text, const Budget &budget);
  unsigned numRepeated = 0, numOffloaded = 0;

private:
  LogicalResult analyse();
  FailureOr<Measured> tryOut(const Schedule &schedule, bool reorders = true);
  FailureOr<Schedule> scheduleOf(const Policy &policy);
  FailureOr<std::vector<char>> marked(ArrayRef<std::string> globs);
  LogicalResult follow(const Policy &policy, StringRef text, std::optional<int64_t> most);
  LogicalResult fit(int64_t most);
  LogicalResult minimise();
  LogicalResult hoist(Measured &chosen, Schedule &schedule, int64_t most);
  LogicalResult refuse(int64_t most, int64_t least, const Twine &how);
  void take(Measured trial, const Schedule &schedule, StringRef how);
  std::string describeOffload(const Schedule &schedule, llvm::json::Object &report);

  GraphOp mainBlock() { return mainGraph(module); }

  ModuleOp module;
  const MeasureMemory &measure;
  const cost::Profile &profile;
  remat::SolverOptions effort;
  bool offloads;
  MemoryFacts facts; ///< Of the module as it came.
  Measured plain;    ///< In the best order known, without recomputing; no module where that is how it came.
  GraphProblem graph;
  Usage before;
};

LogicalResult Recomputation::analyse() {
  auto measured = measureMemory(module, measure);
  auto training = findTrainingBlock(module);
  if (failed(measured) || failed(training))
    return failure();
  facts = std::move(*measured);
  auto ordered = orderForMemory(module, facts, measure);
  if (failed(ordered))
    return failure();
  plain = std::move(*ordered);
  if (!plain.module)
    plain.facts = facts;
  graph = buildProblem(*training, facts, &profile, offloads);
  before = remat::usage(graph.problem, remat::plainSchedule(graph.problem));
  return success();
}

/// The graph with the schedule; with `reorders` in the better of two orders.
FailureOr<Measured> Recomputation::tryOut(const Schedule &schedule, bool reorders) {
  assert(remat::check(graph.problem, schedule).empty());
  Measured trial{cast<ModuleOp>(module->clone()), {}};
  auto training = findTrainingBlock(*trial.module);
  assert(succeeded(training));
  NameScope names(mainGraph(*trial.module));
  applyRuns(buildProblem(*training, facts, offloads ? &profile : nullptr, offloads), schedule.runs, names);
  auto measured = measureMemory(*trial.module, measure);
  if (failed(measured))
    return failure();
  trial.facts = std::move(*measured);
  if (!reorders)
    return std::move(trial);
  auto ordered = orderForMemory(*trial.module, trial.facts, measure);
  if (failed(ordered))
    return failure();
  return ordered->module ? std::move(*ordered) : std::move(trial);
}

/// Forward nodes whose name, or the name of one of whose results, a glob matches.
FailureOr<std::vector<char>> Recomputation::marked(ArrayRef<std::string> globs) {
  std::vector<char> isMarked(graph.ops.size(), 0);
  for (StringRef glob : globs) {
    bool any = false;
    for (auto [i, op] : llvm::enumerate(graph.ops)) {
      auto matches = [&](StringRef name) { return gradient::matchesGlob(glob, name); };
      if (!graph.roles.isForward[i] || (!matches(Node(op).name()) && llvm::none_of(op->getResults(), [&](Value result) {
            return matches(nameOf(result));
          })))
        continue;
      isMarked[i] = 1;
      any = true;
    }
    if (!any)
      return mainBlock().emitError() << "--checkpoint=" << glob
                                     << " matches no operator and no value that the loss is computed from";
  }
  return isMarked;
}

FailureOr<Schedule> Recomputation::scheduleOf(const Policy &policy) {
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
void Recomputation::take(Measured trial, const Schedule &schedule, StringRef how) {
  std::vector<int> runs(graph.ops.size(), 0);
  for (int run : schedule.runs)
    if (!graph.problem.isFetch(run))
      ++runs[run];
  llvm::json::Array repeated;
  for (auto [i, op] : llvm::enumerate(graph.ops))
    if (runs[i] > 1) {
      int64_t bytes = 0;
      for (int tensor : graph.problem.nodes[i].writes)
        bytes += graph.problem.tensors[tensor].bytes;
      repeated.push_back(llvm::json::Object{{"node", Node(op).describe()}, {"runs", runs[i]}, {"bytes", bytes}});
    }
  numRepeated = static_cast<unsigned>(std::accumulate(runs.begin(), runs.end(), size_t(0)) - graph.ops.size());
  int64_t arena = trial.facts.arenaBytes, arenaBefore = plain.facts.arenaBytes;
  double moreTime = percent(remat::timeOf(graph.problem, schedule) - before.cost, before.cost);
  int64_t flops = 0, flopsBefore = 0;
  for (auto [count, once] : llvm::zip(runs, graph.flops)) {
    flops += count * once;
    flopsBefore += once;
  }
  double moreFlops = percent(flops - flopsBefore, flopsBefore);
  llvm::json::Object report;
  std::string offload = describeOffload(schedule, report);
  mainBlock().emitRemark()
      << "recomputation (" << how << "): the arena is " << formatBytes(arena)
      << llvm::formatv(", {0:f1} % of ", percent(arena, arenaBefore)).str() << formatBytes(arenaBefore) << "; "
      << numRepeated << " operators run again" << offload << ", for "
      << llvm::formatv("{0:f1} % more arithmetic and {1:f1} % more time", moreFlops, moreTime).str();
  for (auto &&[key, value] : llvm::json::Object{{"policy", how},
                                                {"arena_bytes_without", arenaBefore},
                                                {"arena_bytes", arena},
                                                {"more_flops_percent", moreFlops},
                                                {"more_time_percent", moreTime},
                                                {"flops", flops},
                                                {"flops_without", flopsBefore},
                                                {"machine", profile.machine},
                                                {"repeated", std::move(repeated)}})
    report[key] = std::move(value);
  if (trial.module) {
    graph = GraphProblem();
    module.getBodyRegion().takeBody(trial.module->getBodyRegion());
  }
  addReport(module, "insert-recomputation", std::move(report));
}

/// What goes to the host, for people; and for the report, where it was asked for.
std::string Recomputation::describeOffload(const Schedule &schedule, llvm::json::Object &report) {
  if (!offloads)
    return "";
  std::vector<int> fetches(graph.values.size(), 0);
  int64_t count = 0, ns = 0, bytes = 0;
  for (int run : schedule.runs)
    if (graph.problem.isFetch(run)) {
      const remat::Fetch &fetch = graph.problem.fetch(run);
      ns += fetch.cost + (fetches[static_cast<size_t>(fetch.tensor)]++ ? 0 : fetch.storeCost);
      ++count;
    }
  llvm::json::Array offloaded;
  for (auto [value, times, tensor] : llvm::zip(graph.values, fetches, graph.problem.tensors))
    if (times) {
      bytes += tensor.bytes;
      offloaded.push_back(llvm::json::Object{{"tensor", nameOf(value)}, {"bytes", tensor.bytes}, {"fetches", times}});
    }
  numOffloaded = static_cast<unsigned>(offloaded.size());
  std::string text = llvm::formatv(", {0} tensors ({1}) go to the host and come back {2} times in {3:f3} ms of copies",
                                   offloaded.size(), formatBytes(bytes), count, static_cast<double>(ns) / 1e6);
  report["offloaded"] = std::move(offloaded);
  report["offload_ns"] = ns;
  return text;
}

LogicalResult Recomputation::refuse(int64_t most, int64_t least, const Twine &how) {
  auto error = mainBlock().emitError() << "--memory-budget: an arena of " << formatBytes(most) << " (" << most
                                       << " bytes) cannot be reached; " << how << " " << formatBytes(least) << " ("
                                       << least << " bytes)";
  remat::Floor floor = remat::floorBound(graph.problem);
  error << ". No schedule needs less than " << formatBytes(floor.bytes);
  if (floor.node < static_cast<int>(graph.ops.size()))
    error << " when node " << Node(graph.ops[floor.node]).describe() << " runs";
  else
    error << " for the results";
  return error << ". Raise the budget, or lower the batch size (--accumulate splits a batch into micro-batches)";
}

LogicalResult Recomputation::follow(const Policy &policy, StringRef text, std::optional<int64_t> most) {
  FailureOr<Schedule> schedule = scheduleOf(policy);
  if (failed(schedule))
    return failure();
  FailureOr<Measured> trial = tryOut(*schedule);
  if (failed(trial))
    return failure();
  bool isBetter = trial->facts.arenaBytes < plain.facts.arenaBytes;
  int64_t arena = isBetter ? trial->facts.arenaBytes : plain.facts.arenaBytes;
  if (most && arena > *most)
    return refuse(*most, arena, "--checkpoint=" + text + " gives");
  if (!isBetter && policy.kind != Policy::Kind::None) {
    mainBlock().emitRemark() << "--checkpoint=" << text << " would need " << formatBytes(trial->facts.arenaBytes)
                             << " where " << formatBytes(arena) << " do without it: nothing is recomputed";
  }
  if (isBetter)
    take(std::move(*trial), *schedule, text);
  else
    take(std::move(plain), remat::plainSchedule(graph.problem), text);
  return success();
}

/// The cheapest candidate whose arena is small enough. Candidates get dearer and smaller one by one.
LogicalResult Recomputation::fit(int64_t most) {
  if (plain.facts.arenaBytes <= most) {
    take(std::move(plain), remat::plainSchedule(graph.problem), "auto");
    return success();
  }
  std::vector<remat::Candidate> candidates = remat::candidates(graph.problem, graph.roles, effort);
  size_t low = 0, high = candidates.size();
  int64_t least = plain.facts.arenaBytes;
  Measured best;
  while (low < high) {
    size_t middle = (low + high) / 2;
    FailureOr<Measured> trial = tryOut(candidates[middle].schedule);
    if (failed(trial))
      return failure();
    least = std::min(least, trial->facts.arenaBytes);
    if (trial->facts.arenaBytes <= most) {
      best = std::move(*trial);
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  // Placement may cost the smallest ones more than those before, which were passed over then.
  for (size_t i : smallest(candidates.size())) {
    if (best.module)
      break;
    FailureOr<Measured> trial = tryOut(candidates[i].schedule);
    if (failed(trial))
      return failure();
    least = std::min(least, trial->facts.arenaBytes);
    high = i;
    if (trial->facts.arenaBytes <= most)
      best = std::move(*trial);
  }
  if (!best.module)
    return refuse(most, least, "the least that was found is");
  if (failed(hoist(best, candidates[high].schedule, most)))
    return failure();
  take(std::move(best), candidates[high].schedule, "auto");
  return success();
}

/// Fetches go ahead of their readers as far as the arena allows, for devices that copy and compute at one time.
LogicalResult Recomputation::hoist(Measured &chosen, Schedule &schedule, int64_t most) {
  if (llvm::none_of(schedule.runs, [&](int run) { return graph.problem.isFetch(run); }))
    return success();
  Schedule hoisted = remat::hoistFetches(graph.problem, schedule);
  FailureOr<Measured> trial = tryOut(hoisted, /*reorders=*/false);
  if (failed(trial))
    return failure();
  if (trial->facts.arenaBytes <= most) {
    chosen = std::move(*trial);
    schedule = std::move(hoisted);
  }
  return success();
}

LogicalResult Recomputation::minimise() {
  std::vector<remat::Candidate> candidates = remat::candidates(graph.problem, graph.roles, effort);
  Schedule chosen = remat::plainSchedule(graph.problem);
  Measured best = std::move(plain);
  plain.facts = best.facts;
  for (size_t i : smallest(candidates.size())) {
    FailureOr<Measured> trial = tryOut(candidates[i].schedule);
    if (failed(trial))
      return failure();
    if (trial->facts.arenaBytes >= best.facts.arenaBytes)
      continue;
    best = std::move(*trial);
    chosen = candidates[i].schedule;
  }
  if (failed(hoist(best, chosen, best.facts.arenaBytes)))
    return failure();
  take(std::move(best), chosen, "auto");
  return success();
}

LogicalResult Recomputation::run(const Policy &policy, StringRef text, const Budget &budget) {
  if (failed(analyse()))
    return failure();
  std::optional<int64_t> most;
  if (budget.kind == Budget::Kind::Bytes)
    most = budget.bytes;
  if (budget.kind == Budget::Kind::Percent)
    most = static_cast<int64_t>(static_cast<double>(plain.facts.arenaBytes) * budget.percent / 100);
  if (policy.kind != Policy::Kind::Auto)
    return follow(policy, text, most);
  return most ? fit(*most) : minimise();
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
    if (parsedPolicy->kind == Policy::Kind::Auto && parsedBudget->kind == Budget::Kind::None) {
      getOperation().emitError() << "the policy auto needs a budget";
      return signalPassFailure();
    }
    if (offload && (parsedPolicy->kind != Policy::Kind::Auto || parsedBudget->kind == Budget::Kind::None)) {
      getOperation().emitError() << "offload is chosen by the policy auto, for a budget";
      return signalPassFailure();
    }
    llvm::Expected<cost::Profile> profile =
        costProfile.empty() ? llvm::Expected<cost::Profile>(cost::defaultProfile()) : cost::loadProfile(costProfile);
    if (!profile) {
      getOperation().emitError() << "--cost-profile=" << llvm::toString(profile.takeError());
      return signalPassFailure();
    }
    Recomputation recomputation(getOperation(), measure, *profile, {.moves = 0, .seconds = solveTime}, offload);
    if (failed(recomputation.run(*parsedPolicy, policy, *parsedBudget)))
      return signalPassFailure();
    numRepeated += recomputation.numRepeated;
    numOffloaded += recomputation.numOffloaded;
  }

  MeasureMemory measure;
};

} // namespace

std::unique_ptr<Pass> createInsertRecomputation(const InsertRecomputationOptions &options, MeasureMemory measure) {
  return std::make_unique<InsertRecomputationPass>(options, std::move(measure));
}

} // namespace recast
