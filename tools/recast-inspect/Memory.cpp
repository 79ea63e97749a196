// --memory: the runtime's plan of a run, and who holds the memory where it is fullest.
#include "passes/checkpoint/Budget.h"
#include "passes/verify/Verify.h"
#include "runtime/compile/Compile.h"
#include "runtime/plan/MemoryUse.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Support/FormatVariadic.h"
#include <numeric>

using namespace mlir;
namespace recast::inspect {

namespace {

constexpr size_t kShownHolders = 20;
constexpr size_t kTimelineRows = 32, kTimelineColumns = 56;

int64_t number(size_t value) { return static_cast<int64_t>(value); }

StringRef nameOf(Holder::Kind kind) {
  return kind == Holder::Workspace ? "workspace" : kind == Holder::Output ? "output" : "value";
}

/// Of a plan or a body: {"arena", "steps": [{"name", "operator", "live"}], "fullest": {...}, "buffers": [...],
/// "bodies"}, and where values wait in the host's memory {"host", "offloaded": [...]}.
llvm::json::Object describeArena(const Plan &plan, const MemoryUse &use) {
  llvm::json::Array steps, buffers, holders, bodies;
  for (auto [step, live] : llvm::zip(plan.steps, use.liveBytes))
    steps.push_back(llvm::json::Object{{"name", step.spec.name}, {"operator", step.spec.op}, {"live", number(live)}});
  std::vector<Lifetime> lives = lifetimes(plan);
  llvm::json::Array offloaded;
  for (auto [buffer, life] : llvm::zip(plan.buffers, lives))
    if (life.first >= 0)
      (buffer.place == Place::Host ? offloaded : buffers)
          .push_back(llvm::json::Object{{"name", buffer.name},
                                        {"type", toString(buffer.type)},
                                        {"bytes", number(buffer.type.bytes())},
                                        {"offset", number(buffer.offset)},
                                        {"first", life.first},
                                        {"last", life.last}});
  for (const Holder &holder : use.holders)
    holders.push_back(llvm::json::Object{{"kind", nameOf(holder.kind)},
                                         {"name", holder.name},
                                         {"bytes", number(holder.bytes)},
                                         {"first", holder.life.first},
                                         {"last", holder.life.last}});
  for (const MemoryUse &body : use.bodies) {
    const Step &step = plan.steps[static_cast<size_t>(body.step)];
    size_t before = static_cast<size_t>(
        llvm::count_if(use.bodies, [&](const MemoryUse &other) { return other.step == body.step && &other < &body; }));
    llvm::json::Object facts = describeArena(step.bodies[before], body);
    facts["of"] = step.spec.name;
    bodies.push_back(std::move(facts));
  }
  llvm::json::Object facts{{"arena", number(use.arenaBytes)},
                           {"steps", std::move(steps)},
                           {"buffers", std::move(buffers)},
                           {"bodies", std::move(bodies)}};
  if (use.hostBytes) {
    facts["host"] = number(use.hostBytes);
    facts["offloaded"] = std::move(offloaded);
  }
  if (use.fullest >= 0)
    facts["fullest"] = llvm::json::Object{{"step", use.fullest},
                                          {"values", number(use.valueBytes)},
                                          {"outputs", number(use.outputBytes)},
                                          {"workspace", number(use.workspaceBytes)},
                                          {"lost", number(use.lostBytes)},
                                          {"holders", std::move(holders)}};
  return facts;
}

void line(llvm::raw_ostream &out, StringRef label, int64_t bytes, StringRef remark = "") {
  out << llvm::formatv("  {0,-24}{1,12}{2}{3}\n", label, checkpoint::formatBytes(bytes), remark.empty() ? "" : "  ",
                       remark);
}

/// One row for a stretch of steps: the most that is live in it.
void printTimeline(const llvm::json::Array &steps, int64_t arena, llvm::raw_ostream &out) {
  size_t rows = std::min(kTimelineRows, steps.size());
  for (size_t row = 0; row < rows; ++row) {
    size_t begin = steps.size() * row / rows, end = steps.size() * (row + 1) / rows;
    const llvm::json::Object *fullest = nullptr;
    for (size_t i = begin; i < end; ++i)
      if (const llvm::json::Object *step = steps[i].getAsObject();
          !fullest || *step->getInteger("live") > *fullest->getInteger("live"))
        fullest = step;
    int64_t live = *fullest->getInteger("live");
    size_t bar = arena ? static_cast<size_t>(live * number(kTimelineColumns) / arena) : 0;
    out << llvm::formatv("  {0,6} {1,12} {2} {3}\n", begin, checkpoint::formatBytes(live), std::string(bar, '#'),
                         *fullest->getString("name"));
  }
}

/// What waits in the host's memory, and from which step to which.
void printHost(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Array *offloaded = facts.getArray("offloaded");
  if (!offloaded || offloaded->empty())
    return;
  out << "In the host's memory (" << offloaded->size() << ")"
      << llvm::formatv("{0,14}{1,9}{2,7}\n", "bytes", "from", "to");
  for (size_t i = 0; i < std::min(kShownHolders, offloaded->size()); ++i) {
    const llvm::json::Object &value = *(*offloaded)[i].getAsObject();
    out << llvm::formatv("  {0,36}{1,9}{2,7}  {3}\n", *value.getInteger("bytes"), *value.getInteger("first"),
                         *value.getInteger("last"), *value.getString("name"));
  }
  if (offloaded->size() > kShownHolders)
    out << "  and " << offloaded->size() - kShownHolders << " more\n";
}

void printArena(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  const llvm::json::Object *fullest = facts.getObject("fullest");
  if (!fullest)
    return;
  const llvm::json::Array &steps = *facts.getArray("steps");
  const llvm::json::Object &at = *steps[static_cast<size_t>(*fullest->getInteger("step"))].getAsObject();
  out << "Fullest at step " << *fullest->getInteger("step") << " of " << steps.size() << ", '" << *at.getString("name")
      << "' (" << *at.getString("operator") << ")\n";
  line(out, "values", *fullest->getInteger("values"), "activations and gradients");
  line(out, "outputs", *fullest->getInteger("outputs"));
  line(out, "workspace", *fullest->getInteger("workspace"));
  line(out, "between", *fullest->getInteger("lost"), "lost to placement");
  out << "Live over the steps (the most of each stretch)\n";
  printTimeline(steps, *facts.getInteger("arena"), out);
  const llvm::json::Array &holders = *fullest->getArray("holders");
  out << "Held there (" << holders.size() << ")" << llvm::formatv("{0,14}{1,9}{2,7}\n", "bytes", "from", "to");
  for (size_t i = 0; i < std::min(kShownHolders, holders.size()); ++i) {
    const llvm::json::Object &holder = *holders[i].getAsObject();
    out << llvm::formatv("  {0,25}{1,9}{2,7}  {3}{4}\n", *holder.getInteger("bytes"), *holder.getInteger("first"),
                         *holder.getInteger("last"), *holder.getString("name"),
                         *holder.getString("kind") == "value" ? "" : (" (" + *holder.getString("kind") + ")").str());
  }
  if (holders.size() > kShownHolders)
    out << "  and " << holders.size() - kShownHolders << " smaller\n";
  printHost(facts, out);
}

} // namespace

FailureOr<llvm::json::Object> explainMemory(ModuleOp module) {
  auto plan = compileModule(module, {.regions = true, .generateCode = false});
  if (!plan) {
    module.emitError() << plan.message();
    return failure();
  }
  MemoryUse use = memoryUse(**plan);
  llvm::StringSet<> parameters;
  for (const std::string &name : recast::verify::verifyTraining(module).parameters)
    parameters.insert(name);
  size_t parameterBytes = 0;
  for (const Buffer &buffer : (*plan)->buffers)
    if (buffer.place == Place::State && parameters.contains(buffer.name))
      parameterBytes += buffer.type.bytes();
  llvm::json::Object facts = describeArena(**plan, use);
  facts["parameters"] = number(parameterBytes);
  facts["state"] = number(use.stateBytes - parameterBytes);
  facts["inputs"] = number(use.inputBytes);
  facts["constants"] = number(use.constantBytes);
  return facts;
}

void printMemory(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  out << "Memory of a run\n";
  line(out, "parameters", *facts.getInteger("parameters"));
  line(out, "other state", *facts.getInteger("state"), "moments, counters, loss scale");
  line(out, "inputs", *facts.getInteger("inputs"));
  line(out, "constants", *facts.getInteger("constants"));
  line(out, "arena", *facts.getInteger("arena"), (llvm::Twine(*facts.getInteger("arena")) + " bytes").str());
  if (auto host = facts.getInteger("host"))
    line(out, "on the host", *host, (llvm::Twine(*host) + " bytes of values that come back").str());
  printArena(facts, out);
  for (const llvm::json::Value &value : *facts.getArray("bodies")) {
    const llvm::json::Object &body = *value.getAsObject();
    out << "In the body of '" << *body.getString("of") << "', an arena of its own in the workspace of that step\n";
    line(out, "arena", *body.getInteger("arena"));
    printArena(body, out);
  }
}

} // namespace recast::inspect
