#include "ir/onnx/ExpandFunction.h"
#include "ir/onnx/AttrProto.h"
#include "ir/onnx/Definitions.h"
#include "ir/onnx/PreviewOptimizers.h"
#include "onnx/defs/function.h"

using namespace mlir;
namespace recast::onnx_ir {

bool hasFunctionBody(Node node) {
  const onnx::OpSchema *schema = node.schema();
  return isPreviewOptimizer(node) || hasDefinition(node) ||
         (schema && (schema->HasFunction() || schema->HasContextDependentFunction()));
}

onnx::NodeProto functionCall(Node node) {
  onnx::NodeProto proto;
  proto.set_op_type(node.opType().str());
  proto.set_domain(node.domain().str());
  for (unsigned i = 0; i < node.numInputs(); ++i)
    proto.add_input(node.input(i) ? "in" + std::to_string(i) : "");
  for (unsigned i = 0; i < node.numOutputs(); ++i)
    proto.add_output(isAbsent(node.output(i)) ? "" : "out" + std::to_string(i));
  for (NamedAttribute attr : node->getAttrs()) {
    auto *out = proto.add_attribute();
    if (!attrToOnnx(attr, *out, [](TensorAttr tensor, onnx::TensorProto &data) { tensorToOnnx(tensor, data); }))
      proto.mutable_attribute()->RemoveLast();
  }
  return proto;
}

namespace {

bool findBody(Node node, const onnx::NodeProto &proto, onnx::FunctionProto &body) {
  const onnx::OpSchema *schema = node.schema();
  int opset = static_cast<int>(node.opset());
  if (schema->HasFunction())
    if (const onnx::FunctionProto *fixed = schema->GetFunction(opset)) {
      body = *fixed;
      return true;
    }
  if (!schema->HasContextDependentFunction())
    return false;
  std::vector<onnx::TypeProto> types(node.numInputs());
  for (unsigned i = 0; i < node.numInputs(); ++i)
    if (node.input(i))
      typeToOnnx(node.input(i).getType(), types[i]);
  onnx::FunctionBodyBuildContextImpl context(proto, types);
  return schema->BuildContextDependentFunction(context, body, opset);
}

// A data tensor of a body: bodies hold small constants only.
TensorAttr tensorFrom(MLIRContext *context, const onnx::TensorProto &proto) {
  Type element = elementTypeFromOnnx(context, proto.data_type());
  auto type = RankedTensorType::get(ArrayRef<int64_t>(proto.dims().data(), proto.dims_size()), element);
  SmallVector<char> bytes;
  if (proto.has_raw_data())
    bytes.append(proto.raw_data().begin(), proto.raw_data().end());
  else
    typedDataBytes(proto, bytes);
  return makeTensor(type, bytes);
}

} // namespace

LogicalResult expandFunctionBody(Node node, NodeBuilder &b, SmallVectorImpl<Value> &outputs) {
  if (isPreviewOptimizer(node))
    return expandPreviewOptimizer(node, b, outputs);
  if (hasDefinition(node))
    return buildDefinition(node, b, outputs);
  onnx::NodeProto proto = functionCall(node);
  onnx::FunctionProto body;
  try {
    if (!findBody(node, proto, body))
      return node->emitError() << "node " << node.describe() << ": ONNX has no function body for this use";
  } catch (const std::exception &error) {
    return node->emitError() << "node " << node.describe() << ": " << error.what();
  }
  llvm::StringMap<Value> values;
  for (auto [i, name] : llvm::enumerate(body.input()))
    values[name] = node.input(static_cast<unsigned>(i));
  // Attributes of the call, and the defaults that the body declares.
  llvm::StringMap<const onnx::AttributeProto *> attributes;
  for (const auto &attribute : body.attribute_proto())
    attributes[attribute.name()] = &attribute;
  for (const auto &[name, attribute] : node.schema()->attributes())
    if (!attribute.required && attribute.default_value.has_type())
      attributes[name] = &attribute.default_value;
  for (const auto &attribute : proto.attribute())
    attributes[attribute.name()] = &attribute;

  for (const auto &inner : body.node()) {
    SmallVector<Value> inputs;
    for (const std::string &name : inner.input())
      inputs.push_back(name.empty() ? Value() : values.lookup(name));
    SmallVector<NamedAttribute> attrs;
    for (const auto &attribute : inner.attribute()) {
      const onnx::AttributeProto *source = &attribute;
      if (!attribute.ref_attr_name().empty())
        source = attributes.lookup(attribute.ref_attr_name());
      if (!source)
        continue; // optional, and not given
      if (source->type() == onnx::AttributeProto::GRAPH)
        return node->emitError() << "node " << node.describe() << ": its function body has control flow";
      Attribute value = attrFromOnnx(b.context(), *source,
                                     [&](const onnx::TensorProto &tensor) { return tensorFrom(b.context(), tensor); });
      attrs.push_back(b.rewriter().getNamedAttr(attribute.name(), value));
    }
    Operation *op = b.node(inner.op_type(), inputs, static_cast<unsigned>(inner.output_size()), attrs);
    for (auto [name, result] : llvm::zip(inner.output(), op->getResults()))
      values[name] = result;
  }
  for (auto [i, name] : llvm::enumerate(body.output()))
    if (i < node.numOutputs())
      outputs.push_back(values.lookup(name));
  outputs.resize(node.numOutputs());
  return success();
}

} // namespace recast::onnx_ir
