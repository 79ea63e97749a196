// --cost: what a run of the graph costs, by phase of the step, class of work and node.
#include "ir/train/Dialect.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SetVector.h"
#include "llvm/Support/FormatVariadic.h"
#include <cmath>
#include <map>

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

enum class Phase { Forward, Backward, Update };

StringRef nameOf(Phase phase) {
  return phase == Phase::Forward ? "forward" : phase == Phase::Backward ? "backward" : "update";
}

/// Which operation of a step model belongs to which phase. Forward is what the loss is computed from; the update is
/// what follows from a check, a norm or an optimizer; the rest is backward.
class Phases {
public:
  explicit Phases(ModuleOp module) {
    if (getMetadata(module, "recast.state").empty())
      return;
    GraphOp graph = mainGraph(module);
    std::string loss = getMetadata(module, "recast.loss");
    for (Value output : graph.getBody().front().getTerminator()->getOperands())
      if (!loss.empty() && onnx_ir::nameOf(output) == loss)
        markForward(output);
    if (phases.empty())
      return;
    isStep = true;
    for (Operation &op : graph.getBody().front())
      if (isUpdate(&op) || llvm::any_of(op.getOperands(), [&](Value v) { return isInUpdate(v.getDefiningOp()); }))
        phases.try_emplace(&op, Phase::Update);
  }

  /// Nothing where the model is no step.
  std::optional<Phase> find(Operation *op) const {
    for (; isStep && op; op = op->getParentOp())
      if (auto found = phases.find(op); found != phases.end())
        return found->second;
    return isStep ? std::optional(Phase::Backward) : std::nullopt;
  }

private:
  static bool isUpdate(Operation *op) {
    return isa<train::UnscaleOp, train::CheckFiniteOp, train::GradNormOp, train::GradStatsOp, train::ClipGradNormOp,
               train::ClipGradValueOp, train::AdamWOp, train::AdamOp, train::NAdamOp, train::RAdamOp, train::AdagradOp,
               train::RmsPropOp, train::LionOp, train::SgdOp, train::EmaOp, train::UpdateLossScaleOp,
               train::UpdateAmaxOp, train::KeepIfOp>(op);
  }
  bool isInUpdate(Operation *op) const {
    auto found = op ? phases.find(op) : phases.end();
    return found != phases.end() && found->second == Phase::Update;
  }

  void markForward(Value value) {
    SmallVector<Value> open{value};
    while (!open.empty()) {
      Value next = open.pop_back_val();
      Operation *op = next.getDefiningOp();
      if (!op || !isNode(op))
        continue;
      if (isa<ScanOp>(op)) {
        // Micro-batches: the body holds the backward, too. What it reads of outside comes with its operands and
        // captures.
        if (scanResults.insert(next))
          markForward(op->getRegion(0).front().getTerminator()->getOperand(cast<OpResult>(next).getResultNumber()));
      } else if (!phases.try_emplace(op, Phase::Forward).second) {
        continue;
      }
      open.append(op->operand_begin(), op->operand_end());
      for (Region &region : op->getRegions())
        if (!isa<ScanOp>(op))
          region.walk([&](Operation *inner) { open.append(inner->operand_begin(), inner->operand_end()); });
    }
  }

  bool isStep = false;
  llvm::DenseMap<Operation *, Phase> phases;
  llvm::SetVector<Value> scanResults;
};

struct Sum {
  cost::Cost cost;
  double ns = 0;

  void add(const cost::Cost &part, int64_t times, double partNs) {
    cost.add(part, times);
    ns += static_cast<double>(times) * partNs;
  }
  llvm::json::Object json() const {
    return llvm::json::Object{{"flops", cost.flops}, {"bytes", cost.bytes()}, {"ns", static_cast<int64_t>(ns)}};
  }
};

/// One operator of the graph or of a body, over all times that it runs.
struct Row {
  std::string name, op, type, work;
  std::optional<Phase> phase;
  int64_t times = 0;
  Sum sum;
};

struct Census {
  Sum total;
  std::map<StringRef, Sum> phases, classes;
  llvm::json::Array unknown, uncounted;
  llvm::SetVector<StringRef> open;
  std::vector<Row> rows;
};

/// Symbols of the inputs' sizes: what --dim can bind.
llvm::SetVector<StringRef> inputSymbols(GraphOp graph) {
  llvm::SetVector<StringRef> symbols;
  for (BlockArgument argument : graph.getBody().front().getArguments())
    if (auto type = dyn_cast<RankedTensorType>(argument.getType()))
      for (unsigned i = 0; i < type.getRank(); ++i)
        if (type.isDynamicDim(i) && !dimSymbol(type, i).empty())
          symbols.insert(dimSymbol(type, i));
  return symbols;
}

std::string labelOf(Node node) {
  if (!node.name().empty() || node.numOutputs() == 0)
    return node.name().str();
  return onnx_ir::nameOf(node.output()).str();
}

Census countAll(ModuleOp module, const cost::Profile &profile) {
  Census census;
  Phases phases(module);
  census.open = inputSymbols(mainGraph(module));
  Block &block = mainGraph(module).getBody().front();
  cost::visitParts(block, [&](Operation *op, const cost::Cost &cost, int64_t times) {
    Node node(op);
    std::string name = cost::operatorName(node);
    bool isOpen = cost.known == cost::Known::OpenSizes;
    if (cost.known != cost::Known::Yes)
      (isOpen ? census.uncounted : census.unknown)
          .push_back(llvm::json::Object{{"name", labelOf(node)}, {"operator", name}});
    double ns = isOpen ? 0 : cost::timeNs(name, cost, profile);
    std::optional<Phase> phase = phases.find(op);
    census.total.add(cost, times, ns);
    if (phase)
      census.phases[nameOf(*phase)].add(cost, times, ns);
    if (cost.work == cost::Work::Nothing || cost.work == cost::Work::Control)
      return;
    census.classes[cost::workName(cost.work)].add(cost, times, ns);
    Row row{labelOf(node), name, cost.arithmetic.str(), cost::workName(cost.work).str(), phase, times, {}};
    row.sum.add(cost, times, ns);
    census.rows.push_back(std::move(row));
  });
  return census;
}

llvm::json::Object sums(const std::map<StringRef, Sum> &map) {
  llvm::json::Object object;
  for (const auto &[name, sum] : map)
    object[name] = sum.json();
  return object;
}

std::string machineOf(const cost::Profile &profile) {
  return profile.machine + ", " + std::to_string(profile.threads) + (profile.threads == 1 ? " thread" : " threads");
}

llvm::json::Object totals(Census &census, const cost::Profile &profile) {
  bool isOpen = !census.uncounted.empty() && !census.open.empty();
  llvm::json::Object facts{{"machine", machineOf(profile)},
                           {"unknown", std::move(census.unknown)},
                           {"uncounted", std::move(census.uncounted)}};
  if (isOpen) {
    facts["open"] = llvm::json::Array(census.open.getArrayRef());
    return facts;
  }
  facts["total"] = census.total.json();
  facts["classes"] = sums(census.classes);
  if (!census.phases.empty())
    facts["phases"] = sums(census.phases);
  return facts;
}

/// Three digits and a unit: 1234567 as "1.23 M".
std::string brief(double number, ArrayRef<const char *> units) {
  size_t i = 0;
  for (; number >= 999.5 && i + 1 < units.size(); number /= 1000)
    ++i;
  bool isWhole = number == std::trunc(number) && i == 0;
  return llvm::formatv(isWhole || number >= 99.95 ? "{0:f0}"
                       : number < 9.995           ? "{0:f2}"
                                                  : "{0:f1}",
                       number)
             .str() +
         units[i];
}

/// "4.50 ms    1.23 GFLOP    4.50 MB", in columns.
std::string columns(const llvm::json::Object &sum) {
  constexpr const char *kTimes[] = {" ns", " us", " ms", " s"};
  constexpr const char *kCounts[] = {" ", " k", " M", " G", " T", " P", " E"};
  auto number = [&](StringRef key) { return static_cast<double>(*sum.getInteger(key)); };
  return llvm::formatv("{0,10} {1,12} {2,10}", brief(number("ns"), kTimes), brief(number("flops"), kCounts) + "FLOP",
                       brief(number("bytes"), kCounts) + "B");
}

} // namespace

llvm::json::Object costTotals(ModuleOp module, const cost::Profile &profile) {
  Census census = countAll(module, profile);
  return totals(census, profile);
}

llvm::json::Object explainCost(ModuleOp module, const cost::Profile &profile) {
  Census census = countAll(module, profile);
  llvm::json::Object facts = totals(census, profile);
  std::vector<std::pair<double, size_t>> order;
  for (auto [i, row] : llvm::enumerate(census.rows))
    order.emplace_back(-row.sum.ns, i);
  llvm::sort(order);
  llvm::json::Array nodes;
  for (auto [ns, i] : order) {
    const Row &row = census.rows[i];
    llvm::json::Object node{
        {"name", row.name}, {"operator", row.op}, {"type", row.type}, {"class", row.work}, {"times", row.times}};
    if (row.phase)
      node["phase"] = nameOf(*row.phase);
    if (row.sum.cost.known != cost::Known::OpenSizes) {
      node["flops"] = row.sum.cost.flops;
      node["bytes"] = row.sum.cost.bytes();
      node["ns"] = static_cast<int64_t>(row.sum.ns);
    }
    nodes.push_back(std::move(node));
  }
  facts["nodes"] = std::move(nodes);
  return facts;
}

void printCostTotals(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  if (const llvm::json::Array *open = facts.getArray("open")) {
    out << "Cost: not known until sizes are; bind them with";
    for (const llvm::json::Value &symbol : *open)
      out << " --dim=" << *symbol.getAsString() << "=N";
    out << '\n';
    return;
  }
  out << "Cost of a run (times are estimates for: " << *facts.getString("machine") << ")\n";
  out << columns(*facts.getObject("total")) << "  total\n";
  for (StringRef list : {"phases", "classes"})
    if (const llvm::json::Object *entries = facts.getObject(list)) {
      std::vector<std::pair<int64_t, StringRef>> order;
      for (const auto &[name, sum] : *entries)
        order.emplace_back(-*sum.getAsObject()->getInteger("ns"), name);
      llvm::sort(order);
      for (auto &[ns, name] : order)
        out << columns(*entries->getObject(name)) << "  " << name << '\n';
    }
  for (auto [key, title] :
       {std::pair("unknown", "by bytes only"), std::pair("uncounted", "not at all, sizes are open")}) {
    const llvm::json::Array &nodes = *facts.getArray(key);
    if (nodes.empty())
      continue;
    out << "  counted " << title << ":";
    for (size_t i = 0; i < nodes.size() && i < 10; ++i)
      out << (i ? ", '" : " '") << *nodes[i].getAsObject()->getString("name") << "' ("
          << *nodes[i].getAsObject()->getString("operator") << ")";
    if (nodes.size() > 10)
      out << " and " << nodes.size() - 10 << " more";
    out << '\n';
  }
}

void printCost(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  constexpr size_t kMost = 30;
  printCostTotals(facts, out);
  const llvm::json::Array &nodes = *facts.getArray("nodes");
  if (facts.getArray("open"))
    return;
  out << "Operators, those that take longest first\n";
  for (size_t i = 0; i < nodes.size() && i < kMost; ++i) {
    const llvm::json::Object &node = *nodes[i].getAsObject();
    auto text = [&](StringRef key) { return node.getString(key).value_or("").str(); };
    out << columns(node) << llvm::formatv("  {0,-9} {1,-5} {2,-20} ", text("phase"), text("type"), text("operator"))
        << text("name");
    if (int64_t times = *node.getInteger("times"); times != 1)
      out << ", " << times << " times";
    out << '\n';
  }
  if (nodes.size() > kMost)
    out << "  ... " << nodes.size() - kMost << " more (--json=FILE has all)\n";
}

} // namespace recast::inspect
