// Operators that a file uses although its opset does not have them yet.
#pragma once
#include "ir/onnx/Builder.h"

namespace recast::forms {

/// Other tools put LayerNormalization (opset 17) into models that import opset 15. Raises the model's opset to where
/// all operators of the main graph exist, at most 17, and makes these nodes typed ones. Refuses, by name, a node whose
/// operator the newer opset defines otherwise. Nothing happens where all operators exist.
mlir::LogicalResult raiseOpset(mlir::ModuleOp module);

} // namespace recast::forms
