#include "tools/recast-opt/Calibrate.h"
#include "runtime/compile/Compile.h"
#include "runtime/exec/Executor.h"
#include "runtime/kernels/Parallel.h"
#include "tools/recast-opt/CalibrationGraphs.h"
#include "tools/recast-opt/StepCost.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/TargetParser/Host.h"
#include <chrono>
#include <cstring>
#include <random>

using namespace mlir;
namespace recast::tools {

namespace {

using cost::Work;
using Clock = std::chrono::steady_clock;
using Key = std::pair<std::string, std::string>; // Operator and type.

/// How often a graph runs: at least so often, and on, up to kMostRuns times, while so many nanoseconds have not passed.
struct Effort {
  size_t leastRuns;
  double ns;
};
constexpr Effort kSmallGraph{15, 20e6}, kPeak{5, 1e9}, kModel{5, 5e9};
constexpr size_t kMostRuns = 50;
constexpr double kSameAmount = 1.1; ///< Amounts within this factor are one point of a curve.

double sinceNs(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double fastest(const std::vector<double> &values) { return *llvm::min_element(values); }

/// What one step did, and how long it took.
struct Sample {
  double flops, bytes, ns;
};

struct Operator {
  Work work = Work::Nothing;
  std::vector<Sample> samples;

  /// The amount of work that time goes with.
  bool isPerFlop() const { return work == Work::Product || work == Work::Convolution || work == Work::Reduction; }
  double amount(const Sample &sample) const { return isPerFlop() ? sample.flops : sample.bytes; }
  void sort() {
    llvm::sort(samples, [&](const Sample &a, const Sample &b) { return amount(a) < amount(b); });
  }
};
using Operators = std::map<Key, Operator>;

/// Numbers around 1, and 0 for integers: indices that every tensor has.
void fillInputs(const Executor &executor) {
  std::minstd_rand random(1);
  for (int input : executor.plan().inputs) {
    TensorRef tensor = executor.tensor(input);
    std::memset(tensor.data, 0, tensor.bytes());
    if (!isFloat(tensor.dtype))
      continue;
    dispatchFloat(tensor.dtype, [&]<typename T>() {
      for (int64_t i = 0, count = tensor.elems(); i < count; ++i)
        tensor.as<T>()[i] = static_cast<T>(0.5f + static_cast<float>(random()) / static_cast<float>(random.max()));
    });
  }
}

/// A graph made ready to run.
struct Program {
  std::unique_ptr<Plan> plan;
  std::unique_ptr<Executor> executor;
};

/// Compiles it and runs it once: memory is touched, threads are awake.
Result<Program> prepare(ModuleOp module) {
  auto plan = compileModule(module, {});
  if (!plan)
    return plan.status();
  auto executor = Executor::create(**plan);
  if (!executor)
    return executor.status();
  fillInputs(**executor);
  if (Status status = (*executor)->run(); !status.ok())
    return status;
  return Program{std::move(*plan), std::move(*executor)};
}

/// The time of the fastest run: what else happens on the machine only adds.
Result<double> repeat(Executor &executor, Effort effort) {
  std::vector<double> times;
  Clock::time_point begin = Clock::now();
  while (times.size() < effort.leastRuns || (times.size() < kMostRuns && sinceNs(begin) < effort.ns)) {
    Clock::time_point start = Clock::now();
    if (Status status = executor.run(); !status.ok())
      return status;
    times.push_back(sinceNs(start));
  }
  return fastest(times);
}

/// Adds a sample for each step of the graph: the fastest of some runs.
Status measureSteps(MLIRContext &context, ModuleOp module, Effort effort, Operators &into) {
  auto program = prepare(module);
  if (!program)
    return program.status();
  std::map<const Step *, std::vector<double>> times;
  std::vector<Clock::time_point> begins; // Steps of bodies run inside that of their own step.
  program->executor->observer = [&](const StepEvent &event) {
    if (event.isBegin)
      return begins.push_back(Clock::now());
    times[&event.plan.steps[event.step]].push_back(sinceNs(begins.back()));
    begins.pop_back();
  };
  if (auto ran = repeat(*program->executor, effort); !ran)
    return ran.status();
  for (auto &[step, ns] : times) {
    if (!step->bodies.empty())
      continue;
    auto [name, cost] = costOfStep(context, *step);
    if (cost.work == Work::Nothing || cost.known != cost::Known::Yes)
      continue;
    Operator &entry = into[{name, cost.arithmetic.str()}];
    entry.work = cost.work;
    entry.samples.push_back({static_cast<double>(cost.flops), static_cast<double>(cost.bytes()), fastest(ns)});
  }
  return Status::success();
}

Result<double> timeOfRun(ModuleOp module) {
  auto program = prepare(module);
  if (!program)
    return program.status();
  return repeat(*program->executor, kPeak);
}

/// Four digits are more than a second run would give again.
double round(double value) { return std::strtod(llvm::formatv("{0:e3}", value).str().c_str(), nullptr); }

/// One point for amounts that are about the same. Precondition: sorted.
cost::Curve curveOf(const Operator &entry) {
  cost::Curve curve{entry.isPerFlop(), {}};
  for (size_t begin = 0, end; begin < entry.samples.size(); begin = end) {
    double first = entry.amount(entry.samples[begin]), sum = 0;
    std::vector<double> ns;
    for (end = begin; end < entry.samples.size() && entry.amount(entry.samples[end]) <= kSameAmount * first; ++end) {
      sum += entry.amount(entry.samples[end]);
      ns.push_back(entry.samples[end].ns);
    }
    if (sum > 0)
      curve.points.emplace_back(round(sum / static_cast<double>(ns.size())), round(median(ns)));
  }
  return curve;
}

/// The model's points take the place of others of about their amounts. Precondition: there are some.
void extend(cost::Curve &curve, cost::Curve own) {
  double least = own.points.front().first / kSameAmount, most = own.points.back().first * kSameAmount;
  llvm::erase_if(curve.points, [&](auto point) { return point.first >= least && point.first <= most; });
  curve.isPerFlop = own.isPerFlop;
  curve.points.insert(curve.points.end(), own.points.begin(), own.points.end());
  llvm::sort(curve.points);
}

/// Peaks of products and convolutions: the best of all samples. Of other classes: what the operators reach in their
/// largest size, in the middle.
void findPeaks(const Operators &operators, cost::Profile &profile) {
  std::map<std::pair<Work, std::string>, std::vector<double>> rates;
  std::vector<double> moves;
  for (const auto &[key, entry] : operators) {
    const Sample &largest = entry.samples.back();
    if (entry.work == Work::Move) {
      moves.push_back(largest.bytes / largest.ns);
      continue;
    }
    bool isPeak = entry.work == Work::Product || entry.work == Work::Convolution;
    double rate = largest.flops / largest.ns;
    for (const Sample &sample : entry.samples)
      rate = isPeak ? std::max(rate, sample.flops / sample.ns) : rate;
    if (rate > 0)
      rates[{entry.work, key.second}].push_back(rate);
  }
  for (auto &[key, values] : rates) {
    bool isPeak = key.first == Work::Product || key.first == Work::Convolution;
    profile.gflops[key.first][key.second] = round(isPeak ? *llvm::max_element(values) : median(values));
  }
  profile.movesGBs = moves.empty() ? profile.memoryGBs : round(median(std::move(moves)));
}

/// Without a model: peaks, and curves of operators in some sizes.
Result<cost::Profile> measureMachine(MLIRContext &context) {
  constexpr int64_t kSteps = 256, kCopyBytes = int64_t(32) << 20;
  auto chain = timeOfRun(*overheadGraph(context, kSteps)), copy = timeOfRun(*copyGraph(context, kCopyBytes));
  if (!chain || !copy)
    return (chain ? copy : chain).status();
  cost::Profile profile;
  profile.machine = llvm::sys::getHostCPUName().str();
  profile.threads = threadCount();
  profile.overheadNs = round(*chain / kSteps);
  profile.memoryGBs = round(2 * kCopyBytes / *copy);
  cost::setHostCopies(profile);
  Operators operators;
  // What the runtime has no kernel for is no step of a plan either.
  forEachCalibrationGraph(context, [&](ModuleOp graph) { (void)measureSteps(context, graph, kSmallGraph, operators); });
  for (auto &[key, entry] : operators)
    entry.sort();
  findPeaks(operators, profile);
  for (const auto &[key, entry] : operators)
    if (cost::Curve curve = curveOf(entry); !curve.points.empty())
      profile.operators[key] = std::move(curve);
  return profile;
}

} // namespace

llvm::Expected<cost::Profile> calibrate(MLIRContext &context, ModuleOp model, const cost::Profile *base) {
  auto fail = [](const Status &status) { return llvm::createStringError("--calibrate: " + status.message()); };
  context.loadAllAvailableDialects();
  Result<cost::Profile> profile = base ? Result<cost::Profile>(*base) : measureMachine(context);
  if (!profile)
    return fail(profile.status());
  Operators own;
  if (model)
    if (Status status = measureSteps(context, model, kModel, own); !status.ok())
      return fail(status);
  for (auto &[key, entry] : own) {
    entry.sort();
    if (cost::Curve curve = curveOf(entry); !curve.points.empty()) // None where nothing was to be done.
      extend(profile->operators[key], std::move(curve));
  }
  return std::move(*profile);
}

} // namespace recast::tools
