// What the rules of several families need: constants, shapes that may be symbolic, and products that stay zero where
// the gradient is zero.
#pragma once
#include "passes/gradient/Rules.h"

namespace recast::gradient {

using Ints = llvm::SmallVector<int64_t>;

/// Null where the rank is not known.
inline mlir::RankedTensorType rankedType(mlir::Value value) {
  return llvm::dyn_cast<mlir::RankedTensorType>(value.getType());
}
/// An axis counted from the front.
inline int64_t fromFront(int64_t axis, int64_t rank) { return axis < 0 ? axis + rank : axis; }
/// 0 .. rank-1 without the axes named.
Ints otherAxes(int64_t rank, llvm::ArrayRef<int64_t> axes);

/// Integers that are constant, or that inference could work out.
std::optional<Ints> knownInts(onnx_ir::NodeBuilder &b, mlir::Value value);
/// A list that is an attribute in old versions and input `input` in newer ones: null where it is neither given nor
/// known.
std::optional<Ints> listOf(RuleContext &c, llvm::StringRef attribute, unsigned input);
/// The same list as a value; null where it is left out.
mlir::Value listValue(RuleContext &c, llvm::StringRef attribute, unsigned input);

/// a == b for floating-point tensors (Equal takes those since opset 11).
mlir::Value equal(onnx_ir::NodeBuilder &b, mlir::Value lhs, mlir::Value rhs);
mlir::Value equalTo(onnx_ir::NodeBuilder &b, mlir::Value x, double value);
mlir::Value both(onnx_ir::NodeBuilder &b, mlir::Value lhs, mlir::Value rhs);
/// condition ? a : b. Before opset 9, which brought Where, both must be finite; so must the values of the next three.
mlir::Value choose(onnx_ir::NodeBuilder &b, mlir::Value condition, mlir::Value whenTrue, mlir::Value whenFalse);
/// condition ? value : 0, also where `value` is not finite.
mlir::Value select(onnx_ir::NodeBuilder &b, mlir::Value condition, mlir::Value value);
/// condition ? 0 : value.
mlir::Value unless(onnx_ir::NodeBuilder &b, mlir::Value condition, mlir::Value value);
/// dy == 0 ? 0 : value. For derivatives that are not finite at places where no gradient arrives.
inline mlir::Value unlessZero(onnx_ir::NodeBuilder &b, mlir::Value dy, mlir::Value value) {
  return unless(b, equalTo(b, dy, 0), value);
}

mlir::Value signOf(onnx_ir::NodeBuilder &b, mlir::Value x);

/// The size of x along `axis`, as i64[1]; a constant where it is static.
mlir::Value dimOf(onnx_ir::NodeBuilder &b, mlir::Value x, int64_t axis);
/// One i64 vector of several, a constant where all are.
mlir::Value joinShape(onnx_ir::NodeBuilder &b, llvm::ArrayRef<mlir::Value> parts);
/// `gradient`, of the shape of `like`, with the type of `like`, which may know more than inference could show.
mlir::Value typed(mlir::Value gradient, mlir::Value like);
mlir::Value reshapeLike(onnx_ir::NodeBuilder &b, mlir::Value gradient, mlir::Value like);
mlir::Value expandLike(onnx_ir::NodeBuilder &b, mlir::Value gradient, mlir::Value like);
/// Pads with zeros: `pads` in ONNX's order, begins then ends.
mlir::Value padZeros(onnx_ir::NodeBuilder &b, mlir::Value x, llvm::ArrayRef<int64_t> pads);
/// 0 .. n-1 in the shape of x, where n is its number of elements: the flat index of each element.
mlir::Value flatIndices(onnx_ir::NodeBuilder &b, mlir::Value x);
/// The gradient of picking `flat` (i64 of dy's shape) out of x's elements.
mlir::Value scatterFlat(onnx_ir::NodeBuilder &b, mlir::Value dy, mlir::Value flat, mlir::Value x);

} // namespace recast::gradient
