#include "passes/step/StepInfo.h"
#include "ir/onnx/Node.h"

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
  info.parameters = list("parameters");
  info.gradients = list("gradients");
  info.metrics = list("metrics");
  std::vector<std::string> from = list("state"), to = list("next");
  for (size_t i = 0; i < from.size(); ++i)
    info.state.emplace_back(from[i], to[i]);
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
  list("parameters", parameters);
  list("gradients", gradients);
  list("metrics", metrics);
  std::vector<std::string> from, to;
  for (const auto &[input, next] : state) {
    from.push_back(input);
    to.push_back(next);
  }
  list("state", from);
  list("next", to);
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

SmallVector<Value> StepGraph::outputs() { return llvm::to_vector(graph.getBody().front().getTerminator()->getOperands()); }

void StepGraph::setOutputs(ArrayRef<Value> values) { graph.getBody().front().getTerminator()->setOperands(values); }

void StepGraph::addOutput(Value value) {
  SmallVector<Value> all = outputs();
  all.push_back(value);
  setOutputs(all);
}

Value StepGraph::addInput(StringRef name, TensorAttr initial, Type type) {
  Block &block = graph.getBody().front();
  DictionaryAttr graphFacts = graph.getInfo();
  MLIRContext *context = graph.getContext();
  SmallVector<StringRef> inputs = stringsIn(graphFacts, "inputs");
  SmallVector<Attribute> defaults(block.getNumArguments(), UnitAttr::get(context));
  if (auto old = graphFacts.getAs<ArrayAttr>("defaults"))
    defaults.assign(old.begin(), old.end());
  inputs.push_back(name);
  defaults.push_back(initial);
  graphFacts = withEntry(graphFacts, "inputs", stringArray(context, inputs));
  graphFacts = withEntry(graphFacts, "defaults", ArrayAttr::get(context, defaults));
  graph.setInfoAttr(graphFacts);
  return block.addArgument(type, graph.getLoc());
}

Value StepGraph::addState(StringRef name, TensorAttr initial) {
  return addInput(names.unique(name), initial, withoutSymbols(initial.getType()));
}

Value StepGraph::promote(InitializerOp initializer) {
  std::string name = nameOf(initializer.getResult()).str();
  Value input = addInput(name, initializer.getValue(), initializer.getResult().getType());
  initializer.getResult().replaceAllUsesWith(input);
  initializer.erase();
  return input;
}

Value StepGraph::named(Value value, StringRef name) {
  std::string own = names.unique(name);
  bool isFree = value.getDefiningOp() && !isa<InitializerOp>(value.getDefiningOp()) &&
                !llvm::is_contained(outputs(), value);
  if (!isFree)
    value = b.node("Identity", {value});
  setName(value, own);
  return value;
}

void StepGraph::update(Value input, Value next) {
  std::string from = nameOf(input).str();
  next = named(next, from + ".next");
  info.state.emplace_back(from, nameOf(next).str());
  addOutput(next);
}

SmallVector<Value> StepGraph::gradients() {
  llvm::StringMap<Value> byName;
  for (Value output : outputs())
    byName[nameOf(output)] = output;
  SmallVector<Value> found;
  for (const std::string &name : info.gradients)
    found.push_back(byName.lookup(name));
  return found;
}

void StepGraph::setGradients(ArrayRef<Value> replacements) {
  SmallVector<Value> old = gradients(), all = outputs();
  for (auto [before, after] : llvm::zip(old, replacements))
    llvm::replace(all, before, after);
  setOutputs(all);
  info.gradients.clear();
  for (Value value : replacements)
    info.gradients.push_back(nameOf(value).str());
}

void StepGraph::finish() { info.store(graph); }

} // namespace recast::step
