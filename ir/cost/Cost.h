// What an operation costs: arithmetic, bytes, and the type that it computes in. Facts come from the operators' classes
// (OnnxBase.td) and from the formulas in Formulas.cpp; all that is asked of the graph are types and attributes.
#pragma once
#include "ir/onnx/Node.h"

namespace recast::cost {

using onnx_ir::Work;

/// How much of a cost is known. Of a sum, the last of these that occurs in it.
enum class Known {
  Yes,
  BytesOnly, ///< The operator has no rule, or a Loop's number of iterations depends on data (then one is counted).
  OpenSizes, ///< A size is not fixed: bind it (`--dim`).
};

/// Numbers beyond int64 stay at its largest value.
struct Cost {
  int64_t flops = 0; ///< Arithmetic operations; a multiply-add is two.
  /// Each operand that is a tensor counts once, and each result that something reads. Look-ups read what they pick.
  int64_t bytesRead = 0, bytesWritten = 0;
  Work work = Work::Nothing;
  /// "f64", "f32", "tf32", "bf16", "f16", "f8", "i64", "i32", ...: products of values that come out of round_tf32 or
  /// dequantize_fp8 are tf32 and f8. Empty where there is no tensor.
  llvm::StringRef arithmetic;
  Known known = Known::Yes;

  int64_t bytes() const; ///< Read and written.
  /// Adds what `times` runs of `part` cost; class and type stay.
  void add(const Cost &part, int64_t times = 1);
};

/// Of one run of `op`. With bodies: the body times the iterations of a Scan or Loop, the dearer branch (by arithmetic,
/// then by bytes) of an If. Calls of model-local functions, and operators without a rule that ONNX defines by others:
/// the body; it is built beside `op` for that, and gone again on return. Types of a call's results that were unknown
/// are those that the body gives from then on.
Cost costOf(mlir::Operation *op);

/// Calls `visit` with each operator that a run of `op` runs, and how often it does: with `op` itself where it has no
/// body, else with those of its bodies. A Loop whose number of iterations is not known is visited, too, with
/// Known::BytesOnly and no cost of its own.
using Visitor = llvm::function_ref<void(mlir::Operation *op, const Cost &cost, int64_t times)>;
void visitParts(mlir::Operation *op, Visitor visit);
/// The same for each node of a graph or body.
void visitParts(mlir::Block &block, Visitor visit);

/// The element type as costs and profiles call it; empty for other types.
llvm::StringRef arithmeticName(mlir::Type elementType);
llvm::StringRef workName(Work work); ///< "product", "element-wise", ...

} // namespace recast::cost
