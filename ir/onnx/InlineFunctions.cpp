#include "ir/onnx/InlineFunctions.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;
namespace recast::onnx_ir {

FunctionOp findFunction(Node node) {
  auto module = node->getParentOfType<ModuleOp>();
  auto overload = node->getAttrOfType<StringAttr>("onnx.overload");
  for (FunctionOp function : module.getOps<FunctionOp>()) {
    DictionaryAttr info = function.getInfo();
    auto text = [&](StringRef key) { return info.getAs<StringAttr>(key).getValue(); };
    if (text("name") == node.opType() && normalDomain(text("domain")) == node.domain() &&
        text("overload") == (overload ? overload.getValue() : ""))
      return function;
  }
  return {};
}

namespace {

// The call's attribute, or the default that the function declares.
Attribute lookUp(Node call, FunctionOp function, StringRef name) {
  if (Attribute given = call->getAttr(name))
    return given;
  auto defaults = function.getInfo().getAs<DictionaryAttr>("defaults");
  return defaults ? defaults.get(name) : Attribute();
}

// Copies one operation with its bodies; references take the call's attributes.
Operation *copy(Operation *op, Node call, FunctionOp function, NodeBuilder &b, IRMapping &values) {
  Operation *made = b.rewriter().clone(*op, values);
  made->walk([&](Operation *inner) {
    for (NamedAttribute attr : llvm::to_vector(inner->getAttrs())) {
      auto ref = dyn_cast<RefAttr>(attr.getValue());
      if (!ref)
        continue;
      if (Attribute value = lookUp(call, function, ref.getName().getValue()))
        inner->setAttr(attr.getName(), value);
      else
        inner->removeAttr(attr.getName());
    }
  });
  return made;
}

} // namespace

LogicalResult inlineFunction(Node call, NodeBuilder &b, SmallVectorImpl<Value> &outputs) {
  FunctionOp function = findFunction(call);
  if (int64_t own = opsetVersion(&function.getBody().front().front(), ""); own != 0 && own != b.opset())
    for (Operation &op : function.getBody().front())
      if (Node node(&op); isNode(&op) && node.domain().empty()) {
        const onnx::OpSchema *there =
            onnx::OpSchemaRegistry::Schema(node.opType().str(), static_cast<int>(b.opset()), "");
        const onnx::OpSchema *here = node.schema();
        if (here && (!there || there->SinceVersion() != here->SinceVersion()))
          return call->emitError() << "node " << call.describe() << ": the function uses " << node.opType() << "-"
                                   << here->SinceVersion() << ", which the model's opset " << b.opset()
                                   << " defines otherwise";
      }
  IRMapping values;
  Block &body = function.getBody().front();
  for (BlockArgument argument : body.getArguments()) {
    Value given = call.input(argument.getArgNumber());
    values.map(argument, given ? given : b.absent());
  }
  for (Operation &op : body.without_terminator()) {
    Operation *made = copy(&op, call, function, b, values);
    b.adopt(made);
    if (failed(b.inference().infer(made)))
      return failure();
  }
  for (Value output : body.getTerminator()->getOperands())
    outputs.push_back(values.lookupOrDefault(output));
  outputs.resize(call.numOutputs());
  return success();
}

void replaceWithValues(Node node, ArrayRef<Value> outputs, TypeInference &types) {
  for (auto [result, value] : llvm::zip(node->getResults(), outputs)) {
    if (!value)
      continue;
    std::string name = nameOf(result).str();
    result.replaceAllUsesWith(value);
    if (!name.empty() && value.getDefiningOp() && !isa<InitializerOp>(value.getDefiningOp()))
      setName(value, name);
  }
  types.forget(node.operation());
  node->erase();
}

} // namespace recast::onnx_ir
