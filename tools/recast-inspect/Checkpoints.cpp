// --checkpoints: what runs again, and what other budgets would cost.
#include "passes/checkpoint/Budget.h"
#include "passes/checkpoint/Tradeoff.h"
#include "tools/common/MeasureMemory.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

FailureOr<llvm::json::Object> explainCheckpoints(ModuleOp module, int budgets, const cost::Profile &profile) {
  auto curve = checkpoint::memoryTradeoff(module, budgets, tools::measureMemory, profile);
  if (failed(curve))
    return failure();
  llvm::json::Array points, runs;
  for (const checkpoint::TradeoffPoint &point : *curve)
    points.push_back(llvm::json::Object{{"budget_bytes", point.budgetBytes},
                                        {"peak_bytes", point.peakBytes},
                                        {"repeated", point.numRepeated},
                                        {"more_flops_percent", point.moreFlopsPercent},
                                        {"more_time_percent", point.moreTimePercent}});
  for (const checkpoint::RepeatedRun &run : checkpoint::repeatedRuns(module, profile))
    runs.push_back(llvm::json::Object{{"node", Node(run.again).describe()},
                                      {"again", Node(run.first).describe()},
                                      {"bytes", run.bytes},
                                      {"flops", run.flops},
                                      {"ns", run.timeNs}});
  llvm::json::Object facts{{"machine", profile.machine}, {"repeated", std::move(runs)}, {"curve", std::move(points)}};
  llvm::json::Array offloaded;
  for (const checkpoint::OffloadedValue &value : checkpoint::offloadedValues(module, profile))
    offloaded.push_back(llvm::json::Object{
        {"value", nameOf(value.value)}, {"bytes", value.bytes}, {"fetches", value.fetches}, {"ns", value.timeNs}});
  if (!offloaded.empty())
    facts["offloaded"] = std::move(offloaded);
  return facts;
}

static void printOffloaded(const llvm::json::Array &values, llvm::raw_ostream &out) {
  int64_t bytes = 0, ns = 0;
  for (const llvm::json::Value &value : values) {
    bytes += *value.getAsObject()->getInteger("bytes");
    ns += *value.getAsObject()->getInteger("ns");
  }
  out << llvm::formatv("Values that wait in the host's memory: {0}, {1}, for {2:f3} ms of copies\n{3,12}{4,12}{5,9}\n",
                       values.size(), checkpoint::formatBytes(bytes), static_cast<double>(ns) / 1e6, "memory", "ms",
                       "fetches");
  for (const llvm::json::Value &entry : values) {
    const llvm::json::Object &value = *entry.getAsObject();
    out << llvm::formatv("{0,12}{1,12:f4}{2,9}  {3}\n", checkpoint::formatBytes(*value.getInteger("bytes")),
                         static_cast<double>(*value.getInteger("ns")) / 1e6, *value.getInteger("fetches"),
                         *value.getString("value"));
  }
}

void printCheckpoints(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Array &runs = *facts.getArray("repeated"), &points = *facts.getArray("curve");
  int64_t bytes = 0, ns = 0;
  for (const llvm::json::Value &value : runs) {
    bytes += *value.getAsObject()->getInteger("bytes");
    ns += *value.getAsObject()->getInteger("ns");
  }
  out << "Operators that run again: " << runs.size();
  if (!runs.empty())
    out << llvm::formatv(", {0} that are not kept until they are needed again, for {1:f3} ms\n{2,12}{3,12}\n",
                         checkpoint::formatBytes(bytes), static_cast<double>(ns) / 1e6, "memory", "ms");
  else
    out << '\n';
  for (const llvm::json::Value &value : runs) {
    const llvm::json::Object &run = *value.getAsObject();
    out << llvm::formatv("{0,12}{1,12:f4}  {2}\n", checkpoint::formatBytes(*run.getInteger("bytes")),
                         static_cast<double>(*run.getInteger("ns")) / 1e6, *run.getString("again"));
  }
  if (const llvm::json::Array *offloaded = facts.getArray("offloaded"))
    printOffloaded(*offloaded, out);
  out << "What less memory would cost, against the graph as it is (times are estimates for: "
      << *facts.getString("machine") << ")\n"
      << llvm::formatv("{0,14}{1,8}{2,11}{3,14}{4,10}\n", "live at most", "part", "run again", "arithmetic", "time");
  double whole = points.empty() ? 1 : static_cast<double>(*points.back().getAsObject()->getInteger("peak_bytes"));
  for (const llvm::json::Value &value : points) {
    const llvm::json::Object &point = *value.getAsObject();
    int64_t peak = *point.getInteger("peak_bytes");
    out << llvm::formatv("{0,14}{1,7:f1}%{2,11}{3,+12:f1} %{4,+8:f1} %\n", checkpoint::formatBytes(peak),
                         100 * static_cast<double>(peak) / whole, *point.getInteger("repeated"),
                         *point.getNumber("more_flops_percent"), *point.getNumber("more_time_percent"));
  }
}

} // namespace recast::inspect
