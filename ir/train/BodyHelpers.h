// What the bodies of several families share. The forms are those that exist at most opsets and run on most runtimes.
#pragma once
#include "ir/onnx/TensorData.h"
#include "ir/train/Bodies.h"

namespace recast::train {

/// The type that a body computes in: f64 for f64, f32 for every narrower type, so that a result is rounded once.
mlir::Type computeType(mlir::Type elementType);
mlir::Value widen(onnx_ir::NodeBuilder &b, mlir::Value x);

/// Reports that `op` has no body below `opset`; success where the builder's is at least that.
mlir::LogicalResult needsOpset(onnx_ir::Node op, onnx_ir::NodeBuilder &b, int64_t opset);
/// The ranked type of a value; reports where the rank is not known.
mlir::RankedTensorType rankedType(onnx_ir::Node op, mlir::Value x);

/// condition ? a : c for a condition without dimensions, and a and c of one shape and any one type.
mlir::Value select(onnx_ir::NodeBuilder &b, mlir::Value condition, mlir::Value a, mlir::Value c);
/// The sum of all elements, without dimensions.
mlir::Value sumAll(onnx_ir::NodeBuilder &b, mlir::Value x);

// --- Shapes are i64 vectors; `size` is one with one element. ---

/// The size of one axis of x: a constant where it is static.
mlir::Value sizeOf(onnx_ir::NodeBuilder &b, mlir::Value x, int64_t axis);
/// The number of elements of x.
mlir::Value elementCount(onnx_ir::NodeBuilder &b, mlir::Value x);
/// Pieces of a shape one after another: a constant where all are.
mlir::Value joinShape(onnx_ir::NodeBuilder &b, llvm::ArrayRef<mlir::Value> parts);
/// Reshape in which a 0 in `shape` is a size, where the opset can say so.
mlir::Value toShape(onnx_ir::NodeBuilder &b, mlir::Value x, mlir::Value shape);
/// 0, 1, ..., size - 1. Opset 9.
mlir::Value iota(onnx_ir::NodeBuilder &b, mlir::Value size);
/// 0, 1, ... in row-major order over `shape`. Opset 9.
mlir::Value iotaOver(onnx_ir::NodeBuilder &b, mlir::Value shape);

/// Sums x over the axes along which `shape`, which is not longer than x's rank, was broadcast to x.
mlir::Value reduceToShape(onnx_ir::NodeBuilder &b, mlir::Value x, mlir::Value shape);
/// The same towards the shape of `like`, with fixed axes where the types show them.
mlir::Value reduceToLike(onnx_ir::NodeBuilder &b, mlir::Value x, mlir::Value like);

/// A vector of zeros with `updates` (a vector) at the places `indices`, which are all different. Opset 9.
mlir::Value scatterDistinct(onnx_ir::NodeBuilder &b, mlir::Value size, mlir::Value indices, mlir::Value updates);

} // namespace recast::train
