// Result types and verification of the dialect's operators: most results have the type of one operand.
#include "ir/onnx/Node.h"
#include "ir/onnx/TensorData.h"
#include "ir/train/Dialect.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::train {

namespace {

Type unscaled(Type type) {
  auto scaled = dyn_cast<ScaledType>(type);
  return scaled ? scaled.getTensor() : type;
}

// The type that a shape operand describes: constant where known, else unknown sizes of the operand's length.
Type typeOfShape(Value shape, Type element) {
  auto type = dyn_cast<RankedTensorType>(shape.getType());
  if (auto dims = constantInts(shape))
    return RankedTensorType::get(*dims, element);
  if (Operation *op = shape.getDefiningOp(); op && isa<ShapeOp>(op) && op->getAttrs().size() <= 3)
    if (auto source = dyn_cast<RankedTensorType>(op->getOperand(0).getType()); source && !op->hasAttr("start"))
      return RankedTensorType::get(source.getShape(), element, source.getEncoding());
  if (!type || type.getRank() != 1 || type.isDynamicDim(0))
    return UnrankedTensorType::get(element);
  return RankedTensorType::get(SmallVector<int64_t>(type.getDimSize(0), ShapedType::kDynamic), element);
}

// dy [N, M, ...], w [M, C/group, ...] -> [N, C, input_spatial...]
Type convInputType(Node node) {
  auto dy = dyn_cast<RankedTensorType>(node.input(0).getType());
  auto w = dyn_cast<RankedTensorType>(node.input(1).getType());
  auto spatial = node.getInts("input_spatial");
  if (!dy || !w || !spatial)
    return {};
  int64_t channels = w.isDynamicDim(1) ? ShapedType::kDynamic : w.getDimSize(1) * node.getInt("group", 1);
  SmallVector<int64_t> dims{dy.getDimSize(0), channels};
  dims.append(*spatial);
  return tensorType(dims, {dimSymbol(dy, 0)}, dy.getElementType());
}

Type convWeightType(Node node) {
  auto x = dyn_cast<RankedTensorType>(node.input(0).getType());
  auto dy = dyn_cast<RankedTensorType>(node.input(1).getType());
  auto kernel = node.getInts("kernel_shape");
  if (!x || !dy || !kernel)
    return {};
  int64_t channels = x.isDynamicDim(1) ? ShapedType::kDynamic : x.getDimSize(1) / node.getInt("group", 1);
  SmallVector<int64_t> dims{dy.getDimSize(1), channels};
  dims.append(*kernel);
  return RankedTensorType::get(dims, dy.getElementType());
}

Type poolInputType(Node node) {
  auto dy = dyn_cast<RankedTensorType>(node.input(0).getType());
  auto spatial = node.getInts("input_spatial");
  if (!dy || !spatial)
    return {};
  SmallVector<int64_t> dims{dy.getDimSize(0), dy.getDimSize(1)};
  dims.append(*spatial);
  return tensorType(dims, {dimSymbol(dy, 0), dimSymbol(dy, 1)}, dy.getElementType());
}

// The operands of an optimizer that its results replace: the parameter and its state.
ArrayRef<unsigned> stateOperands(Operation *op) {
  static constexpr unsigned kAdam[] = {1, 3, 4, 11}, kThree[] = {1, 3, 4, 5}, kTwo[] = {1, 3, 4}, kOne[] = {1, 3};
  if (isa<AdamWOp, AdamOp>(op))
    return kAdam;
  if (isa<NAdamOp, RmsPropOp>(op))
    return kThree;
  if (isa<RAdamOp>(op))
    return kTwo;
  if (isa<AdagradOp, LionOp>(op))
    return kOne;
  return {};
}

// One entry a tile of x; a scalar where every tile is a whole dimension.
Type tileScaleType(Node node) {
  auto x = dyn_cast<RankedTensorType>(node.input(0).getType());
  auto tile = node.getInts("tile");
  Type element =
      elementTypeFromOnnx(node->getContext(), static_cast<int>(node.getInt("scale_type", onnx::TensorProto::FLOAT)));
  if (!x || !tile || tile->size() != static_cast<size_t>(x.getRank()))
    return UnrankedTensorType::get(element);
  if (llvm::all_of(*tile, [](int64_t edge) { return edge == 0; }))
    return RankedTensorType::get({}, element);
  SmallVector<int64_t> dims;
  SmallVector<StringRef> symbols;
  for (auto [i, edge] : llvm::enumerate(*tile)) {
    int64_t size = x.getDimSize(i);
    dims.push_back(edge == 0 ? 1 : ShapedType::isDynamic(size) ? size : (size + edge - 1) / edge);
    symbols.push_back(edge == 1 ? dimSymbol(x, i) : "");
  }
  return tensorType(dims, symbols, element);
}

} // namespace

bool inferTypes(Operation *op, SmallVectorImpl<Type> &types) {
  Node node(op);
  MLIRContext *context = op->getContext();
  auto operand = [&](unsigned i) { return op->getOperand(i).getType(); };
  auto element = [&](unsigned i) { return elementTypeOf(op->getOperand(i)); };
  auto scalar = [&](Type type) { return RankedTensorType::get({}, type); };
  Type boolean = scalar(IntegerType::get(context, 1));
  unsigned last = op->getNumOperands() - 1;

  auto orOperand = [&](Type type, unsigned i) { types.push_back(type ? type : operand(i)); };
  if (isa<ReduceToOp, SliceGradOp, PadGradOp>(op)) {
    types.push_back(typeOfShape(op->getOperand(1), element(0)));
  } else if (isa<GatherGradOp>(op)) {
    types.push_back(typeOfShape(op->getOperand(2), element(0)));
  } else if (isa<ConvGradInputOp>(op)) {
    orOperand(convInputType(node), 0);
  } else if (isa<ConvGradWeightOp>(op)) {
    orOperand(convWeightType(node), 0);
  } else if (isa<AveragePoolGradOp>(op)) {
    orOperand(poolInputType(node), 0);
  } else if (isa<MaxPoolGradOp, CrossEntropyGradOp, NllLossGradOp>(op)) {
    types.push_back(operand(1));
  } else if (isa<LayerNormGradOp, BatchNormGradOp, RmsNormGradOp>(op)) {
    types.push_back(operand(1));
    types.append(op->getNumResults() - 1, operand(2));
  } else if (isa<SoftmaxGradOp, LogSoftmaxGradOp, ScaleLossOp, WindowSumOp, RoundTf32Op>(op)) {
    types.push_back(operand(0));
  } else if (isa<DropoutMaskOp>(op)) {
    types.push_back(typeOfShape(op->getOperand(1), IntegerType::get(context, 1)));
  } else if (isa<RandomUniformOp>(op)) {
    types.push_back(typeOfShape(op->getOperand(1), Float32Type::get(context)));
  } else if (isa<MarkScaledOp>(op)) {
    types.push_back(ScaledType::get(context, operand(0)));
  } else if (isa<UnscaleOp>(op)) {
    for (unsigned i = 0; i < last; ++i)
      types.push_back(unscaled(operand(i)));
    types.push_back(boolean);
  } else if (isa<CheckFiniteOp>(op)) {
    types.push_back(boolean);
  } else if (isa<GradNormOp>(op)) {
    types.push_back(scalar(element(0)));
  } else if (isa<GradStatsOp>(op)) {
    types.append({scalar(element(0)), scalar(element(0)), scalar(IntegerType::get(context, 64)), scalar(element(0))});
  } else if (isa<ClipGradNormOp, ClipGradValueOp>(op)) {
    for (unsigned i = 0; i < last; ++i)
      types.push_back(operand(i));
    if (isa<ClipGradNormOp>(op))
      types.push_back(scalar(element(0)));
  } else if (isa<SgdOp>(op)) {
    types.push_back(operand(1));
    if (op->getNumResults() > 1)
      types.push_back(node.input(3) ? operand(3) : Type(AbsentType::get(context)));
  } else if (ArrayRef<unsigned> state = stateOperands(op); !state.empty()) {
    for (unsigned i : state)
      if (node.input(i))
        types.push_back(operand(i));
  } else if (isa<UpdateLossScaleOp, KeepIfOp, EmaOp>(op)) {
    types.push_back(operand(1));
    if (isa<UpdateLossScaleOp>(op))
      types.push_back(operand(2));
    if (isa<UpdateLossScaleOp>(op) && node.input(8))
      types.push_back(operand(8));
  } else if (isa<QuantizeFp8Op, QuantizeFp8TilesOp>(op)) {
    types.push_back(withElementType(operand(0), elementTypeFromOnnx(context, static_cast<int>(node.getInt("to", 0)))));
    types.push_back(isa<QuantizeFp8Op>(op) ? scalar(Float32Type::get(context)) : tileScaleType(node));
  } else if (isa<DequantizeFp8Op>(op)) {
    types.push_back(withElementType(operand(0), Float32Type::get(context)));
  } else if (isa<UpdateAmaxOp>(op)) {
    types.append({operand(1), operand(2)});
  } else if (isa<AllReduceOp, OffloadOp, FetchOp>(op)) {
    llvm::append_range(types, op->getOperandTypes());
  } else if (isa<RankOp>(op)) {
    types.push_back(scalar(IntegerType::get(context, 64)));
  } else if (isa<BarrierOp>(op)) {
    llvm::append_range(types, op->getOperandTypes());
    if (types.size() > op->getNumResults()) // The rest are what it waits for.
      types.truncate(op->getNumResults());
  } else {
    return false;
  }
  return types.size() == op->getNumResults();
}

LogicalResult verifyOp(Operation *op) {
  for (auto [i, type] : llvm::enumerate(op->getOperandTypes()))
    if (isa<ScaledType>(type) && !isa<UnscaleOp>(op))
      return op->emitOpError() << "operand " << i
                               << " is a gradient that still carries the loss scale: unscale it first";
  if (auto unscale = dyn_cast<UnscaleOp>(op)) {
    for (auto [i, type] : llvm::enumerate(op->getOperands().drop_back().getTypes()))
      if (!isa<ScaledType>(type))
        return op->emitOpError() << "operand " << i << " carries no loss scale: it would be unscaled twice";
    if (op->getNumResults() != op->getNumOperands())
      return op->emitOpError() << "needs " << op->getNumOperands() << " results, one a gradient and found_inf";
  }
  if (isa<QuantizeFp8Op, QuantizeFp8TilesOp, UpdateAmaxOp>(op))
    if (int64_t to = Node(op).getInt("to", 0);
        to != onnx::TensorProto::FLOAT8E4M3FN && to != onnx::TensorProto::FLOAT8E5M2)
      return op->emitOpError() << "attribute 'to' is " << to << ": FLOAT8E4M3FN (17) or FLOAT8E5M2 (19) is needed";
  SmallVector<Type> types;
  if (!inferTypes(op, types))
    return op->emitOpError() << "has " << op->getNumResults() << " results, which its operands do not allow";
  return success();
}

} // namespace recast::train
