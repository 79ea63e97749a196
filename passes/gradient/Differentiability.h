// Which values have a gradient: the analysis that differentiation, the choice of parameters and inspection share.
#pragma once
#include "passes/gradient/Rules.h"
#include "llvm/ADT/DenseSet.h"
#include <optional>
#include <string>
#include <vector>

namespace recast::gradient {

/// The only scalar float output, else the output called `loss`, else an error that lists the candidates. `name`
/// overrides.
mlir::FailureOr<mlir::Value> findLoss(onnx_ir::GraphOp graph, llvm::StringRef name);

/// Values from which `loss` can be reached against the direction of data flow, through operands that carry gradient.
/// Nodes without a rule are passed through for all floating-point operands.
llvm::DenseSet<mlir::Value> influencingValues(onnx_ir::GraphOp graph, mlir::Value loss);

/// Values that depend on `sources` through operands that carry gradient.
llvm::DenseSet<mlir::Value> dependentValues(onnx_ir::GraphOp graph, llvm::ArrayRef<mlir::Value> sources);

/// Attribute of onnx.graph: the names of the parameters, where the model's form says what they are. Takes the place of
/// the default choice.
inline constexpr llvm::StringLiteral kParameters = "train.parameters";

/// One candidate for training, and why it was taken or not.
struct Choice {
  mlir::Value value; ///< Result of an initializer, or a graph input.
  bool trainable;
  std::string reason;
};

struct TrainableOptions {
  std::vector<std::string> train;  ///< Globs; empty: the default choice. Graph inputs may be named too.
  std::vector<std::string> freeze; ///< Globs that take parameters out again.
};

/// Every floating-point initializer with the decision; inputs only where a glob names them. An error for a glob that
/// matches nothing.
mlir::FailureOr<std::vector<Choice>> chooseTrainable(onnx_ir::GraphOp graph, mlir::Value loss,
                                                     const TrainableOptions &options);

/// The row of an embedding table (initializer of rank 2 that a Gather reads along axis 0) that holds only zeros, while
/// the others do not: torch.nn.Embedding(padding_idx) makes its row so, and training keeps it so; ONNX has no other
/// trace of it. Nothing where there is no such row, or more than one.
std::optional<int64_t> paddingRow(mlir::Value table);

/// True for an initializer that is trained by default where the loss depends on it.
bool looksLikeParameter(mlir::Value initializer);

/// Shell pattern with * and ?; other characters are literal.
bool matchesGlob(llvm::StringRef pattern, llvm::StringRef text);

} // namespace recast::gradient
