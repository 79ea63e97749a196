#include "ir/onnx/Node.h"
#include "ir/onnx/IntendedValue.h"
#include "mlir/IR/Builders.h"

using namespace mlir;
namespace recast::onnx_ir {

bool isNode(Operation *op) { return isa<NodeInterface>(op); }

StringRef Node::opType() const {
  if (isa<NodeGenericOp>(op))
    if (auto type = op->getAttrOfType<StringAttr>("onnx.op_type"))
      return type.getValue();
  return op->getName().stripDialect();
}

StringRef Node::domain() const {
  if (isa<NodeGenericOp>(op))
    if (auto domain = op->getAttrOfType<StringAttr>("onnx.domain"))
      return normalDomain(domain.getValue());
  return op->getName().getDialectNamespace() == "train" ? "recast" : "";
}

StringRef Node::name() const {
  auto name = op->getAttrOfType<StringAttr>("onnx.name");
  return name ? name.getValue() : StringRef();
}

std::string Node::describe() const {
  StringRef label = name();
  for (Value result : op->getResults())
    if (label.empty())
      label = nameOf(result);
  return ("'" + label + "' (" + (domain().empty() ? "" : domain() + "::") + opType() + ")").str();
}

int64_t Node::getInt(StringRef name, int64_t fallback) const {
  auto attr = op->getAttrOfType<IntegerAttr>(name);
  return attr ? attr.getInt() : fallback;
}

double Node::getFloat(StringRef name, double fallback) const {
  auto attr = op->getAttrOfType<FloatAttr>(name);
  return attr ? intendedValue(static_cast<float>(attr.getValueAsDouble())) : fallback;
}

StringRef Node::getString(StringRef name, StringRef fallback) const {
  auto attr = op->getAttrOfType<StringAttr>(name);
  return attr ? attr.getValue() : fallback;
}

std::optional<SmallVector<int64_t>> Node::getInts(StringRef name) const {
  auto attr = op->getAttrOfType<DenseI64ArrayAttr>(name);
  if (!attr)
    return std::nullopt;
  return SmallVector<int64_t>(attr.asArrayRef());
}

static int64_t findOpset(ArrayAttr opsets, StringRef domain) {
  if (opsets)
    for (Attribute entry : opsets) {
      auto pair = cast<ArrayAttr>(entry);
      if (normalDomain(cast<StringAttr>(pair[0]).getValue()) == domain)
        return cast<IntegerAttr>(pair[1]).getInt();
    }
  return 0;
}

int64_t opsetVersion(Operation *op, StringRef domain) {
  for (Operation *at = op; at; at = at->getParentOp()) {
    if (auto function = dyn_cast<FunctionOp>(at))
      return findOpset(function.getInfo().getAs<ArrayAttr>("opsets"), domain);
    if (auto module = dyn_cast<ModuleOp>(at))
      return findOpset(module->getAttrOfType<ArrayAttr>("onnx.opsets"), domain);
  }
  return 0;
}

int64_t Node::opset() const { return opsetVersion(op, domain()); }

const onnx::OpSchema *Node::schema() const {
  int64_t version = opset();
  if (version == 0)
    return nullptr;
  return onnx::OpSchemaRegistry::Schema(opType().str(), static_cast<int>(version), domain().str());
}

int64_t Node::sinceVersion() const {
  const onnx::OpSchema *found = schema();
  return found ? found->SinceVersion() : 1;
}

SmallVector<StringRef> stringsIn(DictionaryAttr dict, StringRef key) {
  SmallVector<StringRef> strings;
  if (auto array = dict ? dict.getAs<ArrayAttr>(key) : ArrayAttr())
    for (Attribute item : array)
      strings.push_back(cast<StringAttr>(item).getValue());
  return strings;
}

ArrayAttr stringArray(MLIRContext *context, ArrayRef<StringRef> strings) {
  return Builder(context).getStrArrayAttr(strings);
}

DictionaryAttr graphInfo(Region &region) {
  Operation *parent = region.getParentOp();
  if (auto graph = dyn_cast<GraphOp>(parent))
    return graph.getInfo();
  if (auto function = dyn_cast<FunctionOp>(parent))
    return function.getInfo();
  auto graphs = parent->getAttrOfType<ArrayAttr>("onnx.graphs");
  return graphs ? cast<DictionaryAttr>(graphs[region.getRegionNumber()]) : DictionaryAttr();
}

void setGraphInfo(Region &region, DictionaryAttr info) {
  Operation *parent = region.getParentOp();
  if (auto graph = dyn_cast<GraphOp>(parent)) {
    graph.setInfoAttr(info);
  } else if (auto function = dyn_cast<FunctionOp>(parent)) {
    function.setInfoAttr(info);
  } else {
    SmallVector<Attribute> graphs(parent->getAttrOfType<ArrayAttr>("onnx.graphs").getValue());
    graphs[region.getRegionNumber()] = info;
    parent->setAttr("onnx.graphs", ArrayAttr::get(parent->getContext(), graphs));
  }
}

DictionaryAttr withEntry(DictionaryAttr dict, StringRef key, Attribute value) {
  NamedAttrList list(dict);
  if (value)
    list.set(key, value);
  else
    list.erase(key);
  return list.getDictionary(dict.getContext());
}

StringRef nameOf(Value value) {
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    DictionaryAttr info = graphInfo(*argument.getOwner()->getParent());
    auto names = info ? info.getAs<ArrayAttr>("inputs") : ArrayAttr();
    return names && argument.getArgNumber() < names.size() ? cast<StringAttr>(names[argument.getArgNumber()]).getValue()
                                                           : StringRef();
  }
  auto result = cast<OpResult>(value);
  auto names = result.getOwner()->getAttrOfType<ArrayAttr>("onnx.outputs");
  return names && result.getResultNumber() < names.size() ? cast<StringAttr>(names[result.getResultNumber()]).getValue()
                                                          : StringRef();
}

void setName(Value value, StringRef name) {
  MLIRContext *context = value.getContext();
  auto replace = [&](ArrayAttr old, size_t count, size_t at) {
    SmallVector<Attribute> names(count, StringAttr::get(context, ""));
    if (old)
      std::copy_n(old.begin(), std::min(old.size(), count), names.begin());
    names[at] = StringAttr::get(context, name);
    return ArrayAttr::get(context, names);
  };
  if (auto argument = dyn_cast<BlockArgument>(value)) {
    Region &region = *argument.getOwner()->getParent();
    DictionaryAttr info = graphInfo(region);
    setGraphInfo(region, withEntry(info, "inputs",
                                   replace(info.getAs<ArrayAttr>("inputs"), argument.getOwner()->getNumArguments(),
                                           argument.getArgNumber())));
    return;
  }
  auto result = cast<OpResult>(value);
  Operation *op = result.getOwner();
  op->setAttr("onnx.outputs",
              replace(op->getAttrOfType<ArrayAttr>("onnx.outputs"), op->getNumResults(), result.getResultNumber()));
}

GraphOp mainGraph(ModuleOp module) {
  for (GraphOp graph : module.getOps<GraphOp>())
    return graph;
  return {};
}

void forgetDeclaredTypes(GraphOp graph) {
  DictionaryAttr info = graph.getInfo();
  for (StringRef key : {"value_info", "output_protos", "output_types", "input_protos"})
    info = withEntry(info, key, nullptr);
  graph.setInfoAttr(info);
}

std::string getMetadata(ModuleOp module, StringRef key) {
  if (auto props = module->getAttrOfType<ArrayAttr>("onnx.metadata"))
    for (Attribute entry : props)
      if (auto pair = cast<ArrayAttr>(entry); cast<StringAttr>(pair[0]).getValue() == key)
        return cast<StringAttr>(pair[1]).getValue().str();
  return {};
}

void setMetadata(ModuleOp module, StringRef key, StringRef value) {
  SmallVector<Attribute> entries;
  if (auto props = module->getAttrOfType<ArrayAttr>("onnx.metadata"))
    for (Attribute entry : props)
      if (cast<StringAttr>(cast<ArrayAttr>(entry)[0]).getValue() != key)
        entries.push_back(entry);
  entries.push_back(stringArray(module.getContext(), {key, value}));
  module->setAttr("onnx.metadata", ArrayAttr::get(module.getContext(), entries));
}

} // namespace recast::onnx_ir
