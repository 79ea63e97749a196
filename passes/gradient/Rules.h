// Gradient rules: one function for each operator and range of versions, one file for each family.
#pragma once
#include "ir/onnx/Builder.h"
#include "ir/train/Dialect.h"

namespace recast::gradient {

/// What a rule works with. `dy(i)` is the gradient of output i, null where no gradient arrives there; at least one is
/// not null. The rule calls `add` for the inputs that `needs` says are wanted; the gradients of several uses are summed
/// outside. Gradients have the type of the value that they belong to.
class RuleContext {
public:
  RuleContext(onnx_ir::Node node, onnx_ir::NodeBuilder &b, llvm::ArrayRef<mlir::Value> outputGradients,
              llvm::function_ref<bool(mlir::Value)> isWanted, llvm::function_ref<void(mlir::Value, mlir::Value)> sink)
      : node(node), b(b), outputGradients(outputGradients), isWanted(isWanted), sink(sink) {}

  onnx_ir::Node node;
  onnx_ir::NodeBuilder &b;

  mlir::Value dy(unsigned output = 0) const {
    return output < outputGradients.size() ? outputGradients[output] : mlir::Value();
  }
  mlir::Value x(unsigned input = 0) const { return node.input(input); }
  mlir::Value y(unsigned output = 0) const { return node.output(output); }
  /// True where input i is there and its gradient is wanted.
  bool needs(unsigned input) const { return node.input(input) && isWanted(node.input(input)); }
  /// Adds to the gradient of input i.
  void add(unsigned input, mlir::Value gradient) { sink(node.input(input), gradient); }
  /// Adds after summing over the axes along which input i was broadcast, and casting to its type.
  void addReduced(unsigned input, mlir::Value gradient);
  /// Reports why this use of the operator cannot be differentiated.
  mlir::LogicalResult refuse(const llvm::Twine &reason) {
    return node->emitError() << "node " << node.describe() << ": " << reason;
  }

private:
  llvm::ArrayRef<mlir::Value> outputGradients;
  llvm::function_ref<bool(mlir::Value)> isWanted;
  llvm::function_ref<void(mlir::Value, mlir::Value)> sink;
};

/// What differentiation does with an operator.
enum class Kind {
  Rule, ///< `apply` builds the gradient.
  Zero, ///< The gradient is zero everywhere (comparisons, shapes, rounding): the path ends here.
};

inline constexpr int64_t kNewest = INT64_MAX;

/// Attribute of a Gather while gradients are built: the row that gets no gradient from look-ups (--padding-index).
inline constexpr llvm::StringLiteral kPaddingIndex = "onnx.padding_index";

/// Attribute of a product whose inputs are quantised to fp8 after gradients are built: its gradient's products get it
/// too.
inline constexpr llvm::StringLiteral kFp8Product = "onnx.fp8";

struct Rule {
  llvm::StringLiteral domain, op;
  int64_t sinceFirst, sinceLast; ///< Inclusive range of since_version.
  Kind kind;
  mlir::LogicalResult (*apply)(RuleContext &context) = nullptr;
  /// The inputs through which the gradient flows: bit i for input i; ~0 for all floating-point ones.
  uint64_t inputs = ~0ull;
};

llvm::ArrayRef<Rule> elementwiseRules();   ///< Elementwise.cpp
llvm::ArrayRef<Rule> reductionRules();     ///< Reduction.cpp: reductions, softmax
llvm::ArrayRef<Rule> shapeRules();         ///< Shape.cpp
llvm::ArrayRef<Rule> indexingRules();      ///< Indexing.cpp
llvm::ArrayRef<Rule> productRules();       ///< Product.cpp: MatMul, Gemm, Einsum
llvm::ArrayRef<Rule> convolutionRules();   ///< Convolution.cpp: convolutions and pools
llvm::ArrayRef<Rule> resizeRules();        ///< Resize.cpp
llvm::ArrayRef<Rule> normalizationRules(); ///< Normalization.cpp
llvm::ArrayRef<Rule> lossRules();          ///< Loss.cpp: losses, scale_loss

/// The rule for a node, or null. Operators without a rule but with a function body in the ONNX library are expanded
/// before (ExpandFunctions).
const Rule *findRule(onnx_ir::Node node);

/// Sums `gradient` so that it fits `target`, over the axes along which target was broadcast; no node where the types
/// show that nothing was.
mlir::Value reduceTo(onnx_ir::NodeBuilder &b, mlir::Value gradient, mlir::Value target);

} // namespace recast::gradient
