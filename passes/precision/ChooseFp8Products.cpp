#include "passes/Passes.h"
#include "passes/precision/Fp8.h"
#include "passes/precision/Policy.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/StringSwitch.h"

namespace recast {
#define GEN_PASS_DEF_CHOOSEFP8PRODUCTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;
namespace precision {

std::optional<Fp8Recipe> fp8RecipeCalled(StringRef name) {
  return llvm::StringSwitch<std::optional<Fp8Recipe>>(name)
      .Case("delayed", Fp8Recipe::Delayed)
      .Case("current", Fp8Recipe::Current)
      .Case("row", Fp8Recipe::Row)
      .Case("block", Fp8Recipe::Block)
      .Case("mx", Fp8Recipe::Mx)
      .Default(std::nullopt);
}

ProductOperand productOperand(Node product, unsigned i) {
  Value value = product.input(i);
  int64_t last = cast<RankedTensorType>(value.getType()).getRank() - 1;
  bool transposed = product.is("Gemm") && product.getInt(i == 0 ? "transA" : "transB", 0);
  return {value, (i == 0) != transposed ? last : last - 1};
}

} // namespace precision

namespace {

// fp8 matrix units take sizes that are multiples of 16 (cuBLASLt: leading dimensions of 16 bytes), in the product and
// in its two gradients.
constexpr int64_t kSizeMultiple = 16;

bool isProduct(Operation *op) { return isNode(op) && cast<NodeInterface>(op).facts().autocast == AutocastClass::Low; }

// Which values are computed from graph inputs at all, and which through a product; which reach another product.
class ProductOrder {
public:
  explicit ProductOrder(Block &block) {
    for (BlockArgument argument : block.getArguments())
      fromData.insert(argument);
    for (Operation &op : block) {
      bool data = false, after = false;
      for (Value operand : op.getOperands()) {
        data |= fromData.contains(operand);
        after |= afterProduct.contains(operand);
      }
      after |= data && isProduct(&op);
      for (Value result : op.getResults()) {
        if (data)
          fromData.insert(result);
        if (after)
          afterProduct.insert(result);
      }
    }
    for (Operation &op : llvm::reverse(block)) {
      bool before = isProduct(&op) || llvm::any_of(op.getResults(), [&](Value v) { return beforeProduct.contains(v); });
      if (before)
        for (Value operand : op.getOperands())
          beforeProduct.insert(operand);
    }
  }
  bool usesData(Operation *op) const { return any(op->getOperands(), fromData); }
  bool isFirst(Operation *op) const { return !any(op->getOperands(), afterProduct); }
  bool isLast(Operation *op) const { return !any(op->getResults(), beforeProduct); }

private:
  static bool any(ValueRange values, const llvm::DenseSet<Value> &set) {
    return llvm::any_of(values, [&](Value v) { return set.contains(v); });
  }
  llvm::DenseSet<Value> fromData, afterProduct, beforeProduct;
};

// Rows, contraction and columns, as far as they are known.
SmallVector<int64_t, 3> productSizes(Node product) {
  precision::ProductOperand a = precision::productOperand(product, 0), b = precision::productOperand(product, 1);
  auto left = cast<RankedTensorType>(a.value.getType()), right = cast<RankedTensorType>(b.value.getType());
  auto otherAxis = [](RankedTensorType type, int64_t axis) { return 2 * type.getRank() - 3 - axis; };
  int64_t rows = left.getDimSize(otherAxis(left, a.contraction));
  // One right matrix for all: the batch joins the rows.
  if (right.getRank() == 2)
    for (int64_t size : left.getShape().drop_back(2))
      rows = ShapedType::isDynamic(rows) || ShapedType::isDynamic(size) ? ShapedType::kDynamic : rows * size;
  return {rows, left.getDimSize(a.contraction), right.getDimSize(otherAxis(right, b.contraction))};
}

std::string sizesText(ArrayRef<int64_t> sizes) {
  std::string text;
  for (int64_t size : sizes)
    text += (text.empty() ? "" : "x") + (ShapedType::isDynamic(size) ? "?" : std::to_string(size));
  return text;
}

struct ChooseFp8ProductsPass : impl::ChooseFp8ProductsBase<ChooseFp8ProductsPass> {
  using ChooseFp8ProductsBase::ChooseFp8ProductsBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    auto rules = precision::Policy::load("bf16", policy);
    if (!rules) {
      graph.emitError() << llvm::toString(rules.takeError());
      return signalPassFailure();
    }
    Block &block = graph.getBody().front();
    ProductOrder order(block);
    unsigned candidates = 0, chosen = 0;
    for (Operation &op : block) {
      Node node(&op);
      if ((!node.is("MatMul") && !node.is("Gemm")) || !order.usesData(&op))
        continue;
      ++candidates;
      std::string reason = whyNot(node, order, *rules);
      if (reason.empty()) {
        op.setAttr(precision::kFp8Product, UnitAttr::get(&getContext()));
        ++chosen;
      } else {
        ++numLeftOut;
        op.emitRemark() << "fp8 leaves out node " << node.describe() << ": " << reason;
      }
    }
    numProducts += chosen;
    graph.emitRemark() << "fp8: " << chosen << " of " << candidates << " matrix products"
                       << (chosen ? "" : "; the model trains as with --precision=bf16");
  }

  // "" where the product is taken.
  std::string whyNot(Node node, const ProductOrder &order, const precision::Policy &rules) {
    for (unsigned i : {0u, 1u}) {
      auto type = dyn_cast<RankedTensorType>(node.input(i).getType());
      if (!type)
        return "the rank of an operand is not known";
      if (type.getRank() < 2)
        return "an operand is a vector";
    }
    if (rules.findNamed(node))
      return "a rule of the policy names it";
    for (unsigned i : {0u, 1u})
      if (Type type = elementTypeOf(node.input(i)); !type.isBF16() && !type.isF16())
        return "it does not run in a low precision";
    if (order.isFirst(node.operation()))
      return "it is the first product after the inputs";
    if (order.isLast(node.operation()))
      return "it is the last product";
    SmallVector<int64_t, 3> sizes = productSizes(node);
    if (llvm::any_of(sizes, [](int64_t size) { return !ShapedType::isDynamic(size) && size % kSizeMultiple != 0; }))
      return "its sizes " + sizesText(sizes) + " are not all multiples of " + std::to_string(kSizeMultiple);
    return "";
  }
};

} // namespace
} // namespace recast
