// One operation of a region's body on MLIR values, scalars or vectors alike: the same for every processor.
#pragma once
#include "mlir/IR/ImplicitLocOpBuilder.h"
#include "runtime/fusion/Schedule.h"

namespace recast::fusion {

/// The type that elements are computed in: f32 for f16 and bf16, i1 for bool.
mlir::Type computeType(mlir::MLIRContext *context, DType type);
/// The type that elements have in memory: i16 for bf16, i8 for bool.
mlir::Type memoryType(mlir::MLIRContext *context, DType type);
/// Between both. To bf16 and f16, the value must be one of the type: see round().
mlir::Value fromMemory(mlir::ImplicitLocOpBuilder &b, DType type, mlir::Value x);
mlir::Value toMemory(mlir::ImplicitLocOpBuilder &b, DType type, mlir::Value x);

/// `node`, a Compute node other than Counter, of `args`, whose types in the graph are `argTypes`. `shape` is a value or
/// type of the result's shape: a scalar type or a vector type.
mlir::Value compute(mlir::ImplicitLocOpBuilder &b, const Node &node, llvm::ArrayRef<mlir::Value> args,
                    llvm::ArrayRef<DType> argTypes);

/// The accumulator of a reduction before the first element, of the reduction's type.
mlir::Value neutral(mlir::ImplicitLocOpBuilder &b, Op op, DType type, mlir::Type like);
/// One step: `x` is an element (or a vector of them) in the reduction's type.
mlir::Value accumulate(mlir::ImplicitLocOpBuilder &b, Op op, DType type, mlir::Value sum, mlir::Value x);
/// An element in the reduction's type: sums widen to f64 or i64.
mlir::Value widenTo(mlir::ImplicitLocOpBuilder &b, DType from, DType to, mlir::Value x);

} // namespace recast::fusion
