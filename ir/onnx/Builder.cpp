#include "ir/onnx/Builder.h"

using namespace mlir;
namespace recast::onnx_ir {

NameScope::NameScope(Operation *graph) : context(graph->getContext()) {
  auto take = [&](ArrayAttr list) {
    if (list)
      names.insert(list.begin(), list.end());
  };
  auto outputs = StringAttr::get(context, "onnx.outputs");
  graph->walk([&](Operation *op) {
    take(op->getAttrOfType<ArrayAttr>(outputs));
    for (Region &region : op->getRegions())
      if (DictionaryAttr info = graphInfo(region))
        for (StringRef key : {"inputs", "outputs"})
          take(info.getAs<ArrayAttr>(key));
  });
}

StringAttr NameScope::uniqueAttr(StringRef hint) {
  StringAttr name;
  auto last = next.find(hint);
  if (last == next.end()) {
    name = StringAttr::get(context, hint);
    if (names.insert(name).second)
      return name;
    last = next.try_emplace(hint, 0).first;
  }
  do
    name = StringAttr::get(context, hint + "_" + Twine(++last->second));
  while (!names.insert(name).second);
  return name;
}

static Block *graphBlock(Operation *anchor) {
  while (!isa<GraphOp, FunctionOp>(anchor))
    anchor = anchor->getParentOp();
  return &anchor->getRegion(0).front();
}

NodeBuilder::NodeBuilder(Operation *anchor, NameScope &names, TypeInference &types)
    : block(graphBlock(anchor)), builder(anchor->getContext()), names(names), types(types),
      opsetOfDefaultDomain(opsetVersion(block->getParentOp(), "")),
      location(NameLoc::get(StringAttr::get(anchor->getContext()))), outputsKey(builder.getStringAttr("onnx.outputs")),
      nameKey(builder.getStringAttr("onnx.name")) {
  if (block->mightHaveTerminator())
    builder.setInsertionPoint(block->getTerminator());
  else
    builder.setInsertionPointToEnd(block);
}

void NodeBuilder::setScope(StringRef text) {
  scope = text.str();
  location = NameLoc::get(builder.getStringAttr(scope));
}

Operation *NodeBuilder::node(StringRef op, ValueRange inputs, unsigned numOutputs, Attrs attrs) {
  MLIRContext *ctx = context();
  SmallVector<Value> operands;
  for (Value input : inputs)
    operands.push_back(input ? input : absent());
  bool isTrain = op.consume_front("train.");
  OperationName name((isTrain ? "train." : "onnx.") + op.str(), ctx);
  OperationState state(location, name);
  if (!name.isRegistered()) {
    state.name = OperationName("onnx.node", ctx);
    state.addAttribute("onnx.op_type", builder.getStringAttr(op));
    state.addAttribute("onnx.domain", builder.getStringAttr(isTrain ? "recast" : ""));
  }
  state.addOperands(operands);
  state.addAttributes(attrs);
  state.addTypes(SmallVector<Type>(numOutputs, UnknownType::get(ctx)));
  std::string hint = (scope.empty() ? "" : scope + "/") + op.str();
  SmallVector<Attribute> outputs;
  for (unsigned i = 0; i < numOutputs; ++i)
    outputs.push_back(names.uniqueAttr(hint));
  state.addAttribute(outputsKey, builder.getArrayAttr(outputs));
  if (!scope.empty())
    state.addAttribute(nameKey, outputs.front());
  Operation *created = builder.create(state);
  if (mlir::failed(types.infer(created)))
    sawFailure = true;
  return created;
}

void NodeBuilder::adopt(Operation *copied) {
  std::string prefix = scope.empty() ? "" : scope + "/";
  for (Value result : copied->getResults())
    if (!isAbsent(result))
      setName(result, names.unique(prefix + nameOf(result).str()));
  if (auto name = copied->getAttrOfType<StringAttr>("onnx.name"); name && !name.getValue().empty())
    copied->setAttr("onnx.name", builder.getStringAttr(prefix + name.getValue()));
}

Value NodeBuilder::absent() {
  if (!absentValue) {
    OpBuilder::InsertionGuard guard(builder);
    builder.setInsertionPointToStart(block);
    absentValue = AbsentOp::create(builder, builder.getUnknownLoc(), AbsentType::get(context()));
  }
  return absentValue;
}

Value NodeBuilder::constant(TensorAttr tensor) {
  if (Value known = constants.lookup(tensor))
    return known;
  OpBuilder::InsertionGuard guard(builder);
  Type element = tensor.getType().getElementType();
  // Before opset 9 Constant holds floats only. A function has no initializers, so that others are cast there.
  bool holdsFloatsOnly = opset() < 9 && !isa<FloatType>(element), inFunction = isa<FunctionOp>(block->getParentOp());
  if (holdsFloatsOnly && inFunction) {
    SmallVector<char> bytes;
    encode(builder.getF64Type(), *asDoubles(tensor), bytes);
    Value wide = constant(makeTensor(RankedTensorType::get(tensor.getType().getShape(), builder.getF64Type()), bytes));
    builder.setInsertionPointAfterValue(wide);
    return constants[tensor] = cast(wide, element);
  }
  builder.setInsertionPointToStart(block);
  std::string name = names.unique("const");
  OperationState state(builder.getUnknownLoc(), holdsFloatsOnly ? "onnx.initializer" : "onnx.Constant");
  state.addAttribute("value", tensor);
  state.addAttribute("onnx.outputs", stringArray(context(), {name}));
  state.addTypes(withoutSymbols(tensor.getType()));
  return constants[tensor] = builder.create(state)->getResult(0);
}

Value NodeBuilder::scalar(Type elementType, double value) {
  return constant(splatTensor(RankedTensorType::get({}, elementType), value));
}

Value NodeBuilder::ints(ArrayRef<int64_t> values) { return constant(intsTensor(context(), values)); }

Value NodeBuilder::intScalar(int64_t value) {
  ArrayRef<char> bytes(reinterpret_cast<const char *>(&value), sizeof value);
  return constant(makeTensor(RankedTensorType::get({}, builder.getI64Type()), bytes));
}

Value NodeBuilder::cast(Value x, Type elementType) {
  if (elementTypeOf(x) == elementType)
    return x;
  return node("Cast", {x}, attr("to", static_cast<int64_t>(elementTypeToOnnx(elementType))));
}

Value NodeBuilder::where(Value condition, Value a, Value b) {
  Type element = elementTypeOf(a);
  if (!element || !element.isBF16() || opset() >= 16)
    return node("Where", {condition, a, b});
  Type wide = builder.getF32Type();
  return cast(node("Where", {condition, cast(a, wide), cast(b, wide)}), element);
}

Value NodeBuilder::compare(StringRef op, Value a, Value b) {
  // Both exist since opset 12, and ONNX infers their types since 16.
  if (opset() >= 16 || (op != "GreaterOrEqual" && op != "LessOrEqual"))
    return node(op, {a, b});
  return node("Not", {node(op == "GreaterOrEqual" ? "Less" : "Greater", {a, b})});
}

Value NodeBuilder::shapeOf(Value x) {
  auto type = dyn_cast<RankedTensorType>(x.getType());
  if (type && type.hasStaticShape())
    return ints(type.getShape());
  return node("Shape", {x});
}

Value NodeBuilder::reshape(Value x, Value shape) { return node("Reshape", {x, shape}); }

Value NodeBuilder::matrixTranspose(Value x) {
  int64_t rank = mlir::cast<RankedTensorType>(x.getType()).getRank();
  auto perm = llvm::to_vector(llvm::seq<int64_t>(0, rank));
  std::swap(perm[rank - 2], perm[rank - 1]);
  return transpose(x, perm);
}

Value NodeBuilder::unsqueeze(Value x, ArrayRef<int64_t> axes) {
  if (axes.empty())
    return x;
  return opset() >= 13 ? node("Unsqueeze", {x, ints(axes)}) : node("Unsqueeze", {x}, attr("axes", axes));
}

Value NodeBuilder::squeeze(Value x, ArrayRef<int64_t> axes) {
  if (axes.empty())
    return x;
  return opset() >= 13 ? node("Squeeze", {x, ints(axes)}) : node("Squeeze", {x}, attr("axes", axes));
}

Value NodeBuilder::slice(Value x, ArrayRef<int64_t> starts, ArrayRef<int64_t> ends, ArrayRef<int64_t> axes) {
  if (opset() >= 10)
    return node("Slice", {x, ints(starts), ints(ends), ints(axes)});
  return node("Slice", {x}, {attr("starts", starts), attr("ends", ends), attr("axes", axes)});
}

Value NodeBuilder::filled(Value shape, Type elementType, double value) {
  if (auto dims = constantInts(shape); dims && opset() < 9) // ConstantOfShape exists since then
    return constant(splatTensor(RankedTensorType::get(*dims, elementType), value));
  if (elementType.isBF16() && opset() < 20) // ... and takes it since then
    return cast(filled(shape, builder.getF32Type(), value), elementType);
  TensorAttr tensor = splatTensor(RankedTensorType::get({1}, elementType), value);
  return node("ConstantOfShape", {shape}, builder.getNamedAttr("value", tensor));
}

Value NodeBuilder::zerosLike(Value x) { return filled(shapeOf(x), elementTypeOf(x), 0); }

Value NodeBuilder::reduce(StringRef op, Value x, ArrayRef<int64_t> axes, bool keepDims) {
  // ReduceSum took its axes as an input in opset 13, the others in 18.
  bool asInput = opset() >= (op == "ReduceSum" ? 13 : 18);
  NamedAttribute keep = attr("keepdims", static_cast<int64_t>(keepDims));
  if (axes.empty())
    return node(op, {x}, keep);
  return asInput ? node(op, {x, ints(axes)}, keep) : node(op, {x}, {attr("axes", axes), keep});
}

} // namespace recast::onnx_ir
