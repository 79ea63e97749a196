#include "ir/onnx/IntendedValue.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "ir/onnx/TypeInference.h"
#include "passes/Passes.h"
#include "mlir/IR/Builders.h"

namespace recast {
#define GEN_PASS_DEF_CONVERTDTYPE
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

bool isPlainFloat(Type type) { return type && (type.isF16() || type.isBF16() || type.isF32() || type.isF64()); }

struct ConvertDtypePass : impl::ConvertDtypeBase<ConvertDtypePass> {
  using ConvertDtypeBase::ConvertDtypeBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    Builder b(&getContext());
    if (type != "f32" && type != "f64") {
      graph.emitError() << "--dtype=" << type << ": f32 or f64 is needed";
      return signalPassFailure();
    }
    target = type == "f64" ? Type(b.getF64Type()) : Type(b.getF32Type());
    targetNumber = elementTypeToOnnx(target);
    forgetDeclaredTypes(graph);

    Block &block = graph.getBody().front();
    for (BlockArgument argument : block.getArguments())
      if (isPlainFloat(elementTypeOf(argument)))
        argument.setType(withElementType(argument.getType(), target));
    if (auto defaults = graph.getInfo().getAs<ArrayAttr>("defaults")) {
      SmallVector<Attribute> converted;
      for (Attribute value : defaults)
        converted.push_back(isa<TensorAttr>(value) ? Attribute(convert(cast<TensorAttr>(value), false)) : value);
      graph.setInfoAttr(withEntry(graph.getInfo(), "defaults", b.getArrayAttr(converted)));
    }
    getOperation()->walk([&](Operation *op) { convertOperation(op, b); });
    TypeInference types;
    if (failed(types.inferAll(graph.getBody(), /*fresh=*/true)))
      signalPassFailure();
  }

  TensorAttr convert(TensorAttr tensor, bool isConstant) {
    Type from = tensor.getType().getElementType();
    if (!isPlainFloat(from) || from == target)
      return tensor;
    ++numTensors;
    if (!isConstant || !from.isF32() || !target.isF64())
      return convertFloat(tensor, target);
    auto values = asDoubles(tensor);
    for (double &value : *values)
      value = intendedValue(static_cast<float>(value));
    SmallVector<char> bytes;
    encode(target, *values, bytes);
    return makeTensor(RankedTensorType::get(tensor.getType().getShape(), target), bytes);
  }

  void convertOperation(Operation *op, Builder &b) {
    if (auto initializer = dyn_cast<InitializerOp>(op)) {
      // A single number is a constant of the formula; anything larger may be a parameter and keeps its exact values.
      TensorAttr tensor = convert(initializer.getValue(), initializer.getValue().getType().getNumElements() == 1);
      initializer.setValueAttr(tensor);
      initializer.getResult().setType(tensor.getType());
      return;
    }
    if (!isNode(op))
      return;
    Node node(op);
    if (node.is("Constant")) {
      if (TensorAttr tensor = constantOf(op->getResult(0)); tensor && isPlainFloat(tensor.getType().getElementType())) {
        for (StringRef name : {"value_float", "value_floats"})
          op->removeAttr(name);
        op->setAttr("value", convert(tensor, true));
        op->getResult(0).setType(cast<TensorAttr>(op->getAttr("value")).getType());
      }
      return;
    }
    // ConstantOfShape gives f32 zeros where nothing is said.
    if (node.is("ConstantOfShape") && !op->hasAttr("value"))
      op->setAttr("value", splatTensor(RankedTensorType::get({1}, target), 0));
    for (NamedAttribute attr : llvm::to_vector(op->getAttrs())) {
      StringRef name = attr.getName().strref();
      if (auto tensor = dyn_cast<TensorAttr>(attr.getValue()))
        op->setAttr(name, convert(tensor, true));
      else if (auto number = dyn_cast<IntegerAttr>(attr.getValue()); number && isTypeAttribute(node, name))
        if (isPlainFloat(elementTypeFromOnnx(&getContext(), static_cast<int>(number.getInt()))))
          op->setAttr(name, b.getI64IntegerAttr(targetNumber));
    }
  }

  static bool isTypeAttribute(Node node, StringRef name) {
    return (name == "to" && node.is("Cast")) || name == "dtype" || name == "stash_type" || name == "softmax_precision";
  }

  Type target;
  int64_t targetNumber = 0;
};

} // namespace
} // namespace recast
