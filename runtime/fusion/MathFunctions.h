// Functions of generated code, on scalars or vectors of f32: what a processor has no instruction for. No constant is
// folded and nothing is contracted, so that a value is the same wherever it is computed.
#pragma once
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace recast::fusion {

/// Error bounds in units in the last place of the exact result, over all finite arguments whose result is a normal
/// number. Infinities, NaN and signed zeros give what C's functions give.
struct MathError {
  static constexpr double kExp = 0.85, kLog = 0.85, kTanh = 5, kErf = 1, kExpm1 = 0.51, kLog1p = 0.51;
  /// Up to |x| = kTrigonometricRange; NaN beyond it is never returned, but the error grows with |x|.
  static constexpr double kSin = 0.51, kCos = 0.51;
  static constexpr double kTrigonometricRange = 0x1p30;
};

mlir::Value emitExp(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitLog(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitTanh(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitErf(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
/// Computed in f64 and rounded.
mlir::Value emitSin(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitCos(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitExpm1(mlir::ImplicitLocOpBuilder &b, mlir::Value x);
mlir::Value emitLog1p(mlir::ImplicitLocOpBuilder &b, mlir::Value x);

/// `element`, or a vector of it as long as `like`.
mlir::Type typeLike(mlir::Type element, mlir::Type like);
/// A constant of a scalar or vector type.
mlir::Value constantOf(mlir::ImplicitLocOpBuilder &b, mlir::Type type, double value);
mlir::Value constantOf(mlir::ImplicitLocOpBuilder &b, mlir::Type type, int64_t value);

} // namespace recast::fusion
