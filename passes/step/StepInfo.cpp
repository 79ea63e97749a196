#include "passes/step/StepInfo.h"
#include "ir/onnx/Node.h"
#include "llvm/ADT/bit.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::step {

constexpr llvm::StringLiteral kAttribute = "train.step";

StepInfo StepInfo::of(GraphOp graph) {
  StepInfo info;
  auto dict = graph->getAttrOfType<DictionaryAttr>(kAttribute);
  if (!dict)
    return info;
  auto list = [&](StringRef key) {
    std::vector<std::string> strings;
    for (StringRef s : stringsIn(dict, key))
      strings.push_back(s.str());
    return strings;
  };
  auto text = [&](StringRef key) { return dict.getAs<StringAttr>(key).str(); };
  info.loss = text("loss");
  info.objective = text("objective");
  info.lossScale = text("loss_scale");
  info.foundInf = text("found_inf");
  info.skip = text("skip");
  info.tokens = text("tokens");
  info.reduction = text("reduction");
  info.parameters = list("parameters");
  info.gradients = list("gradients");
  info.metrics = list("metrics");
  auto pairs = [&](StringRef inputs, StringRef values) {
    std::vector<std::pair<std::string, std::string>> result;
    std::vector<std::string> from = list(inputs), to = list(values);
    for (size_t i = 0; i < from.size(); ++i)
      result.emplace_back(from[i], to[i]);
    return result;
  };
  info.state = pairs("state", "next");
  info.pending = pairs("pending", "pending_next");
  info.renamed = pairs("taken", "renamed");
  std::vector<std::string> histories = list("fp8_history"), scales = list("fp8_scale"), amaxes = list("fp8_amax");
  auto formats = dict.getAs<DenseI64ArrayAttr>("fp8_format");
  for (size_t i = 0; i < histories.size(); ++i)
    info.fp8.push_back({histories[i], scales[i], amaxes[i], formats[static_cast<int64_t>(i)]});
  return info;
}

void StepInfo::store(GraphOp graph) const {
  MLIRContext *context = graph.getContext();
  Builder b(context);
  NamedAttrList dict;
  auto list = [&](StringRef key, const std::vector<std::string> &strings) {
    dict.set(key, stringArray(context, SmallVector<StringRef>(strings.begin(), strings.end())));
  };
  dict.set("loss", b.getStringAttr(loss));
  dict.set("objective", b.getStringAttr(objective));
  dict.set("loss_scale", b.getStringAttr(lossScale));
  dict.set("found_inf", b.getStringAttr(foundInf));
  dict.set("skip", b.getStringAttr(skip));
  dict.set("tokens", b.getStringAttr(tokens));
  dict.set("reduction", b.getStringAttr(reduction));
  list("parameters", parameters);
  list("gradients", gradients);
  list("metrics", metrics);
  auto pairs = [&](StringRef inputs, StringRef values, const std::vector<std::pair<std::string, std::string>> &all) {
    std::vector<std::string> from, to;
    for (const auto &[input, next] : all) {
      from.push_back(input);
      to.push_back(next);
    }
    list(inputs, from);
    list(values, to);
  };
  pairs("state", "next", state);
  pairs("pending", "pending_next", pending);
  pairs("taken", "renamed", renamed);
  std::vector<std::string> histories, scales, amaxes;
  SmallVector<int64_t> formats;
  for (const Fp8Tensor &tensor : fp8) {
    histories.push_back(tensor.history);
    scales.push_back(tensor.scale);
    amaxes.push_back(tensor.amax);
    formats.push_back(tensor.format);
  }
  list("fp8_history", histories);
  list("fp8_scale", scales);
  list("fp8_amax", amaxes);
  dict.set("fp8_format", b.getDenseI64ArrayAttr(formats));
  graph->setAttr(kAttribute, dict.getDictionary(context));
}

StepGraph::StepGraph(ModuleOp module)
    : graph(mainGraph(module)), info(StepInfo::of(graph)), names(graph), b(graph, names, types) {}

Value StepGraph::findIn(GraphOp graph, StringRef name) {
  Block &block = graph.getBody().front();
  for (BlockArgument argument : block.getArguments())
    if (nameOf(argument) == name)
      return argument;
  for (Operation &op : block)
    for (Value result : op.getResults())
      if (nameOf(result) == name)
        return result;
  return {};
}

Value StepGraph::find(StringRef name) {
  if (index.empty()) {
    Block &block = graph.getBody().front();
    for (BlockArgument argument : block.getArguments())
      index[this->name(argument)] = argument;
    for (Operation &op : block)
      for (Value result : op.getResults())
        index[nameOf(result)] = result;
  }
  auto known = index.find(name);
  return known == index.end() ? Value() : known->second;
}

SmallVector<BlockArgument> StepGraph::batchInputs() {
  auto defaults = graph.getInfo().getAs<ArrayAttr>("defaults");
  SmallVector<BlockArgument> found;
  for (BlockArgument argument : graph.getBody().getArguments())
    if (!defaults || argument.getArgNumber() >= defaults.size() || !isa<TensorAttr>(defaults[argument.getArgNumber()]))
      found.push_back(argument);
  return found;
}

SmallVector<Value> StepGraph::outputs() {
  return llvm::to_vector(graph.getBody().front().getTerminator()->getOperands());
}

void StepGraph::setOutputs(ArrayRef<Value> values) { graph.getBody().front().getTerminator()->setOperands(values); }

void StepGraph::addOutput(Value value) {
  Operation *terminator = graph.getBody().front().getTerminator();
  terminator->insertOperands(terminator->getNumOperands(), value);
}

std::string StepGraph::name(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    size_t first = graph.getBody().getNumArguments() - added.size();
    if (argument.getArgNumber() >= first)
      return added[argument.getArgNumber() - first].first;
  }
  return nameOf(value).str();
}

Value StepGraph::addInput(StringRef name, TensorAttr initial, Type type) {
  added.emplace_back(name.str(), initial);
  return graph.getBody().addArgument(type, graph.getLoc());
}

std::string StepGraph::claim(StringRef name) {
  std::string own = names.unique(name);
  if (own != name)
    info.renamed.emplace_back(name.str(), own);
  return own;
}

Value StepGraph::addState(StringRef name, TensorAttr initial) {
  return addInput(claim(name), initial, withoutSymbols(initial.getType()));
}

Value StepGraph::addFilled(StringRef name, RankedTensorType type, double value) {
  TensorAttr &tensor = fills[{type, llvm::bit_cast<uint64_t>(value)}];
  if (!tensor)
    tensor = splatTensor(withoutSymbols(type), value);
  return addState(name, tensor);
}

Value StepGraph::promote(InitializerOp initializer) {
  std::string name = nameOf(initializer.getResult()).str();
  Value input = addInput(name, initializer.getValue(), initializer.getResult().getType());
  initializer.getResult().replaceAllUsesWith(input);
  initializer.erase();
  index[name] = input;
  return input;
}

Value StepGraph::named(Value value, StringRef name) {
  std::string own = names.unique(name);
  bool isFree = value.getDefiningOp() && !isa<InitializerOp>(value.getDefiningOp()) &&
                llvm::none_of(value.getUsers(), [](Operation *user) { return isa<ReturnOp>(user); });
  if (!isFree)
    value = b.node("Identity", {value});
  setName(value, own);
  index[own] = value;
  return value;
}

void StepGraph::update(Value input, Value next) {
  std::string from = name(input);
  next = named(next, from + ".next");
  info.state.emplace_back(from, nameOf(next).str());
  addOutput(next);
}

SmallVector<Value> StepGraph::gradients() {
  llvm::StringMap<Value> byName;
  for (Value output : outputs())
    byName[name(output)] = output;
  SmallVector<Value> found;
  for (const std::string &gradient : info.gradients)
    found.push_back(byName.lookup(gradient));
  return found;
}

void StepGraph::setGradients(ArrayRef<Value> replacements) {
  llvm::DenseMap<Value, Value> byOld;
  for (auto [before, after] : llvm::zip(gradients(), replacements))
    byOld[before] = after;
  SmallVector<Value> all = outputs();
  for (Value &value : all)
    if (auto found = byOld.find(value); found != byOld.end())
      value = found->second;
  setOutputs(all);
  info.gradients.clear();
  for (Value value : replacements)
    info.gradients.push_back(nameOf(value).str());
}

void StepGraph::finish() {
  info.store(graph);
  if (added.empty())
    return;
  MLIRContext *context = graph.getContext();
  DictionaryAttr facts = graph.getInfo();
  SmallVector<StringRef> inputs = stringsIn(facts, "inputs");
  SmallVector<Attribute> defaults(inputs.size(), UnitAttr::get(context));
  if (auto old = facts.getAs<ArrayAttr>("defaults"))
    defaults.assign(old.begin(), old.end());
  for (const auto &[name, initial] : added) {
    inputs.push_back(name);
    defaults.push_back(initial);
  }
  facts = withEntry(facts, "inputs", stringArray(context, inputs));
  graph.setInfoAttr(withEntry(facts, "defaults", ArrayAttr::get(context, defaults)));
  added.clear();
}

bool readsAny(Operation *op, const llvm::DenseSet<Value> &values) {
  return op
      ->walk([&](Operation *inner) {
        return WalkResult(failure(llvm::any_of(inner->getOperands(), [&](Value v) { return values.contains(v); })));
      })
      .wasInterrupted();
}

} // namespace recast::step
