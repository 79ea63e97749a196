// ModelProto to IR: the second half of loading, after the wire format was read.
#pragma once
#include "ir/io/Load.h"
#include "ir/io/ReadTensor.h"
#include "onnx/onnx_pb.h"

namespace recast::io {

/// Builds the module. Errors are reported with `path` in front.
mlir::OwningOpRef<mlir::ModuleOp> importModel(mlir::MLIRContext &context, const onnx::ModelProto &model,
                                              TensorReader &tensors, const std::string &path,
                                              const LoadOptions &options);

} // namespace recast::io
