#include "passes/Passes.h"
#include "passes/gradient/Differentiability.h"
#include "passes/precision/Fp8.h"
#include "passes/step/StepInfo.h"
#include "llvm/ADT/SetVector.h"

namespace recast {
#define GEN_PASS_DEF_QUANTIZEPRODUCTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;
using precision::Fp8Recipe;

namespace {

constexpr int64_t kBlock = 128, kMxBlock = 32; // DeepSeek-V3 (arXiv:2412.19437), 3.3.2; OCP MX v1.0

bool isFloatCast(Operation *op) {
  return isa<CastOp>(op) && isFloatTensor(op->getOperand(0)) && isFloatTensor(op->getResult(0));
}

// An operand as it was before casts and moves of elements.
struct Source {
  Value root;
  int64_t axis;                   ///< The contraction's, in root. Meaningless where reshapes are passed.
  SmallVector<Operation *> moves; ///< From the operand back to the root; casts are left out.
};

// A tensor in fp8.
struct Quantised {
  Value values, inverseScale;
};

class Quantiser {
public:
  Quantiser(step::StepGraph &s, Fp8Recipe recipe, bool keepsState, int64_t history)
      : s(s), b(s.b), recipe(recipe == Fp8Recipe::Delayed && !keepsState ? Fp8Recipe::Current : recipe),
        history(history) {
    Block &block = s.graph.getBody().front();
    if (Value objective = s.info.objective.empty() ? Value() : s.find(s.info.objective))
      forward = gradient::influencingValues(s.graph, objective);
    else
      for (Operation &op : block)
        forward.insert(op.result_begin(), op.result_end());
    hasGradients = !s.info.objective.empty();
  }

  void run() {
    SmallVector<Operation *> marked;
    for (Operation &op : s.graph.getBody().front())
      if (op.hasAttr(precision::kFp8Product))
        marked.push_back(&op);
    for (Operation *op : marked)
      rewrite(op);
    removeUnread();
  }
  unsigned numTensors() const { return static_cast<unsigned>(tensors.size()); }

private:
  // A scale for the whole tensor does not care where elements are.
  bool isPerTensor() const { return recipe == Fp8Recipe::Delayed || recipe == Fp8Recipe::Current; }

  bool isMove(Operation *op, bool reshapes) const {
    return isa<IdentityOp, TransposeOp>(op) || (reshapes && isa<ReshapeOp, FlattenOp, SqueezeOp, UnsqueezeOp>(op));
  }

  Source trace(precision::ProductOperand operand, bool reshapes) const {
    Source source{operand.value, operand.contraction, {}};
    while (Operation *op = source.root.getDefiningOp()) {
      if (!isNode(op) || products.contains(source.root) || !(isFloatCast(op) || isMove(op, reshapes)))
        break;
      if (isa<TransposeOp>(op)) {
        int64_t rank = cast<RankedTensorType>(source.root.getType()).getRank();
        auto perm = Node(op).getInts("perm");
        source.axis = perm ? (*perm)[source.axis] : rank - 1 - source.axis;
      }
      if (isa<TransposeOp>(op) || (reshapes && !isa<IdentityOp, CastOp>(op)))
        source.moves.push_back(op);
      source.root = op->getOperand(0);
      if (reshapes)
        source.axis = 0;
      if (!isa<RankedTensorType>(source.root.getType()))
        return {operand.value, operand.contraction, {}};
    }
    return source;
  }

  // E5M2 where the value comes from the gradient of the loss and one scale has to cover the whole tensor; else E4M3FN.
  // Numbers that share a finer scale lie closer together, and digits are worth more to them than range (DeepSeek-V3,
  // 3.3.2; the defaults of Transformer Engine's Float8BlockScaling and MXFP8BlockScaling; torchao's ROWWISE).
  int64_t formatOf(precision::ProductOperand operand) const {
    bool isGradient = hasGradients && !forward.contains(trace(operand, /*reshapes=*/true).root);
    return isGradient && isPerTensor() ? onnx::TensorProto::FLOAT8E5M2 : onnx::TensorProto::FLOAT8E4M3FN;
  }

  SmallVector<int64_t> tileFor(const Source &source) const {
    int64_t rank = cast<RankedTensorType>(source.root.getType()).getRank();
    if (recipe == Fp8Recipe::Current)
      return SmallVector<int64_t>(rank, 0);
    SmallVector<int64_t> tile(rank, 1);
    bool isWeight = source.root.getDefiningOp<InitializerOp>() != nullptr;
    if (recipe == Fp8Recipe::Block && isWeight)
      tile[rank - 1] = tile[rank - 2] = kBlock;
    else
      tile[source.axis] = recipe == Fp8Recipe::Row ? 0 : recipe == Fp8Recipe::Mx ? kMxBlock : kBlock;
    return tile;
  }

  Quantised quantiseDelayed(Value root, int64_t to) {
    std::string name = nameOf(root).str();
    Type f32 = Float32Type::get(b.context());
    Value scale = s.addState(name + ".fp8_scale", splatTensor(RankedTensorType::get({}, f32), 1));
    Value amaxHistory = s.addFilled(name + ".amax_history", RankedTensorType::get({history}, f32));
    Operation *op = b.node("train.quantize_fp8", {root, scale}, 2, b.attr("to", to));
    Value amax = op->getResult(1);
    setName(amax, s.names.unique(name + ".amax"));
    s.info.fp8.push_back({s.name(amaxHistory), s.name(scale), nameOf(amax).str(), to});
    return {op->getResult(0), b.node("Reciprocal", {scale})};
  }

  Quantised quantiseNow(Value root, int64_t to, ArrayRef<int64_t> tile) {
    bool isMx = recipe == Fp8Recipe::Mx;
    SmallVector<NamedAttribute> attrs{b.attr("to", to), b.attr("tile", tile)};
    attrs.push_back(b.attr("rule", StringRef(isMx || recipe == Fp8Recipe::Block ? "pow2" : "exact")));
    if (isMx)
      attrs.push_back(b.attr("scale_type", static_cast<int64_t>(onnx::TensorProto::FLOAT8E8M0)));
    Operation *op = b.node("train.quantize_fp8_tiles", {root}, 2, attrs);
    return {op->getResult(0), op->getResult(1)};
  }

  Value dequantise(const Quantised &x, ArrayRef<int64_t> tile) {
    if (isPerTensor())
      return b.node("DequantizeLinear", {x.values, x.inverseScale});
    return b.node("train.dequantize_fp8", {x.values, x.inverseScale}, b.attr("tile", tile));
  }

  // The operand in f32, after a trip through fp8. One quantisation for each tensor, format and tiling. The backward
  // dequantises anew, so that what lies in memory until then has 8 bits.
  Value quantised(precision::ProductOperand operand, bool inForward) {
    int64_t to = formatOf(operand);
    Source source = trace(operand, /*reshapes=*/isPerTensor());
    SmallVector<int64_t> tile = recipe == Fp8Recipe::Delayed ? SmallVector<int64_t>() : tileFor(source);
    std::pair<Value, Attribute> key{source.root, b.rewriter().getDenseI64ArrayAttr(tile)};
    b.setScope(nameOf(source.root).str());
    Quantised &known = tensors[key];
    if (!known.values)
      known = recipe == Fp8Recipe::Delayed ? quantiseDelayed(source.root, to) : quantiseNow(source.root, to, tile);
    Value &value = (inForward ? forwardValues : backwardValues)[key];
    if (!value)
      value = dequantise(known, tile);
    return moved(value, source.moves);
  }

  // `value` with the moves of elements that lie between the root and the operand.
  Value moved(Value value, ArrayRef<Operation *> moves) {
    for (Operation *move : llvm::reverse(moves)) {
      Value &copy = movedValues[{move, value}];
      if (!copy) {
        SmallVector<Value> operands(move->getOperands());
        operands[0] = value;
        copy = b.node(Node(move).opType(), operands, ownAttributes(move));
        copy.setType(withElementType(move->getResult(0).getType(), elementTypeOf(value)));
      }
      value = copy;
    }
    return value;
  }

  static SmallVector<NamedAttribute> ownAttributes(Operation *op) {
    SmallVector<NamedAttribute> attrs;
    for (NamedAttribute attr : op->getAttrs())
      if (!attr.getName().strref().starts_with("onnx."))
        attrs.push_back(attr);
    return attrs;
  }

  // y = a b in the low type: the same product of dequantised operands in f32, then rounded to the low type. Where only
  // casts to f32 read y, they get the sum unrounded.
  void rewrite(Operation *op) {
    Node node(op);
    op->removeAttr(precision::kFp8Product);
    // Sizes may be known here that the forward has as symbols.
    if (std::string reason = precision::whyNotFp8(node); !reason.empty()) {
      emitRemark(op->getLoc()) << "fp8 leaves out node " << node.describe() << ": " << reason;
      return;
    }
    b.before(op);
    bool inForward = forward.contains(node.output());
    SmallVector<Value> operands{quantised(precision::productOperand(node, 0), inForward),
                                quantised(precision::productOperand(node, 1), inForward)};
    std::string name = nameOf(node.output()).str();
    b.setScope(node.name().empty() ? name : node.name().str());
    if (Value addend = node.input(2))
      operands.push_back(b.cast(addend, Float32Type::get(b.context())));
    Value y = node.output(), wide = b.node(node.opType(), operands, ownAttributes(op));
    wide.setType(withElementType(y.getType(), Float32Type::get(b.context())));
    addProduct(wide, inForward);
    bool isNamed = false; // by an output of the graph, of which a value can be one only
    for (Operation *user : llvm::make_early_inc_range(y.getUsers())) {
      bool isWidening = isa<CastOp>(user) && elementTypeOf(user->getResult(0)).isF32();
      bool isOutput = isWidening && isGraphOutput(user->getResult(0));
      if (!isWidening || (isNamed && isOutput))
        continue;
      std::string label = nameOf(user->getResult(0)).str();
      user->getResult(0).replaceAllUsesWith(wide);
      remove(user);
      if (!isNamed)
        setName(wide, label);
      isNamed |= isOutput;
    }
    if (!y.use_empty()) {
      Value low = b.cast(wide, elementTypeOf(y));
      y.replaceAllUsesWith(low);
      setName(low, name);
      addProduct(low, inForward);
    }
    for (Value operand : op->getOperands())
      perhapsUnread.insert(operand);
    remove(op);
  }

  void addProduct(Value result, bool isForward) {
    products.insert(result);
    if (isForward)
      forward.insert(result);
  }

  bool isGraphOutput(Value value) {
    return llvm::any_of(value.getUsers(), [](Operation *user) { return isa<ReturnOp>(user); });
  }

  void remove(Operation *op) {
    b.inference().forget(op);
    op->erase();
  }
  // Casts and moves that only products in the low type have read.
  void removeUnread() {
    for (unsigned i = 0; i < perhapsUnread.size(); ++i) {
      Value value = perhapsUnread[i];
      Operation *op = value.getDefiningOp();
      if (!op || !isNode(op) || !op->use_empty() || !(isFloatCast(op) || isMove(op, /*reshapes=*/true)))
        continue;
      perhapsUnread.insert(op->getOperand(0));
      remove(op);
    }
  }

  step::StepGraph &s;
  NodeBuilder &b;
  Fp8Recipe recipe;
  bool hasGradients = false;
  int64_t history;
  llvm::DenseSet<Value> forward, products; ///< Products: results of those that are rewritten.
  llvm::SetVector<Value> perhapsUnread;
  llvm::DenseMap<std::pair<Value, Attribute>, Quantised> tensors; ///< By root and tile.
  llvm::DenseMap<std::pair<Value, Attribute>, Value> forwardValues, backwardValues;
  llvm::DenseMap<std::pair<Operation *, Value>, Value> movedValues;
};

struct QuantizeProductsPass : impl::QuantizeProductsBase<QuantizeProductsPass> {
  using QuantizeProductsBase::QuantizeProductsBase;

  void runOnOperation() override {
    step::StepGraph s(getOperation());
    auto found = precision::fp8RecipeCalled(recipe);
    if (!found) {
      s.graph.emitError() << "recipe '" << recipe << "': delayed, current, row, block or mx is needed";
      return signalPassFailure();
    }
    Quantiser quantiser(s, *found, keepsState, history);
    quantiser.run();
    numTensors += quantiser.numTensors();
    if (s.b.failed())
      return signalPassFailure();
    s.finish();
  }
};

} // namespace
} // namespace recast
