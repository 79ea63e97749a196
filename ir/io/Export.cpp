#include "ir/io/Export.h"
#include "ir/io/WireFormat.h"
#include "ir/onnx/AttrProto.h"
#include "ir/onnx/Builder.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::io {

namespace {

// The lowest IR version in which a model can hold functions with overloads.
constexpr int64_t kIrVersionOfOverloads = 10;
// The element type FLOAT8E8M0, and the opset with it.
constexpr int64_t kIrVersionOfE8M0 = 12, kOpsetOfE8M0 = 24;

// Of the arena that a model is built in.
constexpr size_t kLargestBlockBytes = size_t(1) << 20;

// [domain, version], and a third element where the domain's field stays out.
void exportOpset(ArrayAttr entry, onnx::OperatorSetIdProto &import) {
  if (entry.size() == 2)
    import.set_domain(cast<StringAttr>(entry[0]).str());
  import.set_version(cast<IntegerAttr>(entry[1]).getInt());
}

class Exporter {
public:
  Exporter(ModuleOp module, bool keepExternal) : module(module), keepExternal(keepExternal) {}
  FailureOr<ExportedModel> run();

private:
  LogicalResult exportGraph(Region &region, onnx::GraphProto &graph);
  void exportHiddenTypes(Block &block, onnx::GraphProto &graph);
  LogicalResult exportFunction(FunctionOp function, onnx::FunctionProto &proto);
  LogicalResult exportNode(Operation *op, onnx::NodeProto &node);
  LogicalResult exportBlock(Block &block, google::protobuf::RepeatedPtrField<onnx::NodeProto> *nodes);
  void exportValueInfo(Value value, Type type, StringRef original, onnx::ValueInfoProto &info);
  void exportTensor(TensorAttr tensor, onnx::TensorProto &proto);
  FailureOr<std::string> overloadFor(Operation *op);
  std::string name(Value value);

  ModuleOp module;
  bool keepExternal;
  ExportedModel result;
  llvm::DenseMap<Operation *, std::unique_ptr<NameScope>> scopes;
  llvm::DenseMap<Attribute, llvm::DenseMap<Attribute, std::string>> overloads; ///< operator -> call key -> overload
  SmallVector<FunctionOp> bodies;                                              ///< of dialect train, erased at the end
};

std::string Exporter::name(Value value) {
  if (auto mark = value.getDefiningOp<train::MarkScaledOp>())
    return name(mark->getOperand(0));
  if (isAbsent(value))
    return "";
  StringRef given = nameOf(value);
  if (!given.empty())
    return given.str();
  Operation *scope = value.getParentRegion()->getParentOp();
  while (!isa<GraphOp, FunctionOp>(scope))
    scope = scope->getParentOp();
  auto &names = scopes[scope];
  if (!names)
    names = std::make_unique<NameScope>(scope);
  setName(value, names->unique("value"));
  return nameOf(value).str();
}

void Exporter::exportTensor(TensorAttr tensor, onnx::TensorProto &proto) {
  DictionaryAttr extra = tensor.getExtra();
  auto encoding = extra.getAs<StringAttr>("encoding");
  ArrayRef<char> bytes = rawBytes(tensor);
  bool refer = keepExternal && extra.get("external");
  if (!encoding && !isa<ArrayAttr>(tensor.getPayload()) && (refer || wantsToken(bytes))) {
    proto.set_data_type(elementTypeToOnnx(tensor.getType().getElementType()));
    proto.mutable_dims()->Add(tensor.getType().getShape().begin(), tensor.getType().getShape().end());
    if (auto own = extra.getAs<StringAttr>("name"))
      proto.set_name(own.str());
    if (auto rest = extra.getAs<DictionaryAttr>("rest"))
      applyRest(rest, proto);
    result.hasExternal |= refer;
    if (!refer) {
      proto.set_raw_data(encodeToken({result.tensors.size(), 0}));
      result.tensors.push_back(bytes);
      result.holders.push_back(&proto);
    }
  } else {
    tensorToOnnx(tensor, proto);
    if (encoding && encoding.getValue() == "none")
      proto.clear_raw_data();
  }
  if (extra.get("external") && !refer) {
    proto.clear_external_data();
    proto.clear_data_location();
  }
}

void Exporter::exportValueInfo(Value value, Type type, StringRef original, onnx::ValueInfoProto &info) {
  if (!original.empty()) {
    info.ParseFromArray(original.data(), static_cast<int>(original.size()));
    return;
  }
  info.set_name(name(value));
  if (isUnknown(type))
    return;
  typeToOnnx(type, *info.mutable_type());
}

// One function body for each distinct call of an operator of dialect train: same attributes, same operand types.
FailureOr<std::string> Exporter::overloadFor(Operation *op) {
  MLIRContext *context = op->getContext();
  OpBuilder b(context);
  Node node(op);
  NamedAttrList own;
  for (NamedAttribute attr : op->getAttrs())
    if (!attr.getName().strref().starts_with("onnx."))
      own.push_back(attr);
  SmallVector<Attribute> key{own.getDictionary(context), b.getI64IntegerAttr(op->getNumResults())};
  for (Value operand : op->getOperands()) {
    auto scaled = dyn_cast<train::ScaledType>(operand.getType());
    key.push_back(TypeAttr::get(scaled ? scaled.getTensor() : operand.getType()));
    // Bodies may read constant operands (shapes, axes).
    TensorAttr constant = constantOf(operand);
    bool isSmallInt = constant && constant.getType().getElementType().isInteger(64) &&
                      constant.getType().getNumElements() <= kInlineElems;
    key.push_back(isSmallInt ? Attribute(constant.getPayload()) : Attribute(b.getUnitAttr()));
  }
  auto &known = overloads[b.getStringAttr(node.opType())];
  auto [slot, isNew] = known.try_emplace(b.getArrayAttr(key));
  if (!isNew)
    return slot->second;
  slot->second = "v" + std::to_string(known.size()); // an identifier, as the text form asks for
  std::string overload = slot->second;

  SmallVector<std::string> inputs, outputs;
  for (unsigned i = 0; i < op->getNumOperands(); ++i)
    inputs.push_back("x" + std::to_string(i));
  for (unsigned i = 0; i < op->getNumResults(); ++i)
    outputs.push_back("y" + std::to_string(i));
  auto strings = [&](const SmallVector<std::string> &list) {
    return stringArray(context, SmallVector<StringRef>(list.begin(), list.end()));
  };
  SmallVector<StringRef> attributes;
  for (NamedAttribute attr : own)
    attributes.push_back(attr.getName().strref());
  NamedAttrList info;
  info.set("name", b.getStringAttr(node.opType()));
  info.set("domain", b.getStringAttr("recast"));
  info.set("overload", b.getStringAttr(overload));
  info.set("inputs", strings(inputs));
  info.set("opsets",
           b.getArrayAttr({b.getArrayAttr({b.getStringAttr(""), b.getI64IntegerAttr(opsetVersion(op, ""))})}));
  if (!attributes.empty())
    info.set("rest", b.getDictionaryAttr(b.getNamedAttr("attribute", stringArray(context, attributes))));
  b.setInsertionPointToStart(module.getBody());
  auto function = FunctionOp::create(b, b.getUnknownLoc(), info.getDictionary(context));
  bodies.push_back(function);
  Block &block = function.getBody().emplaceBlock();
  SmallVector<Value> arguments;
  for (Value operand : op->getOperands()) {
    auto scaled = dyn_cast<train::ScaledType>(operand.getType());
    Value argument = block.addArgument(scaled ? scaled.getTensor() : operand.getType(), b.getUnknownLoc());
    arguments.push_back(isAbsent(operand) ? Value() : argument);
  }
  NameScope scope(function);
  TypeInference types;
  NodeBuilder builder(function, scope, types);
  // Constant operands are known inside: a body that needs their values reads them from constants of its own.
  for (auto [argument, operand] : llvm::zip(arguments, op->getOperands()))
    if (TensorAttr constant = constantOf(operand); argument && constant &&
                                                   constant.getType().getElementType().isInteger(64) &&
                                                   constant.getType().getNumElements() <= kInlineElems)
      argument = builder.constant(
          TensorAttr::get(context, withoutSymbols(constant.getType()), constant.getPayload(), b.getDictionaryAttr({})));
  SmallVector<Value> values;
  std::string fault; // names a node of the body, which nobody knows
  {
    ScopedDiagnosticHandler handler(context, [&](Diagnostic &diagnostic) {
      if (fault.empty())
        fault = diagnostic.str();
    });
    if (succeeded(train::buildBody(node, builder, arguments, values)) && !builder.failed())
      fault.clear();
    else if (fault.empty())
      fault = "its operands do not fit";
  }
  if (!fault.empty())
    return op->emitError() << "node " << node.describe() << ": " << fault;
  // Outputs need names of their own: an argument or a value twice goes through Identity.
  llvm::SmallPtrSet<Value, 8> used;
  for (Value &value : values)
    if (isa<BlockArgument>(value) || !used.insert(value).second)
      value = builder.node("Identity", {value});
  b.setInsertionPointToEnd(&block);
  ReturnOp::create(b, b.getUnknownLoc(), values);
  function.setInfoAttr(withEntry(function.getInfo(), "outputs",
                                 stringArray(context, llvm::map_to_vector(values, [](Value v) { return nameOf(v); }))));
  return overload;
}

LogicalResult Exporter::exportNode(Operation *op, onnx::NodeProto &proto) {
  Node node(op);
  for (Value operand : op->getOperands())
    proto.add_input(name(operand));
  for (Value output : op->getResults())
    proto.add_output(name(output));
  proto.set_op_type(node.opType().str());
  if (auto label = op->getAttrOfType<StringAttr>("onnx.name"))
    proto.set_name(label.str());
  if (auto domain = op->getAttrOfType<StringAttr>("onnx.domain"); domain && !domain.getValue().empty())
    proto.set_domain(domain.str());
  if (auto overload = op->getAttrOfType<StringAttr>("onnx.overload"))
    proto.set_overload(overload.str());
  if (op->getName().getDialectNamespace() == "train") {
    proto.set_domain("recast");
    auto overload = overloadFor(op);
    if (failed(overload))
      return failure();
    proto.set_overload(*overload);
  }

  SmallVector<StringRef> order = stringsIn(op->getAttrDictionary(), "onnx.attr_order");
  llvm::StringMap<int> bodies;
  auto graphs = op->getAttrOfType<ArrayAttr>("onnx.graphs");
  for (unsigned i = 0; i < op->getNumRegions(); ++i)
    bodies[cast<DictionaryAttr>(graphs[i]).getAs<StringAttr>("attribute").getValue()] = static_cast<int>(i);
  auto emit = [&](NamedAttribute attr) {
    onnx::AttributeProto &out = *proto.add_attribute();
    if (!attrToOnnx(attr, out, [&](TensorAttr tensor, onnx::TensorProto &data) { exportTensor(tensor, data); }))
      proto.mutable_attribute()->RemoveLast();
  };
  auto emitBody = [&](StringRef name) {
    onnx::AttributeProto &out = *proto.add_attribute();
    out.set_name(name.str());
    out.set_type(onnx::AttributeProto::GRAPH);
    return exportGraph(op->getRegion(bodies[name]), *out.mutable_g());
  };
  if (order.empty()) {
    SmallVector<StringRef> all(bodies.keys());
    for (NamedAttribute attr : op->getAttrs())
      if (!attr.getName().strref().starts_with("onnx."))
        all.push_back(attr.getName().strref());
    llvm::sort(all);
    order = all;
  }
  for (StringRef attribute : order) {
    if (bodies.contains(attribute)) {
      if (failed(emitBody(attribute)))
        return failure();
    } else if (Attribute value = op->getAttr(attribute)) {
      emit(NamedAttribute(StringAttr::get(op->getContext(), attribute), value));
    }
  }
  // Attributes that a pass added after the order was recorded.
  for (NamedAttribute attr : op->getAttrs())
    if (!attr.getName().strref().starts_with("onnx.") && !llvm::is_contained(order, attr.getName().strref()))
      emit(attr);
  if (auto rest = op->getAttrOfType<DictionaryAttr>("onnx.rest"))
    applyRest(rest, proto);
  return success();
}

LogicalResult Exporter::exportBlock(Block &block, google::protobuf::RepeatedPtrField<onnx::NodeProto> *nodes) {
  for (Operation &op : block)
    if (isNode(&op) && !isa<train::MarkScaledOp>(op) && failed(exportNode(&op, *nodes->Add())))
      return failure();
  return success();
}

// The body of a barrier hides the shape of what passes, so that nothing is folded across it; the graph says it.
void Exporter::exportHiddenTypes(Block &block, onnx::GraphProto &graph) {
  auto barriers = block.getOps<train::BarrierOp>();
  if (barriers.empty())
    return;
  llvm::StringSet<> known;
  for (const onnx::ValueInfoProto &info : graph.value_info())
    known.insert(info.name());
  for (Operation *op : barriers)
    for (Value result : op->getResults())
      if (!known.contains(name(result)))
        exportValueInfo(result, result.getType(), "", *graph.add_value_info());
}

LogicalResult Exporter::exportGraph(Region &region, onnx::GraphProto &graph) {
  Block &block = region.front();
  DictionaryAttr info = graphInfo(region);
  auto strings = [&](StringRef key, size_t i) {
    auto list = info.getAs<ArrayAttr>(key);
    return list && i < list.size() ? cast<StringAttr>(list[i]).getValue() : StringRef();
  };
  for (BlockArgument argument : block.getArguments())
    exportValueInfo(argument, argument.getType(), strings("input_protos", argument.getArgNumber()), *graph.add_input());
  auto declaredTypes = info.getAs<ArrayAttr>("output_types");
  for (auto [i, value] : llvm::enumerate(block.getTerminator()->getOperands())) {
    Type type =
        declaredTypes && i < declaredTypes.size() ? cast<TypeAttr>(declaredTypes[i]).getValue() : value.getType();
    onnx::ValueInfoProto &output = *graph.add_output();
    exportValueInfo(value, type, strings("output_protos", i), output);
    // ONNX's checker wants a shape on outputs of the main graph, even an unknown one.
    if (!declaredTypes && output.type().has_tensor_type())
      output.mutable_type()->mutable_tensor_type()->mutable_shape();
  }
  SmallVector<std::pair<std::string, TensorAttr>> initializers;
  for (auto op : block.getOps<InitializerOp>()) {
    if (auto sparse = dyn_cast<StringAttr>(op.getValue().getPayload()))
      graph.add_sparse_initializer()->ParseFromArray(sparse.data(), static_cast<int>(sparse.size()));
    else
      initializers.emplace_back(name(op.getResult()), op.getValue());
  }
  if (auto defaults = info.getAs<ArrayAttr>("defaults"))
    for (auto [argument, value] : llvm::zip(block.getArguments(), defaults))
      if (auto tensor = dyn_cast<TensorAttr>(value))
        initializers.emplace_back(nameOf(argument).str(), tensor);
  if (SmallVector<StringRef> order = stringsIn(info, "initializer_order"); !order.empty()) {
    // The file's order; initializers that are new keep theirs, behind.
    llvm::StringMap<size_t> position;
    for (auto [i, key] : llvm::enumerate(order))
      position[key] = i;
    for (auto &entry : initializers)
      position.try_emplace(entry.first, position.size());
    llvm::sort(initializers, [&](const auto &a, const auto &b) { return position[a.first] < position[b.first]; });
  }
  for (auto &[label, tensor] : initializers) {
    onnx::TensorProto &proto = *graph.add_initializer();
    exportTensor(tensor, proto);
    proto.set_name(label);
  }
  if (failed(exportBlock(block, graph.mutable_node())))
    return failure();
  if (auto cache = info.getAs<StringAttr>("value_info")) {
    onnx::GraphProto saved;
    saved.ParseFromArray(cache.data(), static_cast<int>(cache.size()));
    *graph.mutable_value_info() = saved.value_info();
  }
  exportHiddenTypes(block, graph);
  if (auto rest = info.getAs<DictionaryAttr>("rest"))
    applyRest(rest, graph);
  return success();
}

LogicalResult Exporter::exportFunction(FunctionOp function, onnx::FunctionProto &proto) {
  DictionaryAttr info = function.getInfo();
  if (auto rest = info.getAs<DictionaryAttr>("rest"))
    applyRest(rest, proto);
  auto text = [&](StringRef key) { return info.getAs<StringAttr>(key).str(); };
  proto.set_name(text("name"));
  for (StringRef input : stringsIn(info, "inputs"))
    proto.add_input(input.str());
  for (StringRef output : stringsIn(info, "outputs"))
    proto.add_output(output.str());
  for (Attribute entry : info.getAs<ArrayAttr>("opsets")) {
    auto &import = *proto.add_opset_import();
    exportOpset(cast<ArrayAttr>(entry), import);
  }
  proto.set_domain(text("domain"));
  if (!text("overload").empty())
    proto.set_overload(text("overload"));
  return exportBlock(function.getBody().front(), proto.mutable_node());
}

FailureOr<ExportedModel> Exporter::run() {
  google::protobuf::ArenaOptions blocks;
  blocks.max_block_size = kLargestBlockBytes;
  result.arena = std::make_unique<google::protobuf::Arena>(blocks);
  result.proto = google::protobuf::Arena::CreateMessage<onnx::ModelProto>(result.arena.get());
  onnx::ModelProto &model = *result.proto;
  if (auto rest = module->getAttrOfType<DictionaryAttr>("onnx.rest"))
    applyRest(rest, model);
  bool hasRecastDomain = false;
  for (Attribute entry : module->getAttrOfType<ArrayAttr>("onnx.opsets")) {
    auto &import = *model.add_opset_import();
    exportOpset(cast<ArrayAttr>(entry), import);
    hasRecastDomain |= import.domain() == "recast";
  }
  if (auto metadata = module->getAttrOfType<ArrayAttr>("onnx.metadata"))
    for (Attribute entry : metadata) {
      auto &prop = *model.add_metadata_props();
      prop.set_key(cast<StringAttr>(cast<ArrayAttr>(entry)[0]).str());
      prop.set_value(cast<StringAttr>(cast<ArrayAttr>(entry)[1]).str());
    }
  GraphOp graph = mainGraph(module);
  auto own = llvm::to_vector(module.getOps<FunctionOp>());
  LogicalResult done = exportGraph(graph.getBody(), *model.mutable_graph());
  for (FunctionOp function : own)
    if (succeeded(done))
      done = exportFunction(function, *model.add_functions());
  for (FunctionOp function : bodies) {
    if (succeeded(done))
      done = exportFunction(function, *model.add_functions());
  }
  if (!bodies.empty()) {
    if (!hasRecastDomain) {
      auto &import = *model.add_opset_import();
      import.set_domain("recast");
      import.set_version(1);
    }
    bool hasE8M0 = opsetVersion(&graph.getBody().front().front(), "") >= kOpsetOfE8M0;
    model.set_ir_version(std::max<int64_t>(model.ir_version(), hasE8M0 ? kIrVersionOfE8M0 : kIrVersionOfOverloads));
  }
  for (FunctionOp function : bodies)
    function.erase();
  return failed(done) ? FailureOr<ExportedModel>(failure()) : std::move(result);
}

} // namespace

FailureOr<ExportedModel> exportModel(ModuleOp module, bool keepExternal) {
  return Exporter(module, keepExternal).run();
}

} // namespace recast::io
