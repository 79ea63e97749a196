#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

llvm::json::Object valueFacts(Value value) {
  return llvm::json::Object{{"name", nameOf(value)}, {"type", typeText(value.getType())}};
}

// Samples in an optimizer step: those of a micro-batch, times the micro-batches, times the ranks, whose number the run
// decides.
std::optional<llvm::json::Object> effectiveBatch(ModuleOp module, ArrayRef<BlockArgument> batch) {
  int64_t microBatches = 1;
  if (std::string text = getMetadata(module, "recast.accumulate"); !text.empty())
    if (StringRef(text).getAsInteger(10, microBatches))
      return std::nullopt;
  if (getMetadata(module, "recast.state").empty() || batch.empty())
    return std::nullopt;
  auto type = dyn_cast<RankedTensorType>(batch.front().getType());
  unsigned axis = microBatches > 1 ? 1 : 0;
  if (!type || type.getRank() <= axis)
    return std::nullopt;
  llvm::json::Object facts{{"micro_batches", microBatches}};
  if (getMetadata(module, "recast.data_parallel").empty())
    facts["ranks"] = 1;
  else
    facts["ranks"] = nullptr;
  if (type.isDynamicDim(axis)) {
    facts["micro_batch"] = dimSymbol(type, axis).empty() ? "?" : dimSymbol(type, axis).str();
  } else {
    facts["micro_batch"] = type.getDimSize(axis);
    facts["samples"] = type.getDimSize(axis) * microBatches;
  }
  if (std::string by = getMetadata(module, "recast.normalize"); !by.empty())
    facts["normalize"] = by;
  return facts;
}

} // namespace

std::string typeText(Type type) {
  std::string text;
  llvm::raw_string_ostream out(text);
  auto tensor = dyn_cast<TensorType>(type);
  if (!tensor) {
    out << type;
    return text;
  }
  out << tensor.getElementType();
  auto ranked = dyn_cast<RankedTensorType>(type);
  if (!ranked)
    return text + "[...]";
  out << '[';
  for (int64_t i = 0; i < ranked.getRank(); ++i) {
    out << (i ? "," : "");
    if (!ranked.isDynamicDim(i))
      out << ranked.getDimSize(i);
    else
      out << (dimSymbol(ranked, i).empty() ? "?" : dimSymbol(ranked, i));
  }
  out << ']';
  return text;
}

llvm::json::Object summarize(ModuleOp module, const cost::Profile &profile) {
  GraphOp graph = mainGraph(module);
  Block &block = graph.getBody().front();
  auto stateNames = llvm::json::parse(getMetadata(module, "recast.state"));
  const llvm::json::Object *state = stateNames ? stateNames->getAsObject() : nullptr;
  if (!stateNames)
    llvm::consumeError(stateNames.takeError());

  llvm::json::Array inputs, outputs, stateInputs;
  for (BlockArgument argument : block.getArguments())
    (state && state->get(nameOf(argument)) ? stateInputs : inputs).push_back(valueFacts(argument));
  for (Value output : block.getTerminator()->getOperands())
    outputs.push_back(valueFacts(output));

  int64_t tensors = 0, elements = 0, bytes = 0;
  for (auto initializer : block.getOps<InitializerOp>()) {
    RankedTensorType type = initializer.getValue().getType();
    ++tensors;
    elements += type.getNumElements();
    bytes += (type.getNumElements() * storageBits(type.getElementType()) + 7) / 8;
  }
  std::map<std::string, int64_t> operators, dtypes;
  graph.walk([&](Operation *op) {
    if (!isNode(op) || isa<train::MarkScaledOp>(op))
      return;
    ++operators[cost::operatorName(op)];
    for (Value result : op->getResults())
      if (Type element = elementTypeOf(result)) {
        std::string text;
        llvm::raw_string_ostream(text) << element;
        ++dtypes[text];
      }
  });
  auto counts = [](const std::map<std::string, int64_t> &map) {
    llvm::json::Object object;
    for (const auto &[key, count] : map)
      object[key] = count;
    return object;
  };
  llvm::json::Object facts{
      {"inputs", std::move(inputs)},
      {"outputs", std::move(outputs)},
      {"state", std::move(stateInputs)},
      {"initializers", llvm::json::Object{{"tensors", tensors}, {"elements", elements}, {"bytes", bytes}}},
      {"operators", counts(operators)},
      {"value_types", counts(dtypes)},
      {"opset", opsetVersion(graph, "")}};
  facts["cost"] = costTotals(module, profile);
  SmallVector<BlockArgument> batch;
  for (BlockArgument argument : block.getArguments())
    if (!state || !state->get(nameOf(argument)))
      batch.push_back(argument);
  if (auto effective = effectiveBatch(module, batch))
    facts["effective_batch"] = std::move(*effective);
  return facts;
}

void printSummary(const llvm::json::Object &facts, llvm::raw_ostream &out) {
  auto list = [&](StringRef title, StringRef key, size_t most) {
    const llvm::json::Array &values = *facts.getArray(key);
    if (values.empty())
      return;
    out << title << " (" << values.size() << ")\n";
    for (size_t i = 0; i < values.size() && i < most; ++i) {
      const llvm::json::Object &value = *values[i].getAsObject();
      out << "  " << llvm::left_justify(*value.getString("name"), 40) << ' ' << *value.getString("type") << '\n';
    }
    if (values.size() > most)
      out << "  ... " << values.size() - most << " more (--json=FILE has all)\n";
  };
  list("Inputs", "inputs", 20);
  list("State", "state", 20);
  list("Outputs", "outputs", 20);
  if (const llvm::json::Object *batch = facts.getObject("effective_batch")) {
    auto number = batch->getInteger("micro_batch");
    std::string micro = number ? std::to_string(*number) : batch->getString("micro_batch")->str();
    out << "Effective batch: " << micro << " samples x " << *batch->getInteger("micro_batches") << " micro-batches x "
        << (batch->getInteger("ranks") ? "1 ranks" : "the ranks of the run");
    if (auto samples = batch->getInteger("samples"))
      out << " = " << *samples << (batch->getInteger("ranks") ? "" : " on each");
    if (auto by = batch->getString("normalize"))
      out << ", loss normalised by " << *by;
    out << '\n';
  }
  const llvm::json::Object &initializers = *facts.getObject("initializers");
  out << "Initializers: " << *initializers.getInteger("tensors") << " tensors, " << *initializers.getInteger("elements")
      << " elements, " << *initializers.getInteger("bytes") << " bytes\n";
  out << "Opset: " << *facts.getInteger("opset") << "\n";
  printCostTotals(*facts.getObject("cost"), out);
  auto table = [&](StringRef title, StringRef key) {
    out << title << '\n';
    std::vector<std::pair<int64_t, std::string>> rows;
    for (const auto &entry : *facts.getObject(key))
      rows.emplace_back(-*entry.second.getAsInteger(), entry.first.str());
    llvm::sort(rows);
    for (const auto &[count, name] : rows)
      out << "  " << llvm::left_justify(name, 40) << ' ' << -count << '\n';
  };
  table("Operators", "operators");
  table("Types of values", "value_types");
}

} // namespace recast::inspect
