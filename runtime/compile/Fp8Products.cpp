// Products of values that were dequantised from 8-bit floats, as products of those 8-bit floats: cuBLASLt multiplies
// them and applies the scales to its sums.
//
//   MatMul(moves(dequantise(qa, sa)), moves(dequantise(qb, sb)))  ->  fp8_product(moves(qa), sa, moves(qb)T, sb)
//
// Moves are what lies between: transposes, and reshapes where there is one scale. The library wants the summed axis
// last in both operands, so the moves of an 8-bit tensor end with a transpose where that axis is not last; transposes
// that undo each other are none.
#include "ir/onnx/Node.h"
#include "ir/train/Dialect.h"
#include "runtime/compile/Unit.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/kernels/cuda/table/Matmul.h"

using namespace mlir;
using namespace recast::onnx_ir;
namespace recast::compile {

namespace {

using Ints = SmallVector<int64_t>;

/// Where an operand comes from.
struct Source {
  Value quantised, scales;
  std::optional<Ints> tile;       ///< None: one scale for all.
  bool isOne = false;             ///< There is one scale, maybe that of a tile.
  SmallVector<Operation *> moves; ///< From the operand back to the dequantised value.
  bool isFloat8() const { return static_cast<bool>(quantised); }
};

/// An operand of fp8_product: what becomes of the quantised tensor, and how its scales lie.
struct Operand {
  Source source;
  Ints dims;          ///< With the summed axis last.
  bool isTurned;      ///< The summed axis was the last but one.
  Ints tile, strides; ///< Along `dims`; empty where there is one scale.
};

Ints permOf(Operation *transpose, size_t rank) {
  if (auto perm = Node(transpose).getInts("perm"))
    return *perm;
  Ints reversed;
  for (size_t d = rank; d-- > 0;)
    reversed.push_back(static_cast<int64_t>(d));
  return reversed;
}
template <typename T> SmallVector<T> permuted(ArrayRef<T> values, ArrayRef<int64_t> perm) {
  SmallVector<T> result;
  for (int64_t from : perm)
    result.push_back(values[static_cast<size_t>(from)]);
  return result;
}

class Rewriter {
public:
  Rewriter(Unit &unit, int architecture) : unit(unit), b(unit.builder), architecture(architecture) {}

  /// Why a product stays as it is; "" where it does not, or has nothing to do with 8-bit floats.
  std::string rewrite(Operation *product);

  /// Tensors that are quantised and then transposed are quantised into both layouts at once.
  void quantiseTransposed();

private:
  Ints dimsOf(Value value) {
    TensorType type;
    [[maybe_unused]] std::string problem = unit.values.typeOf(value, type);
    return Ints(type.dims.begin(), type.dims.end());
  }
  Source trace(Value operand);
  std::string describeOperand(Operation *product, unsigned index, Operand &operand);
  Value moved(Operation *product, const Operand &operand);
  Value transposed(Operation *product, Value value, ArrayRef<int64_t> perm);
  Value reshaped(Operation *product, Value value, ArrayRef<int64_t> dims);
  Value made(Operation *product, Value from, StringRef op, Value shape, NamedAttribute attr);

  Unit &unit;
  NodeBuilder &b;
  int architecture;
  llvm::MapVector<std::pair<Value, Attribute>, Value> transposes;
  llvm::DenseMap<std::pair<Value, Attribute>, Value> reshapes;
};

Source Rewriter::trace(Value operand) {
  Source source;
  for (Value value = operand; Operation *op = value.getDefiningOp(); value = op->getOperand(0)) {
    if (!isNode(op))
      return source;
    Node node(op);
    bool isTiled = node.domain() == "recast" && node.opType() == "dequantize_fp8";
    if (isTiled || node.is("DequantizeLinear")) {
      Ints scales = dimsOf(node.input(1));
      source.isOne = llvm::all_of(scales, [](int64_t dim) { return dim == 1; });
      if (!isTiled && (!source.isOne || node.input(2)))
        return source;
      if (isTiled)
        source.tile = node.getInts("tile");
      Type element = elementTypeOf(node.input(0));
      if (isa<Float8E4M3FNType, Float8E5M2Type>(element))
        source.quantised = node.input(0), source.scales = node.input(1);
      return source;
    }
    if (!isa<TransposeOp, ReshapeOp, FlattenOp, SqueezeOp, UnsqueezeOp, IdentityOp>(op))
      return source;
    source.moves.push_back(op);
  }
  return source;
}

std::string Rewriter::describeOperand(Operation *product, unsigned index, Operand &operand) {
  Value value = product->getOperand(index);
  Ints dims = dimsOf(value);
  if (dims.size() < 2)
    return "an operand is no matrix";
  bool isGemm = isa<GemmOp>(product);
  bool isStoredTurned = isGemm && Node(product).getInt(index == 0 ? "transA" : "transB", 0);
  operand.isTurned = (index == 0) == isStoredTurned;
  Ints last;
  for (size_t d = 0; d < dims.size(); ++d)
    last.push_back(static_cast<int64_t>(d));
  if (operand.isTurned)
    std::swap(last[last.size() - 1], last[last.size() - 2]);
  operand.dims = permuted<int64_t>(dims, last);
  const Source &source = operand.source;
  if (!source.tile)
    return "";
  Ints root = dimsOf(source.quantised), tile = *source.tile, strides(root.size());
  if (tile.size() != root.size())
    return "the scales do not fit their tensor";
  for (int64_t d = static_cast<int64_t>(root.size()), stride = 1; d-- > 0;) {
    auto at = static_cast<size_t>(d);
    strides[at] = stride;
    stride *= tile[at] ? (root[at] + tile[at] - 1) / tile[at] : 1;
  }
  for (Operation *move : llvm::reverse(source.moves)) {
    if (isa<IdentityOp>(move))
      continue;
    if (!isa<TransposeOp>(move) && source.isOne)
      return "";
    if (!isa<TransposeOp>(move))
      return "the operand is reshaped after it was quantised, and has more than one scale";
    Ints perm = permOf(move, tile.size());
    tile = permuted<int64_t>(tile, perm);
    strides = permuted<int64_t>(strides, perm);
  }
  operand.tile = permuted<int64_t>(tile, last);
  operand.strides = permuted<int64_t>(strides, last);
  return "";
}

/// A view or a copy of an 8-bit tensor, where that is made, before what contains the product: so it is made once a step
/// where products of every micro-batch read it.
Value Rewriter::made(Operation *product, Value from, StringRef op, Value shape, NamedAttribute attr) {
  b.before(from.getParentBlock()->findAncestorOpInBlock(*product));
  b.setScope(nameOf(from));
  SmallVector<Value> operands{from};
  SmallVector<NamedAttribute> attrs;
  if (shape)
    operands.push_back(shape);
  else
    attrs.push_back(attr);
  Operation *made = b.node(op, operands, 1, attrs);
  made->setLoc(product->getLoc());
  if (!shape)
    if (auto spec = makeSpec(unit, made); succeeded(spec))
      unit.prepared[made] = {std::move(*spec), "reference", {}, 0, {}, false};
  return made->getResult(0);
}

Value Rewriter::transposed(Operation *product, Value value, ArrayRef<int64_t> perm) {
  if (llvm::is_sorted(perm))
    return value;
  NamedAttribute attr = b.attr("perm", perm);
  Value &result = transposes[{value, attr.getValue()}];
  if (!result)
    result = made(product, value, "Transpose", {}, attr);
  return result;
}

Value Rewriter::reshaped(Operation *product, Value value, ArrayRef<int64_t> dims) {
  if (dimsOf(value) == Ints(dims))
    return value;
  Value &result = reshapes[{value, b.attr("dims", dims).getValue()}];
  if (!result)
    result = made(product, value, "Reshape", b.ints(dims), b.attr("dims", dims));
  return result;
}

Value Rewriter::moved(Operation *product, const Operand &operand) {
  Value value = operand.source.quantised;
  auto inOrder = [](size_t rank) {
    Ints perm;
    for (size_t d = 0; d < rank; ++d)
      perm.push_back(static_cast<int64_t>(d));
    return perm;
  };
  Ints perm = inOrder(dimsOf(value).size()); // Not yet made.
  for (Operation *move : llvm::reverse(operand.source.moves)) {
    if (isa<TransposeOp>(move)) {
      perm = permuted<int64_t>(perm, permOf(move, perm.size()));
    } else if (!isa<IdentityOp>(move)) {
      Ints dims = dimsOf(move->getResult(0));
      value = reshaped(product, transposed(product, value, perm), dims);
      perm = inOrder(dims.size());
    }
  }
  if (operand.isTurned)
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return transposed(product, value, perm);
}

std::string Rewriter::rewrite(Operation *product) {
  Operand operands[2];
  for (unsigned i = 0; i < 2; ++i)
    operands[i].source = trace(product->getOperand(i));
  if (!operands[0].source.isFloat8() && !operands[1].source.isFloat8())
    return "";
  if (!operands[0].source.isFloat8() || !operands[1].source.isFloat8())
    return "only one operand has 8 bits";
  Node node(product);
  const Prepared &old = unit.prepared.at(product);
  StepSpec spec{old.spec.name, "recast", "fp8_product", 1, {}, {}, old.spec.outputs, {}};
  SmallVector<NamedAttribute> attrs;
  auto setInts = [&](std::string name, ArrayRef<int64_t> values) {
    attrs.push_back(b.attr(name, values));
    spec.attrs.set(std::move(name), std::vector<int64_t>(values.begin(), values.end()));
  };
  for (unsigned i = 0; i < 2; ++i) {
    if (std::string reason = describeOperand(product, i, operands[i]); !reason.empty())
      return reason;
    const Operand &operand = operands[i];
    TensorType quantised, scales;
    if (!unit.values.typeOf(operand.source.quantised, quantised).empty() ||
        !unit.values.typeOf(operand.source.scales, scales).empty())
      return "the type of an operand is unknown";
    quantised.dims.assign(operand.dims.begin(), operand.dims.end());
    spec.inputs.push_back(std::move(quantised));
    spec.inputs.push_back(std::move(scales));
    if (!operand.tile.empty()) {
      setInts(i == 0 ? "tile_a" : "tile_b", operand.tile);
      setInts(i == 0 ? "strides_a" : "strides_b", operand.strides);
    }
  }
  double alpha = node.getFloat("alpha", 1), beta = node.getFloat("beta", 1);
  Value addend = isa<GemmOp>(product) ? node.input(2) : Value();
  if (addend && beta != 1)
    return "beta is not 1";
  if (addend)
    spec.inputs.push_back(old.spec.inputs[2]);
  if (alpha != 1) {
    attrs.push_back(b.attr("alpha", alpha));
    spec.attrs.set("alpha", static_cast<float>(alpha));
  }
  spec.constants.resize(spec.inputs.size());
  cuda::Program program;
  std::string reason;
  if (!cuda::compile(spec, program, reason))
    return reason;
  for (const cuda::Launch &launch : program.launches)
    if (launch.kernel == cuda::kMatmul) {
      cuda::MatmulArgs args;
      std::memcpy(&args, launch.args.data(), sizeof(args));
      if (std::string rule = brokenRule(args, architecture); !rule.empty())
        return rule;
    }

  SmallVector<Value> inputs;
  for (const Operand &operand : operands) {
    inputs.push_back(moved(product, operand));
    inputs.push_back(operand.source.scales);
  }
  if (addend)
    inputs.push_back(addend);
  OpBuilder builder(product);
  OperationState state(product->getLoc(), NodeGenericOp::getOperationName());
  state.addAttribute("onnx.op_type", builder.getStringAttr(spec.op));
  state.addAttribute("onnx.domain", builder.getStringAttr(spec.domain));
  for (StringRef kept : {"onnx.name", "onnx.outputs"})
    if (Attribute value = product->getAttr(kept))
      state.addAttribute(kept, value);
  state.addAttributes(attrs);
  state.addOperands(inputs);
  state.addTypes(product->getResultTypes());
  Operation *result = builder.create(state);
  unit.prepared[result] = {std::move(spec), "reference", {}, 0, {}, false};
  product->replaceAllUsesWith(result);
  unit.erase(product);
  return "";
}

/// quantize_fp8 and quantize_fp8_tiles of CUDA plans have a third output, the transposed matrices, which `rows` and
/// `columns` describe; the first may be left out.
void Rewriter::quantiseTransposed() {
  for (auto &[key, value] : transposes) {
    Operation *transpose = value.getDefiningOp();
    Value source = sourceOf(unit, transpose->getOperand(0));
    Operation *quantise = source.getDefiningOp();
    if (!quantise || !isNode(quantise) || !unit.prepared.contains(quantise) || !unit.prepared.contains(transpose) ||
        !isa<train::TrainDialect>(quantise->getDialect()) || !Node(quantise).opType().starts_with("quantize_fp8") ||
        quantise->getBlock() != transpose->getBlock())
      continue;
    Ints dims = dimsOf(transpose->getOperand(0)), perm = permOf(transpose, dims.size());
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    if (!llvm::is_sorted(perm))
      continue;
    StepSpec spec = unit.prepared.at(quantise).spec;
    spec.attrs.set("rows", dims[dims.size() - 2]);
    spec.attrs.set("columns", dims.back());
    spec.outputs.push_back(unit.prepared.at(transpose).spec.outputs[0]);
    OpBuilder builder(quantise);
    OperationState state(quantise->getLoc(), NodeGenericOp::getOperationName());
    state.addAttribute("onnx.op_type", builder.getStringAttr(spec.op));
    state.addAttribute("onnx.domain", builder.getStringAttr(spec.domain));
    state.addAttribute("onnx.outputs",
                       stringArray(builder.getContext(),
                                   {nameOf(quantise->getResult(0)), nameOf(quantise->getResult(1)), nameOf(value)}));
    state.addOperands(quantise->getOperands());
    state.addTypes(quantise->getResultTypes());
    state.addTypes(value.getType());
    Operation *both = builder.create(state);
    value.replaceAllUsesWith(both->getResult(2));
    unit.erase(transpose);
    for (unsigned i = 0; i < 2; ++i)
      quantise->getResult(i).replaceAllUsesWith(both->getResult(i));
    unit.erase(quantise);
    unit.prepared[both] = {std::move(spec), "reference", {}, 0, {}, false};
  }
  removeDead(unit, unit.block);
  unit.graph->walk([&](Operation *op) { // Views of the first output may have been its last readers.
    if (auto prepared = unit.prepared.find(op); prepared != unit.prepared.end() && isa<NodeGenericOp>(op) &&
                                                prepared->second.spec.op.starts_with("quantize_fp8") &&
                                                op->getResult(0).use_empty())
      prepared->second.spec.outputs[0] = {};
  });
}

} // namespace

std::vector<std::pair<Operation *, std::string>> useFp8Products(Unit &unit, int architecture) {
  SmallVector<Operation *> products;
  unit.graph->walk([&](Operation *op) {
    if (isa<MatMulOp, GemmOp>(op) && unit.prepared.contains(op))
      products.push_back(op);
  });
  std::vector<std::pair<Operation *, std::string>> left;
  Rewriter rewriter(unit, architecture);
  for (Operation *product : products)
    if (std::string reason = rewriter.rewrite(product); !reason.empty())
      left.push_back({product, std::move(reason)});
  if (left.size() < products.size()) {
    removeDead(unit, unit.block);
    rewriter.quantiseTransposed();
  }
  return left;
}

} // namespace recast::compile
