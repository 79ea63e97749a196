// What becomes of constants in the low type.
#pragma once
#include "ir/onnx/TensorData.h"
#include <optional>

namespace recast::precision {

/// Constants of up to this many elements are read through; larger ones are taken for weights, which training changes.
inline constexpr int64_t kReadElems = 1 << 16;

/// The number that a constant of one element is, through casts.
std::optional<double> scalarOf(mlir::Value value);

/// What rounding to the low type does to a number.
enum class Loss {
  None,      ///< At most digits.
  Overflows, ///< Becomes infinite.
  Vanishes,  ///< Becomes 0, or keeps less than the type's digits below its normal range.
  Collapses, ///< Becomes 1 or -1 and is neither: 1 - 1e-7 as an upper bound, a decay of 0.9999.
};
Loss lossOf(double number, mlir::Type low);
bool isExact(double number, mlir::Type low);

/// What makes a constant tensor unfit for the low type: its number that overflows, or its largest where all vanish.
struct UnfitNumber {
  double number;
  Loss loss;
};
std::optional<UnfitNumber> unfitNumber(mlir::Value constant, mlir::Type low);
/// "overflows to infinity", "underflows", "rounds to one".
llvm::StringRef describe(Loss loss);

/// `tensor` in the low type, with finite numbers beyond its range as its largest.
onnx_ir::TensorAttr saturated(onnx_ir::TensorAttr tensor, mlir::Type low);

} // namespace recast::precision
