#include "ir/onnx/TypeInference.h"
#include "ir/onnx/AttrProto.h"
#include "ir/onnx/CheckOperands.h"
#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/KnownInts.h"
#include "ir/onnx/TensorData.h"
#include "onnx/defs/shape_inference.h"
#include "onnx/shape_inference/implementation.h"
#include <deque>
#include <unordered_map>

using namespace mlir;
namespace recast::onnx_ir {

namespace {

// Node-based: the schema functions hold pointers to several entries at once.
using ShapeData = std::unordered_map<void *, onnx::TensorShapeProto>;

// Attributes and types of one operation, in the form that the schema functions read.
struct NodeFacts {
  explicit NodeFacts(Operation *op) : op(op), types(op->getNumOperands()), outputs(op->getNumResults()) {
    for (auto [value, type] : llvm::zip(op->getOperands(), types))
      typeToOnnx(value.getType(), type);
  }

  const onnx::AttributeProto *attribute(const std::string &name) {
    auto [at, inserted] = attributes.try_emplace(name);
    if (!inserted)
      return at->second.get();
    Attribute value = op->getAttr(name);
    if (!value)
      return nullptr;
    auto proto = std::make_unique<onnx::AttributeProto>();
    NamedAttribute named(StringAttr::get(op->getContext(), name), value);
    if (attrToOnnx(named, *proto, [](TensorAttr tensor, onnx::TensorProto &out) { tensorToOnnx(tensor, out); }))
      at->second = std::move(proto);
    return at->second.get();
  }

  const onnx::TypeProto *inputType(size_t i) const {
    return i < types.size() && types[i].value_case() != onnx::TypeProto::VALUE_NOT_SET ? &types[i] : nullptr;
  }

  Operation *op;
  std::vector<onnx::TypeProto> types, outputs;
  llvm::StringMap<std::unique_ptr<onnx::AttributeProto>> attributes;
};

// A body's outputs have the types that were inferred when the body itself was read.
class BodyInferencer final : public onnx::GraphInferencer {
public:
  explicit BodyInferencer(Region &body) {
    for (Value output : body.front().getTerminator()->getOperands())
      typeToOnnx(output.getType(), outputs.emplace_back());
  }
  std::vector<const onnx::TypeProto *> doInferencing(const std::vector<const onnx::TypeProto *> &,
                                                     const std::vector<const onnx::TensorProto *> &) override {
    std::vector<const onnx::TypeProto *> types;
    for (const onnx::TypeProto &type : outputs)
      types.push_back(&type);
    return types;
  }

private:
  std::deque<onnx::TypeProto> outputs;
};

class Inference final : public onnx::InferenceContext {
public:
  Inference(NodeFacts &facts, TypeInference &owner) : facts(facts), owner(owner) {}

  const onnx::AttributeProto *getAttribute(const std::string &name) const override { return facts.attribute(name); }
  size_t getNumInputs() const override { return facts.types.size(); }
  const onnx::TypeProto *getInputType(size_t i) const override { return facts.inputType(i); }
  bool hasInput(size_t i) const override {
    return i < facts.op->getNumOperands() && !isAbsent(facts.op->getOperand(i));
  }
  /// Whether the schema asked for the value of an input.
  bool dependsOnValues() const { return askedForValue; }

  const onnx::TensorProto *getInputData(size_t i) const override {
    askedForValue = true;
    TensorAttr tensor = i < facts.op->getNumOperands() ? constantOf(facts.op->getOperand(i)) : TensorAttr();
    if (!tensor)
      return propagatedData(i);
    if (tensor.getType().getNumElements() > kMostKnownInts || !tensor.getType().getElementType().isIntOrFloat())
      return nullptr;
    auto &slot = data[i];
    if (!slot) {
      slot = std::make_unique<onnx::TensorProto>();
      tensorToOnnx(tensor, *slot);
    }
    return slot.get();
  }
  const onnx::SparseTensorProto *getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto *getSymbolicInput(size_t i) const override {
    askedForValue = true;
    return i < facts.op->getNumOperands() ? owner.knownInts(facts.op->getOperand(i)) : nullptr;
  }
  size_t getNumOutputs() const override { return facts.outputs.size(); }
  onnx::TypeProto *getOutputType(size_t i) override {
    if (i >= facts.outputs.size())
      fail_type_inference("Output ", i, " is out of bounds");
    return &facts.outputs[i];
  }
  onnx::GraphInferencer *getGraphAttributeInferencer(const std::string &name) override {
    for (Region &region : facts.op->getRegions())
      if (graphInfo(region).getAs<StringAttr>("attribute").getValue() == name)
        return bodies.emplace_back(std::make_unique<BodyInferencer>(region)).get();
    return nullptr;
  }
  std::string getDisplayName() const override { return Node(facts.op).name().str(); }

private:
  // Integers that are no constant of the file but are all known.
  const onnx::TensorProto *propagatedData(size_t i) const {
    const onnx::TensorShapeProto *known = getSymbolicInput(i);
    auto type = known ? dyn_cast<RankedTensorType>(facts.op->getOperand(i).getType()) : RankedTensorType();
    if (!type || !type.hasStaticShape() || type.getNumElements() != known->dim_size() ||
        llvm::any_of(known->dim(), [](const auto &dim) { return !dim.has_dim_value(); }))
      return nullptr;
    bool isWide = type.getElementType().isInteger(64);
    if (!isWide && !type.getElementType().isInteger(32))
      return nullptr;
    auto &slot = data[i];
    if (!slot) {
      slot = std::make_unique<onnx::TensorProto>();
      slot->set_data_type(isWide ? onnx::TensorProto::INT64 : onnx::TensorProto::INT32);
      for (int64_t size : type.getShape())
        slot->add_dims(size);
      for (const auto &dim : known->dim())
        if (isWide)
          slot->add_int64_data(dim.dim_value());
        else
          slot->add_int32_data(static_cast<int32_t>(dim.dim_value()));
    }
    return slot.get();
  }

  NodeFacts &facts;
  TypeInference &owner;
  mutable std::map<size_t, std::unique_ptr<onnx::TensorProto>> data;
  mutable bool askedForValue = false;
  std::vector<std::unique_ptr<BodyInferencer>> bodies;
};

class Propagation final : public onnx::DataPropagationContext {
public:
  Propagation(NodeFacts &facts, TypeInference &owner, ShapeData &shapes) : facts(facts), owner(owner), shapes(shapes) {}

  const onnx::AttributeProto *getAttribute(const std::string &name) const override { return facts.attribute(name); }
  size_t getNumInputs() const override { return facts.types.size(); }
  const onnx::TypeProto *getInputType(size_t i) const override { return facts.inputType(i); }
  size_t getNumOutputs() const override { return facts.outputs.size(); }
  const onnx::TypeProto *getOutputType(size_t i) const override { return &facts.outputs[i]; }
  const onnx::TensorShapeProto *getInputData(size_t i) override {
    return i < facts.op->getNumOperands() ? owner.knownInts(facts.op->getOperand(i)) : nullptr;
  }
  void addOutputData(size_t i, onnx::TensorShapeProto &&known) override {
    shapes[facts.op->getResult(i).getAsOpaquePointer()] = std::move(known);
  }

private:
  NodeFacts &facts;
  TypeInference &owner;
  ShapeData &shapes;
};

// The more precise of both, dimension by dimension; `inferred` wins where they contradict each other.
Type merge(Type inferred, Type declared) {
  if (isUnknown(inferred))
    return declared;
  auto a = dyn_cast<TensorType>(inferred), b = dyn_cast<TensorType>(declared);
  if (!a || !b || a.getElementType() != b.getElementType() || !b.hasRank())
    return inferred;
  if (!a.hasRank())
    return declared;
  auto x = cast<RankedTensorType>(a), y = cast<RankedTensorType>(b);
  if (x.getRank() != y.getRank() || x.hasStaticShape())
    return inferred;
  SmallVector<int64_t> dims(x.getShape());
  SmallVector<StringRef> symbols;
  for (int64_t i = 0; i < x.getRank(); ++i) {
    if (x.isDynamicDim(i) && dimSymbol(x, i).empty() && !y.isDynamicDim(i))
      dims[i] = y.getDimSize(i);
    symbols.push_back(!dimSymbol(x, i).empty() ? dimSymbol(x, i) : dimSymbol(y, i));
  }
  return tensorType(dims, symbols, x.getElementType());
}

// Operators that have a function body and no inference function of their own.
void inferThroughBody(const onnx::OpSchema &schema, Node node, NodeFacts &facts, Inference &context) {
  if (node.is("GroupNormalization")) { // its body reshapes through computed shapes and loses the sizes
    facts.outputs[0] = facts.types[0];
    return;
  }
  int opset = static_cast<int>(node.opset());
  const onnx::FunctionProto *body = schema.HasFunction() ? schema.GetFunction(opset) : nullptr;
  onnx::FunctionProto built;
  if (!body) {
    onnx::NodeProto proto = functionCall(node);
    onnx::FunctionBodyBuildContextImpl call(proto, facts.types);
    if (!schema.HasContextDependentFunction() || !schema.BuildContextDependentFunction(call, built, opset))
      return;
    body = &built;
  }
  onnx::shape_inference::InferShapeForFunctionNode(*body, onnx::OpSchemaRegistry::Instance(), context);
}

// Versions 12 of these have no inference function in the ONNX library; that of Less gives the same types.
const onnx::OpSchema *schemaForInference(Node node) {
  const onnx::OpSchema *schema = node.schema();
  if (schema && !schema->has_type_and_shape_inference_function() &&
      (node.is("GreaterOrEqual") || node.is("LessOrEqual")))
    return onnx::OpSchemaRegistry::Schema("Less", static_cast<int>(node.opset()), "");
  return schema;
}

} // namespace

namespace {

// What is known of the values of an operation's results, from those of its operands.
void learnInts(TypeInference &owner, ShapeData &shapes, const onnx::OpSchema &schema, NodeFacts &facts) {
  Operation *op = facts.op;
  Type element = elementTypeOf(op->getResult(0)); // Of a Cast to bool, schemas pass on numbers as they were.
  if (schema.has_data_propagation_function() && !(element && element.isInteger(1))) {
    for (auto [result, proto] : llvm::zip(op->getResults(), facts.outputs))
      typeToOnnx(result.getType(), proto);
    Propagation propagation(facts, owner, shapes);
    try {
      schema.GetDataPropagationFunction()(propagation);
    } catch (const std::exception &) {
      // Less is known; the types are right without.
    }
  }
  if (auto ints = evaluateInts(op, [&](Value value) { return owner.knownInts(value); }))
    shapes[op->getResult(0).getAsOpaquePointer()] = std::move(*ints);
}

// What inference depends on where no operand's value matters: operator, attributes and operand types, as pointers to
// uniqued storage. Empty where a value may matter (integers may be shapes or axes, and floats made from them again).
using InferenceKey = SmallVector<const void *, 12>;

InferenceKey keyOf(Operation *op, const ShapeData &shapes) {
  InferenceKey key{op->getName().getAsOpaquePointer(), reinterpret_cast<const void *>(uintptr_t(op->getNumResults()))};
  if (op->getNumRegions())
    return {};
  for (Value operand : op->getOperands()) {
    auto tensor = dyn_cast<RankedTensorType>(operand.getType());
    if (!tensor || !isa<FloatType>(tensor.getElementType()) || shapes.contains(operand.getAsOpaquePointer()))
      return {};
    key.push_back(tensor.getAsOpaquePointer());
  }
  for (NamedAttribute attr : op->getAttrs())
    if (StringRef name = attr.getName().strref();
        !name.starts_with("onnx.") || name == "onnx.op_type" || name == "onnx.domain") {
      key.push_back(attr.getName().getAsOpaquePointer());
      key.push_back(attr.getValue().getAsOpaquePointer());
    }
  return key;
}

struct InferenceKeyInfo {
  static InferenceKey getEmptyKey() { return {}; }
  static InferenceKey getTombstoneKey() { return {nullptr}; }
  static unsigned getHashValue(const InferenceKey &key) {
    return static_cast<unsigned>(llvm::hash_combine_range(key.begin(), key.end()));
  }
  static bool isEqual(const InferenceKey &a, const InferenceKey &b) { return a == b; }
};

} // namespace

struct TypeInference::Impl {
  ShapeData shapes;
  llvm::DenseSet<Operation *> learned; ///< Asked for values already: nothing is known of those that `shapes` lacks.
  int depth = 0;                       ///< Operators of which each is learned for the next one's sake.
  /// Results of earlier, equal inferences: layers repeat.
  llvm::DenseMap<InferenceKey, SmallVector<Type, 2>, InferenceKeyInfo> known;
  llvm::StringMap<const onnx::OpSchema *> schemas; ///< Of the default domain.

  const onnx::OpSchema *schemaOf(Node node) {
    if (!node.domain().empty())
      return schemaForInference(node);
    auto [cached, isNew] = schemas.try_emplace(node.opType(), nullptr);
    if (isNew)
      cached->second = schemaForInference(node);
    return cached->second;
  }
};

TypeInference::TypeInference() : impl(std::make_unique<Impl>()) {}
TypeInference::~TypeInference() = default;

void TypeInference::forget(Operation *op) {
  for (Value result : op->getResults())
    impl->shapes.erase(result.getAsOpaquePointer());
  impl->learned.erase(op);
}

const onnx::TensorShapeProto *TypeInference::knownInts(Value value) {
  if (isAbsent(value))
    return nullptr;
  auto at = impl->shapes.find(value.getAsOpaquePointer());
  if (at != impl->shapes.end())
    return &at->second;
  auto type = dyn_cast<RankedTensorType>(value.getType());
  if (!type || !type.getElementType().isInteger() || type.getRank() > 1)
    return nullptr;
  // Types that another inference has set: the values are learned where they are asked for, over no more operators than
  // the stack has room for.
  constexpr int kMostDepth = 256;
  Operation *op = value.getDefiningOp();
  if (op && isNode(op) && op->getNumRegions() == 0 && !constantInts(value) && impl->depth < kMostDepth &&
      impl->learned.insert(op).second)
    if (const onnx::OpSchema *schema = impl->schemaOf(Node(op))) {
      NodeFacts facts(op);
      ++impl->depth;
      learnInts(*this, impl->shapes, *schema, facts);
      --impl->depth;
      if (at = impl->shapes.find(value.getAsOpaquePointer()); at != impl->shapes.end())
        return &at->second;
    }
  onnx::TensorShapeProto known;
  if (auto ints = constantInts(value); ints && ints->size() <= kMostKnownInts) {
    for (int64_t i : *ints)
      known.add_dim()->set_dim_value(i);
  } else if (type.getRank() == 1 && !type.isDynamicDim(0) && type.getDimSize(0) <= kMostKnownInts) {
    for (int64_t i = 0; i < type.getDimSize(0); ++i)
      known.add_dim();
  } else {
    return nullptr;
  }
  return &(impl->shapes[value.getAsOpaquePointer()] = std::move(known));
}

LogicalResult TypeInference::infer(Operation *op, bool fresh) {
  if (!isNode(op) || op->getNumResults() == 0)
    return success();
  Node node(op);
  SmallVector<Type> own;
  bool knowsAll = llvm::all_of(op->getOperandTypes(), [](Type type) { return !isUnknown(type); });
  if (knowsAll && cast<NodeInterface>(op).inferTypes(own)) {
    for (auto [result, type] : llvm::zip(op->getResults(), own))
      result.setType(type);
    return success();
  }
  const onnx::OpSchema *schema = impl->schemaOf(node);
  bool hasRule = schema && (schema->has_type_and_shape_inference_function() || schema->HasFunction() ||
                            schema->HasContextDependentFunction());
  if (!hasRule || !knowsAll)
    return success();

  InferenceKey facets = keyOf(op, impl->shapes);
  auto assign = [&](Value result, Type inferred) {
    if (!isAbsent(result))
      result.setType(fresh && !isUnknown(inferred) ? inferred : merge(inferred, result.getType()));
  };
  if (auto equal = facets.empty() ? impl->known.end() : impl->known.find(facets); equal != impl->known.end()) {
    for (auto [result, type] : llvm::zip(op->getResults(), equal->second))
      assign(result, type);
    return success();
  }

  if (std::string problem = problemWithOperands(node); !problem.empty())
    return op->emitError() << "node " << node.describe() << ": " << problem;
  NodeFacts facts(op);
  Inference context(facts, *this);
  try {
    if (schema->has_type_and_shape_inference_function())
      schema->GetTypeAndShapeInferenceFunction()(context);
    else
      inferThroughBody(*schema, node, facts, context);
  } catch (const std::exception &error) {
    return op->emitError() << "node " << node.describe() << ": " << error.what();
  }
  SmallVector<Type, 2> inferred;
  for (auto [result, proto] : llvm::zip(op->getResults(), facts.outputs)) {
    for (const auto &dim : proto.tensor_type().shape().dim())
      if (dim.dim_value() < 0)
        return op->emitError() << "node " << node.describe() << ": its operands make the size " << dim.dim_value()
                               << " of '" << nameOf(result) << "'";
    assign(result, inferred.emplace_back(typeFromOnnx(op->getContext(), proto)));
  }
  // Integer results may be known by value too, which is found below.
  bool isOfTypesOnly = !context.dependsOnValues() && llvm::all_of(inferred, [](Type type) {
    return isa<TensorType>(type) && isa<FloatType>(cast<TensorType>(type).getElementType());
  });
  if (isOfTypesOnly && !facets.empty())
    impl->known.try_emplace(std::move(facets), std::move(inferred));
  impl->learned.insert(op);
  learnInts(*this, impl->shapes, *schema, facts);
  return success();
}

LogicalResult TypeInference::inferAll(Region &region, bool fresh) {
  for (Block &block : region)
    for (Operation &op : block) {
      for (Region &body : op.getRegions())
        if (failed(inferAll(body, fresh)))
          return failure();
      if (failed(infer(&op, fresh)))
        return failure();
    }
  return success();
}

} // namespace recast::onnx_ir
