#include "ir/io/Import.h"
#include "ir/io/CheckNames.h"
#include "ir/onnx/AttrProto.h"
#include "ir/onnx/CheckOperands.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TypeInference.h"
#include "ir/train/Dialect.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Diagnostics.h"
#include "llvm/ADT/StringSet.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::io {

namespace {

// Values by name; the names of enclosing graphs are visible in bodies.
struct Scope {
  llvm::StringMap<Value> values;
  const Scope *parent = nullptr;

  Value find(StringRef name) const {
    for (const Scope *at = this; at; at = at->parent)
      if (auto found = at->values.find(name); found != at->values.end())
        return found->second;
    return {};
  }
};

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using ValueInfos = google::protobuf::RepeatedPtrField<onnx::ValueInfoProto>;
using Types = llvm::StringMap<Type>;

class Importer {
public:
  Importer(MLIRContext &context, const onnx::ModelProto &model, TensorReader &tensors, const std::string &path,
           const LoadOptions &options)
      : context(context), b(&context), model(model), tensors(tensors), path(path), options(options) {}

  OwningOpRef<ModuleOp> run();

private:
  InFlightDiagnostic error() { return emitError(UnknownLoc::get(&context)) << path << ": "; }
  InFlightDiagnostic error(const onnx::NodeProto &node) { return error() << "node " << describe(node) << ": "; }
  static std::string describe(const onnx::NodeProto &node);

  /// Where training_info is kept as it is, so are the functions that it calls.
  bool readsTrainOps() const { return model.training_info_size() == 0; }
  LogicalResult checkOpsets();
  LogicalResult checkCalls();
  LogicalResult importFunction(const onnx::FunctionProto &function);
  LogicalResult importGraph(const onnx::GraphProto &graph, Region &region, const Scope *outer, bool isMain);
  LogicalResult importInitializers(const onnx::GraphProto &graph, Scope &scope, llvm::StringMap<TensorAttr> &defaults);
  LogicalResult importNodes(const Nodes &nodes, const Types &declared, Scope &scope);
  Operation *importNode(const onnx::NodeProto &node, ArrayRef<Value> operands, const Types &declared, Scope &scope);
  FailureOr<OperationName> operationFor(const onnx::NodeProto &node, OperationState &state);
  LogicalResult checkSchema(const onnx::NodeProto &node, Operation *op);
  LogicalResult reportUndefined(const onnx::NodeProto &node, StringRef name, const Nodes &nodes);
  LogicalResult define(Scope &scope, StringRef name, Value value, const onnx::NodeProto *node);
  ArrayAttr originalProtos(const ValueInfos &infos);
  Attribute opsetImport(const onnx::OperatorSetIdProto &import);
  Value absent();

  MLIRContext &context;
  OpBuilder b;
  const onnx::ModelProto &model;
  TensorReader &tensors;
  const std::string &path;
  const LoadOptions &options;
  TypeInference types;
  Block *topBlock = nullptr; ///< Of the graph or function being read: `onnx.absent` goes to its start.
  Value absentValue;
  bool isFunctionBody = false;
  llvm::StringSet<> functions; ///< "domain|name|overload" of the model's local functions.
};

std::string functionKey(StringRef domain, StringRef name, StringRef overload) {
  return (normalDomain(domain) + "|" + name + "|" + overload).str();
}

std::string Importer::describe(const onnx::NodeProto &node) {
  std::string label = node.name();
  for (int i = 0; label.empty() && i < node.output_size(); ++i)
    label = node.output(i);
  return "'" + label + "' (" + (node.domain().empty() ? "" : node.domain() + "::") + node.op_type() + ")";
}

LogicalResult Importer::checkOpsets() {
  if (model.opset_import_size() == 0)
    return error() << "imports no operator set: opset_import is empty";
  const auto &known = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  for (const auto &import : model.opset_import()) {
    auto range = known.find(normalDomain(import.domain()).str());
    if (range == known.end() || options.allowUnknown)
      continue;
    if (import.version() > range->second.second || import.version() < 1)
      return error() << "imports opset " << import.version() << " of the domain '" << import.domain()
                     << "', of which versions up to " << range->second.second
                     << " are known (--allow-unknown keeps such nodes as they are)";
  }
  return success();
}

// A function may call others, but no chain of calls may come back to it, be deeper than ONNX's checker allows, or make
// more nodes than a model may have.
LogicalResult Importer::checkCalls() {
  constexpr int kDeepest = 100;
  constexpr uint64_t kMostNodes = 10'000'000;
  llvm::StringMap<const onnx::FunctionProto *> byKey;
  for (const auto &function : model.functions())
    byKey[functionKey(function.domain(), function.name(), function.overload())] = &function;
  llvm::StringMap<int> state;      // 1: on the current chain, 2: done
  llvm::StringMap<uint64_t> sizes; // nodes of a call, inner ones included
  int depth = 0;
  std::function<LogicalResult(const Nodes &, uint64_t &)> walk;
  std::function<LogicalResult(StringRef)> visit = [&](StringRef key) -> LogicalResult {
    if (state[key] == 2)
      return success();
    const onnx::FunctionProto &function = *byKey[key];
    if (state[key] == 1)
      return error() << "the local function '" << function.name() << "' of the domain '" << function.domain()
                     << "' is recursive: it calls itself";
    state[key] = 1;
    if (++depth > kDeepest)
      return error() << "the local function '" << function.name() << "' of the domain '" << function.domain()
                     << "' is called through more than " << kDeepest << " others";
    uint64_t size = 0;
    if (failed(walk(function.node(), size)))
      return failure();
    --depth;
    state[key] = 2;
    sizes[key] = size;
    return success();
  };
  walk = [&](const Nodes &nodes, uint64_t &size) -> LogicalResult {
    for (const auto &node : nodes) {
      std::string callee = functionKey(node.domain(), node.op_type(), node.overload());
      bool isCall = byKey.contains(callee);
      if (isCall && failed(visit(callee)))
        return failure();
      size += isCall ? sizes[callee] : 1;
      for (const auto &attribute : node.attribute())
        if (attribute.has_g() && failed(walk(attribute.g().node(), size)))
          return failure();
      if (size > kMostNodes)
        return error(node) << "calls of local functions make more than " << kMostNodes << " nodes of the model";
    }
    return success();
  };
  uint64_t size = 0;
  for (const auto &entry : byKey)
    if (failed(visit(entry.getKey())))
      return failure();
  return walk(model.graph().node(), size);
}

OwningOpRef<ModuleOp> Importer::run() {
  OwningOpRef<ModuleOp> module = ModuleOp::create(b.getUnknownLoc());
  if (!model.has_graph()) {
    error() << "holds no graph: it is no ONNX model";
    return nullptr;
  }
  if (std::string name = nameThatIsNoText(model); !name.empty()) {
    error() << name << " is no UTF-8: export the model with other names";
    return nullptr;
  }
  if (failed(checkOpsets()) || failed(checkCalls()))
    return nullptr;

  SmallVector<Attribute> opsets, metadata;
  for (const auto &import : model.opset_import())
    opsets.push_back(opsetImport(import));
  (*module)->setAttr("onnx.opsets", b.getArrayAttr(opsets));
  for (const auto &entry : model.metadata_props())
    metadata.push_back(stringArray(&context, {entry.key(), entry.value()}));
  if (!metadata.empty())
    (*module)->setAttr("onnx.metadata", b.getArrayAttr(metadata));
  if (DictionaryAttr rest =
          messageRest(&context, model,
                      {onnx::ModelProto::kGraphFieldNumber, onnx::ModelProto::kOpsetImportFieldNumber,
                       onnx::ModelProto::kMetadataPropsFieldNumber, onnx::ModelProto::kFunctionsFieldNumber}))
    (*module)->setAttr("onnx.rest", rest);

  for (const auto &function : model.functions())
    functions.insert(functionKey(function.domain(), function.name(), function.overload()));
  for (const auto &function : model.functions()) {
    b.setInsertionPointToEnd(module->getBody());
    if (failed(importFunction(function)))
      return nullptr;
  }
  b.setInsertionPointToEnd(module->getBody());
  auto graph = GraphOp::create(b, b.getUnknownLoc(), b.getDictionaryAttr({}));
  isFunctionBody = false;
  if (failed(importGraph(model.graph(), graph.getBody(), nullptr, /*isMain=*/true)))
    return nullptr;
  return module;
}

Value Importer::absent() {
  if (!absentValue) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(topBlock);
    absentValue = AbsentOp::create(b, b.getUnknownLoc(), AbsentType::get(&context));
  }
  return absentValue;
}

LogicalResult Importer::define(Scope &scope, StringRef name, Value value, const onnx::NodeProto *node) {
  if (scope.values.try_emplace(name, value).second)
    return success();
  if (!node)
    return error() << "the name '" << name << "' is given to two inputs or initializers of one graph";
  Operation *earlier = scope.values[name].getDefiningOp();
  StringRef what = !earlier ? "a graph input" : isa<InitializerOp>(earlier) ? "an initializer" : "an earlier node";
  return error(*node) << "its output '" << name << "' has the name of " << what << "; names are defined once";
}

LogicalResult Importer::importFunction(const onnx::FunctionProto &function) {
  // Functions of recast's own domain are operators of dialect train; the exporter writes their bodies anew.
  if (readsTrainOps() && function.domain() == "recast" && train::isTrainOp(&context, function.name()))
    return success();
  isFunctionBody = true;
  auto strings = [&](const auto &field) {
    return stringArray(&context, SmallVector<StringRef>(field.begin(), field.end()));
  };
  SmallVector<Attribute> opsets;
  for (const auto &import : function.opset_import())
    opsets.push_back(opsetImport(import));
  NamedAttrList info;
  info.set("name", b.getStringAttr(function.name()));
  info.set("domain", b.getStringAttr(function.domain()));
  info.set("overload", b.getStringAttr(function.overload()));
  info.set("inputs", strings(function.input()));
  info.set("outputs", strings(function.output()));
  info.set("opsets", b.getArrayAttr(opsets));
  NamedAttrList defaults;
  for (const auto &attribute : function.attribute_proto())
    if (!attribute.has_g())
      if (Attribute value = attrFromOnnx(&context, attribute, [&](const onnx::TensorProto &tensor) {
            auto read = tensors.read(tensor, /*dropName=*/false);
            return read ? *read : (llvm::consumeError(read.takeError()), TensorAttr());
          }))
        defaults.set(attribute.name(), value);
  if (!defaults.empty())
    info.set("defaults", defaults.getDictionary(&context));
  if (DictionaryAttr rest =
          messageRest(&context, function,
                      {onnx::FunctionProto::kInputFieldNumber, onnx::FunctionProto::kOutputFieldNumber,
                       onnx::FunctionProto::kNodeFieldNumber, onnx::FunctionProto::kOpsetImportFieldNumber}))
    info.set("rest", rest);
  auto op = FunctionOp::create(b, b.getUnknownLoc(), info.getDictionary(&context));
  Block &block = op.getBody().emplaceBlock();
  topBlock = &block;
  absentValue = {};
  Scope scope;
  for (const std::string &name : function.input())
    if (failed(define(scope, name, block.addArgument(UnknownType::get(&context), b.getUnknownLoc()), nullptr)))
      return failure();
  b.setInsertionPointToEnd(&block);
  if (failed(importNodes(function.node(), {}, scope)))
    return failure();
  SmallVector<Value> outputs;
  for (const std::string &name : function.output()) {
    Value value = scope.find(name);
    if (!value)
      return error() << "the local function '" << function.name() << "' never produces its output '" << name << "'";
    outputs.push_back(value);
  }
  ReturnOp::create(b, b.getUnknownLoc(), outputs);
  return success();
}

// [domain, version], and a unit where the file leaves the domain's field out.
Attribute Importer::opsetImport(const onnx::OperatorSetIdProto &import) {
  SmallVector<Attribute> entry{b.getStringAttr(import.domain()), b.getI64IntegerAttr(import.version())};
  if (!import.has_domain())
    entry.push_back(b.getUnitAttr());
  return b.getArrayAttr(entry);
}

// The messages that a type and a name do not reproduce; empty strings where they do. Null where all are reproduced.
ArrayAttr Importer::originalProtos(const ValueInfos &infos) {
  SmallVector<Attribute> originals;
  bool any = false;
  for (const auto &info : infos) {
    onnx::ValueInfoProto again;
    again.set_name(info.name());
    typeToOnnx(typeFromOnnx(&context, info.type()), *again.mutable_type());
    std::string bytes = info.SerializeAsString();
    bool same = again.SerializeAsString() == bytes;
    any |= !same;
    originals.push_back(b.getStringAttr(same ? "" : bytes));
  }
  return any ? b.getArrayAttr(originals) : ArrayAttr();
}

LogicalResult Importer::importInitializers(const onnx::GraphProto &graph, Scope &scope,
                                           llvm::StringMap<TensorAttr> &defaults) {
  for (const auto &proto : graph.initializer()) {
    auto tensor = tensors.read(proto, /*dropName=*/true);
    if (!tensor)
      return error() << llvm::toString(tensor.takeError());
    if (auto input = scope.values.find(proto.name());
        input != scope.values.end() && isa<BlockArgument>(input->second)) {
      defaults[proto.name()] = *tensor;
      continue;
    }
    OperationState state(b.getUnknownLoc(), InitializerOp::getOperationName());
    state.addAttribute("value", *tensor);
    state.addAttribute("onnx.outputs", stringArray(&context, {proto.name()}));
    state.addTypes(tensor->getType());
    if (failed(define(scope, proto.name(), b.create(state)->getResult(0), nullptr)))
      return failure();
  }
  for (const auto &proto : graph.sparse_initializer()) {
    SmallVector<int64_t> dims(proto.dims().begin(), proto.dims().end());
    Type element = elementTypeFromOnnx(&context, proto.values().data_type());
    if (!element || llvm::any_of(dims, [](int64_t d) { return d < 0; }))
      return error() << "sparse tensor '" << proto.values().name() << "' has no valid type";
    auto type = RankedTensorType::get(dims, element);
    auto tensor = TensorAttr::get(&context, type, b.getStringAttr(proto.SerializeAsString()), b.getDictionaryAttr({}));
    OperationState state(b.getUnknownLoc(), InitializerOp::getOperationName());
    state.addAttribute("value", tensor);
    state.addAttribute("onnx.outputs", stringArray(&context, {proto.values().name()}));
    state.addTypes(type);
    if (failed(define(scope, proto.values().name(), b.create(state)->getResult(0), nullptr)))
      return failure();
  }
  return success();
}

LogicalResult Importer::importGraph(const onnx::GraphProto &graph, Region &region, const Scope *outer, bool isMain) {
  OpBuilder::InsertionGuard guard(b);
  Block &block = region.emplaceBlock();
  if (isMain) {
    topBlock = &block;
    absentValue = {};
  }
  b.setInsertionPointToEnd(&block);
  Scope scope;
  scope.parent = outer;
  SmallVector<StringRef> inputNames;
  for (const auto &input : graph.input()) {
    inputNames.push_back(input.name());
    Value argument = block.addArgument(typeFromOnnx(&context, input.type()), b.getUnknownLoc());
    if (failed(define(scope, input.name(), argument, nullptr)))
      return failure();
  }
  llvm::StringMap<TensorAttr> defaults;
  if (failed(importInitializers(graph, scope, defaults)))
    return failure();

  Types declared;
  for (const auto *infos : {&graph.value_info(), &graph.output()})
    for (const auto &info : *infos)
      declared[info.name()] = typeFromOnnx(&context, info.type());
  if (failed(importNodes(graph.node(), declared, scope)))
    return failure();

  SmallVector<Value> outputs;
  for (const auto &output : graph.output()) {
    Value value = scope.find(output.name());
    if (!value)
      return error() << "the graph output '" << output.name() << "' is never produced";
    outputs.push_back(value);
  }
  ReturnOp::create(b, b.getUnknownLoc(), outputs);

  // Set after the nodes: names of inputs are read from here, and nothing asks for them before.
  NamedAttrList info;
  info.set("inputs", stringArray(&context, inputNames));
  if (ArrayAttr originals = originalProtos(graph.input()))
    info.set("input_protos", originals);
  if (ArrayAttr originals = originalProtos(graph.output()))
    info.set("output_protos", originals);
  // Declared output types are kept by value: inference may know more than the file says.
  SmallVector<Attribute> outputTypes;
  for (const auto &output : graph.output())
    outputTypes.push_back(TypeAttr::get(typeFromOnnx(&context, output.type())));
  info.set("output_types", b.getArrayAttr(outputTypes));
  if (graph.value_info_size()) {
    onnx::GraphProto cache;
    *cache.mutable_value_info() = graph.value_info();
    info.set("value_info", b.getStringAttr(cache.SerializeAsString()));
  }
  if (!defaults.empty()) {
    SmallVector<Attribute> values;
    for (StringRef name : inputNames) {
      auto found = defaults.find(name);
      values.push_back(found == defaults.end() ? Attribute(b.getUnitAttr()) : Attribute(found->second));
    }
    info.set("defaults", b.getArrayAttr(values));
    SmallVector<StringRef> order;
    for (const auto &proto : graph.initializer())
      order.push_back(proto.name());
    info.set("initializer_order", stringArray(&context, order));
  }
  if (DictionaryAttr rest =
          messageRest(&context, graph,
                      {onnx::GraphProto::kNodeFieldNumber, onnx::GraphProto::kInitializerFieldNumber,
                       onnx::GraphProto::kSparseInitializerFieldNumber, onnx::GraphProto::kInputFieldNumber,
                       onnx::GraphProto::kOutputFieldNumber, onnx::GraphProto::kValueInfoFieldNumber}))
    info.set("rest", rest);
  if (isMain) {
    setGraphInfo(region, info.getDictionary(&context));
    return success();
  }
  Operation *parent = region.getParentOp();
  SmallVector<Attribute> graphs(parent->getAttrOfType<ArrayAttr>("onnx.graphs").getValue());
  NamedAttrList merged(cast<DictionaryAttr>(graphs[region.getRegionNumber()]));
  merged.append(info.begin(), info.end());
  setGraphInfo(region, merged.getDictionary(&context));
  return success();
}

LogicalResult Importer::reportUndefined(const onnx::NodeProto &node, StringRef name, const Nodes &nodes) {
  llvm::StringMap<const onnx::NodeProto *> producers;
  for (const auto &other : nodes)
    for (const std::string &output : other.output())
      producers[output] = &other;
  if (!producers.contains(name))
    return error(node) << "reads '" << name << "', which no node, input or initializer defines";
  // The producer comes later: either the nodes feed each other, or they are in the wrong order.
  llvm::StringSet<> seen;
  SmallVector<StringRef> work{name};
  while (!work.empty()) {
    StringRef value = work.pop_back_val();
    if (!seen.insert(value).second || !producers.contains(value))
      continue;
    const onnx::NodeProto *producer = producers[value];
    if (producer == &node)
      return error(node) << "reads '" << name << "', which depends on the node's own output: the graph has a cycle";
    for (const std::string &input : producer->input())
      work.push_back(input);
  }
  return error(node) << "reads '" << name << "', which only the later node " << describe(*producers[name])
                     << " defines: nodes must be in topological order";
}

LogicalResult Importer::importNodes(const Nodes &nodes, const Types &declared, Scope &scope) {
  for (const auto &node : nodes) {
    SmallVector<Value> operands;
    for (const std::string &name : node.input()) {
      Value value = name.empty() ? absent() : scope.find(name);
      if (!value)
        return reportUndefined(node, name, nodes);
      operands.push_back(value);
    }
    Operation *op = importNode(node, operands, declared, scope);
    if (!op)
      return failure();
    for (auto [name, result] : llvm::zip(node.output(), op->getResults()))
      if (!name.empty() && failed(define(scope, name, result, &node)))
        return failure();
  }
  return success();
}

// Which operation stands for the node; errors for operators that the ONNX library does not know.
FailureOr<OperationName> Importer::operationFor(const onnx::NodeProto &node, OperationState &state) {
  StringRef domain = normalDomain(node.domain()), type = node.op_type();
  if (readsTrainOps() && domain == "recast" && train::isTrainOp(&context, type))
    return OperationName(("train." + type).str(), &context);
  bool isLocal = functions.contains(functionKey(domain, type, node.overload()));
  bool isKnown = false;
  const auto &ranges = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  if (!isLocal && ranges.count(domain.str())) {
    int64_t opset = opsetVersion(b.getInsertionBlock()->getParentOp(), domain);
    isKnown = onnx::OpSchemaRegistry::Schema(node.op_type(), static_cast<int>(opset), domain.str()) != nullptr;
    const onnx::OpSchema *newest = onnx::OpSchemaRegistry::Schema(node.op_type(), domain.str());
    // The domain's name without its end: early models write the preview of training operators so.
    if (!newest && domain == "ai.onnx.preview")
      newest = onnx::OpSchemaRegistry::Schema(node.op_type(), (domain + ".training").str());
    bool isMisspelt = newest && newest->domain() != domain;
    if (!isKnown && !newest && !options.allowUnknown) {
      error(node) << "the domain '" << node.domain() << "' has no operator " << type
                  << " (--allow-unknown keeps such nodes as they are)";
      return failure();
    }
    // Other tools put operators into models of an older opset than theirs, and mean the newer operator.
    if (!isKnown && newest && !isMisspelt && !options.allowUnknown)
      emitWarning(UnknownLoc::get(&context))
          << path << ": node " << describe(node) << ": " << type << " exists since opset " << newest->SinceVersion()
          << ", the model imports " << opset << "; the node is kept as it is";
  }
  OperationName typed(("onnx." + type).str(), &context);
  if (domain.empty() && isKnown && typed.isRegistered())
    return typed;
  state.addAttribute("onnx.op_type", b.getStringAttr(type));
  state.addAttribute("onnx.domain", b.getStringAttr(node.domain()));
  return OperationName(NodeGenericOp::getOperationName(), &context);
}

// Numbers of inputs and outputs, attributes and their types, and inputs that must be of one type.
LogicalResult Importer::checkSchema(const onnx::NodeProto &node, Operation *op) {
  const onnx::OpSchema *schema =
      functions.contains(functionKey(normalDomain(node.domain()), node.op_type(), node.overload())) ? nullptr
                                                                                                    : Node(op).schema();
  if (!schema)
    return success();
  try {
    schema->Verify(node);
  } catch (const std::exception &fault) {
    return error(node) << fault.what();
  }
  std::string problem = isFunctionBody ? "" : problemWithTypes(Node(op));
  return problem.empty() ? success() : LogicalResult(error(node) << problem);
}

Operation *Importer::importNode(const onnx::NodeProto &node, ArrayRef<Value> operands, const Types &declared,
                                Scope &scope) {
  OperationState state(UnknownLoc::get(&context), NodeGenericOp::getOperationName());
  auto name = operationFor(node, state);
  if (failed(name))
    return nullptr;
  state.name = *name;
  state.addOperands(operands);
  if (name->getStringRef() == train::UnscaleOp::getOperationName())
    for (Value &operand : MutableArrayRef(state.operands).drop_back())
      operand =
          train::MarkScaledOp::create(b, state.location, train::ScaledType::get(&context, operand.getType()), operand)
              .getResult(0);

  SmallVector<StringRef> outputs, order;
  for (const std::string &output : node.output()) {
    outputs.push_back(output);
    auto type = declared.find(output);
    state.addTypes(output.empty()           ? Type(AbsentType::get(&context))
                   : type != declared.end() ? type->second
                                            : Type(UnknownType::get(&context)));
  }
  state.addAttribute("onnx.outputs", stringArray(&context, outputs));
  if (node.has_name())
    state.addAttribute("onnx.name", b.getStringAttr(node.name()));
  if (!node.overload().empty() && name->getDialectNamespace() != "train")
    state.addAttribute("onnx.overload", b.getStringAttr(node.overload()));

  SmallVector<const onnx::GraphProto *> bodies;
  SmallVector<Attribute> graphs;
  for (const auto &attribute : node.attribute()) {
    order.push_back(attribute.name());
    if (attribute.type() == onnx::AttributeProto::GRAPH && attribute.ref_attr_name().empty()) {
      bodies.push_back(&attribute.g());
      state.addRegion();
      graphs.push_back(b.getDictionaryAttr(b.getNamedAttr("attribute", b.getStringAttr(attribute.name()))));
      continue;
    }
    std::string problem;
    Attribute value = attrFromOnnx(&context, attribute, [&](const onnx::TensorProto &tensor) -> TensorAttr {
      auto read = tensors.read(tensor, /*dropName=*/false);
      if (read)
        return *read;
      problem = llvm::toString(read.takeError());
      return {};
    });
    if (!value) {
      error(node) << "attribute '" << attribute.name() << "': " << problem;
      return nullptr;
    }
    state.addAttribute(attribute.name(), value);
  }
  if (!llvm::is_sorted(order))
    state.addAttribute("onnx.attr_order", stringArray(&context, order));
  if (!graphs.empty())
    state.addAttribute("onnx.graphs", b.getArrayAttr(graphs));

  SmallVector<int> known = {onnx::NodeProto::kInputFieldNumber, onnx::NodeProto::kOutputFieldNumber,
                            onnx::NodeProto::kNameFieldNumber, onnx::NodeProto::kOpTypeFieldNumber,
                            onnx::NodeProto::kAttributeFieldNumber};
  if (!node.overload().empty())
    known.push_back(onnx::NodeProto::kOverloadFieldNumber);
  // The operation says the domain, except where "" was written out or "ai.onnx" stands for it.
  bool isGeneric = name->getStringRef() == NodeGenericOp::getOperationName();
  if (isGeneric ? !node.domain().empty() : node.domain() == "recast")
    known.push_back(onnx::NodeProto::kDomainFieldNumber);
  if (DictionaryAttr rest = messageRest(&context, node, known))
    state.addAttribute("onnx.rest", rest);

  Operation *op = b.create(state);
  if (!options.allowUnknown && failed(checkSchema(node, op)))
    return nullptr;
  for (auto [graph, region] : llvm::zip(bodies, op->getRegions()))
    if (failed(importGraph(*graph, region, &scope, /*isMain=*/false)))
      return nullptr;
  if (isFunctionBody)
    return op; // Types there depend on the call.
  return succeeded(types.infer(op)) ? op : nullptr;
}

} // namespace

OwningOpRef<ModuleOp> importModel(MLIRContext &context, const onnx::ModelProto &model, TensorReader &tensors,
                                  const std::string &path, const LoadOptions &options) {
  return Importer(context, model, tensors, path, options).run();
}

} // namespace recast::io
