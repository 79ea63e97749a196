// Writing models: .onnx, .onnxtxt, .mlir.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include <string>

namespace recast::io {

class MappedFile;

/// Writes the module under `path` by rename; "-" is standard output. A model whose weights exceed what one protobuf
/// message can hold (2 GiB) gets them in `<path>.data` beside it. External data of the source is referred to when the
/// output lies in the same folder, and copied along otherwise. Nothing is written on an error.
/// `sourcePath` is the file that the module was loaded from; it may be replaced. `source` is
/// that file as loadModel gave it: weights are then copied from file to file.
/// `asTrainingInfo`: a step model is written in the form of TrainingInfo.h.
llvm::Error saveModel(mlir::ModuleOp module, const std::string &path, const std::string &sourcePath,
                      const MappedFile *source = nullptr, bool asTrainingInfo = false);

/// Writes the printed form of the module.
llvm::Error saveText(mlir::ModuleOp module, const std::string &path);

} // namespace recast::io
