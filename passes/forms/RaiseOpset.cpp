#include "passes/forms/RaiseOpset.h"
#include "ir/onnx/InlineFunctions.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::forms {

namespace {

// Up to here newer versions add to older ones, and the schemas tell where one does not. From 18 on some change what a
// node without the new attributes means (Split).
constexpr int64_t kNewestOpset = 17;

const onnx::OpSchema *schemaAt(Node node, int64_t opset) {
  return onnx::OpSchemaRegistry::Schema(node.opType().str(), static_cast<int>(opset), node.domain().str());
}

// Whether the node, as it is, means the same by both schemas.
bool meansTheSame(Node node, const onnx::OpSchema &before, const onnx::OpSchema &after) {
  if (before.SinceVersion() == after.SinceVersion())
    return true;
  // Its new attribute shifts every coordinate by half a pixel unless it is given.
  if (node.is("RoiAlign") || node.numInputs() > static_cast<unsigned>(after.max_input()) ||
      node.numOutputs() > static_cast<unsigned>(after.max_output()))
    return false;
  for (const auto &[name, attribute] : before.attributes()) {
    auto found = after.attributes().find(name);
    if (found == after.attributes().end() ? node.hasAttr(name)
                                          : !node.hasAttr(name) && found->second.default_value.SerializeAsString() !=
                                                                       attribute.default_value.SerializeAsString())
      return false;
  }
  for (const auto &[name, attribute] : after.attributes())
    if (attribute.required && !node.hasAttr(name))
      return false;
  return true;
}

void setOpset(ModuleOp module, int64_t opset) {
  Builder b(module.getContext());
  SmallVector<Attribute> imports;
  for (Attribute entry : module->getAttrOfType<ArrayAttr>("onnx.opsets")) {
    SmallVector<Attribute> fields(cast<ArrayAttr>(entry).getValue());
    if (normalDomain(cast<StringAttr>(fields[0]).getValue()).empty())
      fields[1] = b.getI64IntegerAttr(opset);
    imports.push_back(b.getArrayAttr(fields));
  }
  module->setAttr("onnx.opsets", b.getArrayAttr(imports));
}

} // namespace

LogicalResult raiseOpset(ModuleOp module) {
  GraphOp graph = mainGraph(module);
  int64_t opset = opsetVersion(graph, ""), needed = opset;
  SmallVector<Operation *> early;
  graph.walk([&](Operation *op) {
    if (Node node(op); isNode(op) && node.domain().empty() && !node.schema())
      early.push_back(op);
  });
  for (Operation *op : early) {
    Node node(op);
    int64_t since = opset + 1;
    while (since <= kNewestOpset && !schemaAt(node, since))
      ++since;
    if (since > kNewestOpset)
      return op->emitError() << "node " << node.describe() << ": the model imports opset " << opset
                             << ", which does not have this operator; export the model at an opset that has it";
    needed = std::max(needed, since);
  }
  if (early.empty())
    return success();
  LogicalResult same = success();
  graph.walk([&](Operation *op) {
    Node node(op);
    if (!isNode(op) || !node.domain().empty() || !node.schema())
      return;
    const onnx::OpSchema *after = schemaAt(node, needed);
    if (!after || !meansTheSame(node, *node.schema(), *after))
      same = op->emitError() << "node " << node.describe() << ": '" << Node(early.front()).opType() << "' needs opset "
                             << needed << ", which defines this operator otherwise than the model's opset " << opset
                             << "; export the model at opset " << needed;
  });
  if (failed(same))
    return failure();
  setOpset(module, needed);
  NameScope names(graph);
  TypeInference types;
  NodeBuilder b(graph, names, types);
  for (Operation *op : early) {
    Node node(op);
    SmallVector<NamedAttribute> attrs;
    for (NamedAttribute attr : op->getAttrs())
      if (!attr.getName().strref().starts_with("onnx.") || attr.getName() == "onnx.name")
        attrs.push_back(attr);
    unsigned used = node.numOutputs();
    while (used > 1 && !node.usedOutput(used - 1))
      --used;
    b.before(op);
    Operation *made = b.node(node.opType(), op->getOperands(), used, attrs);
    if (b.failed())
      return failure();
    SmallVector<Value> outputs(made->result_begin(), made->result_end());
    outputs.resize(node.numOutputs());
    replaceWithValues(node, outputs, types);
  }
  return success();
}

} // namespace recast::forms
