#include "ir/onnx/Builder.h"
#include "ir/onnx/IntendedValue.h"
#include "ir/onnx/Node.h"
#include "ir/onnx/RotaryTable.h"
#include "ir/onnx/TensorData.h"
#include "ir/onnx/TypeInference.h"
#include "mlir/IR/Builders.h"
#include "onnx/defs/data_type_utils.h"
#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"

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
    names = std::make_shared<NameScope>(graph);
    fixed.clear();
    getOperation()->walk([&](Operation *op) { keepFixedOperands(op); });

    Block &block = graph.getBody().front();
    for (BlockArgument argument : block.getArguments())
      if (isPlainFloat(elementTypeOf(argument)))
        argument.setType(withElementType(argument.getType(), target));
    if (auto defaults = graph.getInfo().getAs<ArrayAttr>("defaults")) {
      SmallVector<Attribute> converted;
      for (Attribute value : defaults)
        converted.push_back(isa<TensorAttr>(value) ? Attribute(convert(cast<TensorAttr>(value), Widen::Exactly))
                                                   : value);
      graph.setInfoAttr(withEntry(graph.getInfo(), "defaults", b.getArrayAttr(converted)));
    }
    getOperation()->walk([&](Operation *op) { convertOperation(op, b); });
    TypeInference types;
    if (failed(types.inferAll(graph.getBody(), /*fresh=*/true)))
      signalPassFailure();
  }

  // What is done to the values beside the type: constants of the formula get back what the file rounded off.
  enum class Widen { Exactly, Constant, Table };

  TensorAttr convert(TensorAttr tensor, Widen how) {
    Type from = tensor.getType().getElementType();
    if (!isPlainFloat(from) || from == target)
      return tensor;
    ++numTensors;
    ArrayRef<int64_t> shape = tensor.getType().getShape();
    std::optional<SmallVector<double>> values;
    if (from.isF32() && target.isF64() && how == Widen::Constant) {
      values = asDoubles(tensor);
      for (double &value : *values)
        value = intendedValue(static_cast<float>(value));
    } else if (from.isF32() && target.isF64() && how == Widen::Table && shape.size() >= 2) {
      int64_t rows = shape[shape.size() - 2], columns = shape.back();
      if (tensor.getType().getNumElements() == rows * columns)
        values = widenRotaryTable(*asDoubles(tensor), rows, columns);
    }
    if (!values)
      return convertFloat(tensor, target);
    SmallVector<char> bytes;
    encode(target, *values, bytes);
    return makeTensor(RankedTensorType::get(shape, target), bytes);
  }

  // Operands that are no data of the computation and that the schema does not allow to have the target type (scales of
  // Resize are float) get values of their own, which keep the type that they have.
  void keepFixedOperands(Operation *op) {
    const onnx::OpSchema *schema = isNode(op) ? Node(op).schema() : nullptr;
    if (!schema || schema->inputs().empty())
      return;
    onnx::DataType wanted = onnx::Utils::DataTypeUtils::ToType(type == "f64" ? "tensor(double)" : "tensor(float)");
    for (unsigned i = 0; i < op->getNumOperands(); ++i) {
      Value operand = op->getOperand(i);
      const auto &formal = schema->inputs()[std::min<size_t>(i, schema->inputs().size() - 1)];
      Type element = isAbsent(operand) ? Type() : elementTypeOf(operand);
      bool isData = formal.GetTypeStr() == schema->inputs()[0].GetTypeStr() ||
                    llvm::any_of(schema->outputs(),
                                 [&](const auto &output) { return output.GetTypeStr() == formal.GetTypeStr(); });
      if (!isPlainFloat(element) || element == target || isData || formal.GetTypes().count(wanted))
        continue;
      OpBuilder builder(op);
      TensorAttr value = constantOf(operand);
      OperationState state(op->getLoc(), value ? ConstantOp::getOperationName() : CastOp::getOperationName());
      if (value) {
        state.addAttribute("value", value);
      } else {
        state.addOperands(operand);
        state.addAttribute("to", builder.getI64IntegerAttr(elementTypeToOnnx(element)));
      }
      state.addAttribute("onnx.outputs", stringArray(&getContext(), {names->unique(nameOf(operand))}));
      state.addTypes(operand.getType());
      Operation *own = builder.create(state);
      fixed.insert(own);
      op->setOperand(i, own->getResult(0));
    }
  }

  // Bounds and thresholds meet data that are floats themselves: they must stay equal to them.
  static bool isCompared(Value value) {
    return llvm::any_of(value.getUsers(), [](Operation *user) {
      Node node(user);
      for (StringRef op : {"Clip", "Min", "Max", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
        if (node.is(op))
          return true;
      return false;
    });
  }

  // A single number is a constant of the formula unless it may be a parameter, as may anything larger that is no known
  // table.
  static Widen widening(Value value, TensorAttr tensor) {
    if (tensor.getType().getNumElements() == 1)
      return isCompared(value) || gradient::looksLikeParameter(value) ? Widen::Exactly : Widen::Constant;
    return Widen::Table;
  }

  void convertOperation(Operation *op, Builder &b) {
    if (auto initializer = dyn_cast<InitializerOp>(op)) {
      TensorAttr tensor = convert(initializer.getValue(), widening(initializer.getResult(), initializer.getValue()));
      initializer.setValueAttr(tensor);
      initializer.getResult().setType(tensor.getType());
      return;
    }
    if (!isNode(op) || fixed.contains(op))
      return;
    Node node(op);
    if (node.is("Constant")) {
      if (TensorAttr tensor = constantOf(op->getResult(0)); tensor && isPlainFloat(tensor.getType().getElementType())) {
        for (StringRef name : {"value_float", "value_floats"})
          op->removeAttr(name);
        op->setAttr("value", convert(tensor, isCompared(op->getResult(0)) ? Widen::Exactly : Widen::Constant));
        op->getResult(0).setType(cast<TensorAttr>(op->getAttr("value")).getType());
      }
      return;
    }
    // ConstantOfShape gives f32 zeros where nothing is said.
    if (node.is("ConstantOfShape") && !op->hasAttr("value"))
      op->setAttr("value", splatTensor(RankedTensorType::get({1}, target), 0));
    if (isa<RandomUniformOp, RandomNormalOp>(op) && !op->hasAttr("dtype"))
      op->setAttr("dtype", b.getI64IntegerAttr(targetNumber));
    for (NamedAttribute attr : llvm::to_vector(op->getAttrs())) {
      StringRef name = attr.getName().strref();
      if (auto tensor = dyn_cast<TensorAttr>(attr.getValue()))
        op->setAttr(name, convert(tensor, Widen::Exactly));
      else if (auto number = dyn_cast<IntegerAttr>(attr.getValue()); number && isTypeAttribute(node, name))
        if (isPlainFloat(elementTypeFromOnnx(&getContext(), static_cast<int>(number.getInt()))))
          op->setAttr(name, b.getI64IntegerAttr(targetNumber));
    }
  }

  static bool isTypeAttribute(Node node, StringRef name) {
    return (name == "to" && node.is("Cast")) || name == "dtype" || name == "stash_type" || name == "softmax_precision";
  }

  Type target;
  std::shared_ptr<NameScope> names;
  llvm::DenseSet<Operation *> fixed; ///< Constants that keep their type.
  int64_t targetNumber = 0;
};

} // namespace
} // namespace recast
