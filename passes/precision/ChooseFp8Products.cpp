#include "passes/Passes.h"
#include "passes/precision/Fp8.h"
#include "passes/precision/Policy.h"
#include "llvm/ADT/DenseSet.h"

namespace recast {
#define GEN_PASS_DEF_CHOOSEFP8PRODUCTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;
namespace {

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

struct ChooseFp8ProductsPass : impl::ChooseFp8ProductsBase<ChooseFp8ProductsPass> {
  using ChooseFp8ProductsBase::ChooseFp8ProductsBase;

  void runOnOperation() override {
    GraphOp graph = mainGraph(getOperation());
    auto rules = precision::Policy::load("bf16", policy);
    if (!rules) {
      emitError(graph.getLoc()) << llvm::toString(rules.takeError());
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
        emitRemark(op.getLoc()) << "fp8 leaves out node " << node.describe() << ": " << reason;
      }
    }
    numProducts += chosen;
    emitRemark(graph.getLoc()) << "fp8: " << chosen << " of " << candidates << " matrix products"
                               << (chosen ? "" : "; the model trains as with --precision=bf16");
  }

  // "" where the product is taken.
  std::string whyNot(Node node, const ProductOrder &order, const precision::Policy &rules) {
    if (rules.findNamed(node))
      return "a rule of the policy names it";
    for (unsigned i : {0u, 1u})
      if (Type type = elementTypeOf(node.input(i)); !type || (!type.isBF16() && !type.isF16()))
        return "it does not run in a low precision";
    if (order.isFirst(node.operation()))
      return "it is the first product after the inputs";
    if (order.isLast(node.operation()))
      return "it is the last product";
    return precision::whyNotFp8(node);
  }
};

} // namespace
} // namespace recast
