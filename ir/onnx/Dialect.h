// The dialect `onnx`: C++ side of OnnxBase.td and OnnxOps.td.
#pragma once
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/Interfaces/ControlFlowInterfaces.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace recast::onnx_ir {

/// How autocast treats an operator when no policy says otherwise (see OnnxBase.td).
enum class AutocastClass { Low, Fp32, Promote, Neutral, Never };

/// What an operator's time goes into (see OnnxBase.td). Unknown: operators of other domains.
enum class Work { Nothing, Move, Elementwise, Reduction, Product, Convolution, Control, Unknown };

struct Facts {
  AutocastClass autocast;
  bool cheap;   ///< Costs little beside its memory traffic: a candidate for recomputation.
  bool view;    ///< The output is the input's elements in the same order.
  bool effects; ///< Draws random numbers or holds bodies: never pure, never merged.
  Work work;
  int flops; ///< Arithmetic operations an element, where ir/cost has no formula.
};

} // namespace recast::onnx_ir

#include "ir/onnx/OnnxDialect.h.inc"
#include "ir/onnx/OnnxInterfaces.h.inc"
#define GET_TYPEDEF_CLASSES
#include "ir/onnx/OnnxTypes.h.inc"
#define GET_ATTRDEF_CLASSES
#include "ir/onnx/OnnxAttributes.h.inc"
#define GET_OP_CLASSES
#include "ir/onnx/OnnxOps.h.inc"
