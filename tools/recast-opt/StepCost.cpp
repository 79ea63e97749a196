#include "tools/recast-opt/StepCost.h"
#include "ir/cost/Profile.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/OwningOpRef.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::tools {

namespace {

Type typeOf(MLIRContext &context, const recast::TensorType &type) {
  if (!type.present())
    return AbsentType::get(&context);
  // The runtime numbers its types as ONNX does.
  return RankedTensorType::get(type.dims, elementTypeFromOnnx(&context, static_cast<int>(type.dtype)));
}

Attribute attributeOf(Builder &b, const Attributes::Value &value) {
  if (const auto *number = std::get_if<int64_t>(&value))
    return b.getI64IntegerAttr(*number);
  if (const auto *number = std::get_if<double>(&value))
    return b.getF32FloatAttr(static_cast<float>(*number));
  if (const auto *text = std::get_if<std::string>(&value))
    return b.getStringAttr(*text);
  if (const auto *numbers = std::get_if<std::vector<int64_t>>(&value))
    return b.getDenseI64ArrayAttr(*numbers);
  if (const auto *numbers = std::get_if<std::vector<float>>(&value))
    return b.getDenseF32ArrayAttr(*numbers);
  const auto &texts = std::get<std::vector<std::string>>(value);
  return b.getStrArrayAttr(SmallVector<StringRef>(texts.begin(), texts.end()));
}

} // namespace

StepCost costOfStep(MLIRContext &context, const Step &step) {
  const StepSpec &spec = step.spec;
  OwningOpRef<ModuleOp> module(ModuleOp::create(UnknownLoc::get(&context)));
  OpBuilder b = OpBuilder::atBlockEnd(module->getBody());
  auto graph = GraphOp::create(b, b.getUnknownLoc(), b.getDictionaryAttr({}));
  Block *block = b.createBlock(&graph.getBody());
  OperationName name((spec.domain == "recast" ? "train." : "onnx.") + spec.op, &context);
  bool isTyped = name.isRegistered() && (spec.domain.empty() || spec.domain == "recast");
  OperationState state(b.getUnknownLoc(), isTyped ? name : OperationName("onnx.node", &context));
  if (!isTyped) {
    state.addAttribute("onnx.op_type", b.getStringAttr(spec.op));
    state.addAttribute("onnx.domain", b.getStringAttr(spec.domain));
  }
  for (const auto &[key, value] : spec.attrs)
    state.addAttribute(key, attributeOf(b, value));
  llvm::DenseMap<int, Value> arguments; // A buffer that is read twice is one operand twice.
  for (auto [type, buffer] : llvm::zip(spec.inputs, step.inputs)) {
    Value &argument = arguments[buffer];
    if (!argument)
      argument = block->addArgument(typeOf(context, type), b.getUnknownLoc());
    state.addOperands(argument);
  }
  for (const recast::TensorType &type : spec.outputs)
    state.addTypes(typeOf(context, type));
  Operation *op = b.create(state);
  ReturnOp::create(b, b.getUnknownLoc(), op->getResults()); // The runtime leaves out what nothing reads.
  return {cost::operatorName(op), cost::costOf(op)};
}

} // namespace recast::tools
