#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "tools/recast-inspect/Inspect.h"
#include "llvm/Support/Format.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::inspect {

namespace {

std::string show(Type type) {
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

// Multiply-adds count as two operations. Nothing where a size is open.
std::optional<int64_t> productFlops(Node node) {
  auto typeOf = [](Value v) { return v ? dyn_cast<RankedTensorType>(v.getType()) : RankedTensorType(); };
  RankedTensorType y = typeOf(node.output()), x = typeOf(node.input(0)), w = typeOf(node.input(1));
  if (!y || !x || !w || !y.hasStaticShape() || !x.hasStaticShape() || !w.hasStaticShape())
    return std::nullopt;
  if (node.is("MatMul"))
    return 2 * y.getNumElements() * x.getShape().back();
  if (node.is("Gemm"))
    return 2 * y.getNumElements() * x.getDimSize(node.getInt("transA", 0) ? 0 : 1);
  if (node.is("Conv"))
    return 2 * y.getNumElements() * (w.getNumElements() / w.getDimSize(0));
  if (node.is("ConvTranspose"))
    return 2 * x.getNumElements() * (w.getNumElements() / w.getDimSize(0));
  if (node.domain() == "recast" && node.opType() == "conv_grad_input")
    return 2 * x.getNumElements() * (w.getNumElements() / w.getDimSize(0));
  if (node.domain() == "recast" && node.opType() == "conv_grad_weight")
    return 2 * w.getNumElements() * (y.getNumElements() / y.getDimSize(0));
  return 0;
}

llvm::json::Object valueFacts(Value value) {
  return llvm::json::Object{{"name", nameOf(value)}, {"type", show(value.getType())}};
}

// How often one execution of the graph runs the operation: the lengths of the Scans around it.
int64_t timesRun(Operation *op) {
  int64_t times = 1;
  for (Operation *parent = op->getParentOp(); parent; parent = parent->getParentOp()) {
    if (!isa<ScanOp>(parent))
      continue;
    auto whole = dyn_cast<RankedTensorType>(parent->getOperands().back().getType());
    if (whole && whole.getRank() > 0 && !whole.isDynamicDim(0))
      times *= whole.getDimSize(0);
  }
  return times;
}

// Samples in an optimizer step: those of a micro-batch, times the micro-batches, times the ranks (one, here).
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
  llvm::json::Object facts{{"micro_batches", microBatches}, {"ranks", 1}};
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

llvm::json::Object summarize(ModuleOp module) {
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

  int64_t tensors = 0, elements = 0, bytes = 0, flops = 0;
  bool flopsKnown = true;
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
    Node node(op);
    ++operators[(node.domain().empty() ? "" : node.domain() + "::").str() + node.opType().str()];
    for (Value result : op->getResults())
      if (Type element = elementTypeOf(result)) {
        std::string text;
        llvm::raw_string_ostream(text) << element;
        ++dtypes[text];
      }
    std::optional<int64_t> own = op->getNumResults() ? productFlops(node) : 0;
    flopsKnown &= own.has_value();
    flops += own.value_or(0) * timesRun(op);
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
  if (flopsKnown)
    facts["product_flops"] = flops;
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
        << *batch->getInteger("ranks") << " ranks";
    if (auto samples = batch->getInteger("samples"))
      out << " = " << *samples;
    if (auto by = batch->getString("normalize"))
      out << ", loss normalised by " << *by;
    out << '\n';
  }
  const llvm::json::Object &initializers = *facts.getObject("initializers");
  out << "Initializers: " << *initializers.getInteger("tensors") << " tensors, " << *initializers.getInteger("elements")
      << " elements, " << *initializers.getInteger("bytes") << " bytes\n";
  out << "Opset: " << *facts.getInteger("opset") << "\n";
  if (auto flops = facts.getInteger("product_flops"))
    out << "Products: " << *flops << " floating-point operations\n";
  else
    out << "Products: operations depend on open sizes (bind them with --dim=NAME=N)\n";
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
