// Sizes as exporters compute them: small integers through operators whose schemas do not pass them on.
#pragma once
#include "ir/onnx/Dialect.h"
#include "onnx/onnx_pb.h"
#include <optional>

namespace recast::onnx_ir {

/// Constants above this size are no shapes and no axes.
inline constexpr int64_t kMostKnownInts = 4096;

/// The elements of the operation's result, a scalar or vector of integers or booleans, as far as those of its operands
/// are known: `known` gives them, null where nothing is. Nothing for operators that are not evaluated here.
std::optional<onnx::TensorShapeProto>
evaluateInts(mlir::Operation *op, llvm::function_ref<const onnx::TensorShapeProto *(mlir::Value)> known);

} // namespace recast::onnx_ir
