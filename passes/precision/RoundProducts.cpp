#include "ir/onnx/Builder.h"
#include "passes/Passes.h"
#include "passes/Report.h"
#include "passes/precision/FunctionTypes.h"
#include "passes/precision/Policy.h"
#include "llvm/ADT/StringSwitch.h"

namespace recast {
#define GEN_PASS_DEF_ROUNDPRODUCTS
#include "passes/Passes.h.inc"

using namespace mlir;
using namespace recast::onnx_ir;

namespace {

// How many of the first operands are factors; the others are added, or are no tensors of numbers.
unsigned numFactors(Node node) {
  return llvm::StringSwitch<unsigned>(node.opType())
      .Cases({"MatMul", "Gemm", "Conv", "ConvTranspose", "conv_grad_input", "conv_grad_weight"}, 2)
      .Cases({"Attention", "LSTM", "GRU", "RNN"}, 3)
      .Case("Einsum", node.numInputs())
      .Default(0);
}

struct RoundProductsPass : impl::RoundProductsBase<RoundProductsPass> {
  using RoundProductsBase::RoundProductsBase;

  void runOnOperation() override {
    auto policy = precision::Policy::load("tf32", this->policy);
    if (!policy) {
      emitError(UnknownLoc::get(&getContext())) << llvm::toString(policy.takeError());
      return signalPassFailure();
    }
    GraphOp graph = mainGraph(getOperation());
    std::vector<precision::TypedFunction> functions = precision::typeCalledFunctions(graph);
    bool done = succeeded(rewrite(graph, *policy));
    for (precision::TypedFunction &entry : functions)
      done = done && (!entry.problem.empty() || succeeded(rewrite(entry.function, *policy)));
    if (!done)
      return signalPassFailure();
    for (const std::string &name : policy->unusedNames())
      emitWarning(UnknownLoc::get(&getContext()))
          << "--policy=" << this->policy << ": the rule for the name '" << name << "' decides nothing";
    numRounded += valuesRounded;
    addReport(getOperation(), "round-products", llvm::json::Object{{"values_rounded", valuesRounded}});
  }

private:
  LogicalResult rewrite(Operation *holder, precision::Policy &policy) {
    NameScope names(holder);
    TypeInference types;
    NodeBuilder b(holder, names, types);
    Type f32 = Float32Type::get(&getContext());
    llvm::DenseMap<Value, Value> rounded;
    holder->walk<WalkOrder::PreOrder>([&](Operation *op) {
      Node node(op);
      if (!isNode(op) || !numFactors(node))
        return;
      auto ruling = policy.find(node, f32);
      if (!ruling || ruling->autocast != AutocastClass::Low)
        return;
      for (unsigned i = 0; i < std::min(numFactors(node), node.numInputs()); ++i) {
        Value value = node.input(i);
        if (!value || elementTypeOf(value) != f32 || isa_and_nonnull<train::RoundTf32Op>(value.getDefiningOp()))
          continue;
        Value &made = rounded[value];
        if (!made) {
          b.before(value.getParentBlock()->findAncestorOpInBlock(*op));
          b.setScope(nameOf(value));
          made = b.node("train.round_tf32", {value});
          ++valuesRounded;
        }
        op->setOperand(i, made);
      }
    });
    return failure(b.failed());
  }

  int64_t valuesRounded = 0;
};

} // namespace
} // namespace recast
