// What the passes of fp8 share: the presets, and how products are told apart.
#pragma once
#include "passes/gradient/Rules.h"
#include <optional>

namespace recast::precision {

/// How scales are found: docs/fp8.md.
enum class Fp8Recipe { Delayed, Current, Row, Block, Mx };

/// "delayed", "current", "row", "block" or "mx".
std::optional<Fp8Recipe> fp8RecipeCalled(llvm::StringRef name);

/// Attribute of a product, forward or backward, whose inputs are to be quantised.
using gradient::kFp8Product;

/// One operand of a MatMul or Gemm, as a matrix or a stack of them.
struct ProductOperand {
  mlir::Value value;
  int64_t contraction; ///< The axis that is summed over.
};
/// Operand 0 or 1 of a product. Precondition: its rank is known and at least 2.
ProductOperand productOperand(onnx_ir::Node product, unsigned i);

/// "" where ranks and sizes allow the product in fp8; symbolic sizes do. Else the reason against it.
std::string whyNotFp8(onnx_ir::Node product);

} // namespace recast::precision
