// Reading models: .onnx (with external data beside it), .onnxtxt, .mlir.
#pragma once
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include <memory>
#include <string>
#include <vector>

namespace recast::io {

/// What becomes of a model's training_info: it stays as it is; or the model becomes the step that it describes
/// (TrainingInfo.h); or the forward graph alone is read.
enum class TrainingInfo { Keep, Join, Drop };

struct LoadOptions {
  /// Operators and opsets that the ONNX library does not know are kept as generic nodes instead of being refused.
  bool allowUnknown = false;
  TrainingInfo trainingInfo = TrainingInfo::Keep;
};

/// Registers the dialects that models need.
void registerDialects(mlir::DialectRegistry &registry);

class MappedFile;

/// Loads a model; "-" is standard input. Null after an error that was reported through the context's diagnostics: the
/// text names the file, and the node or tensor at fault. `files`, where asked for, become the files behind the module's
/// weights: first the model itself (for saveModel), then those of its external data.
mlir::OwningOpRef<mlir::ModuleOp> loadModel(mlir::MLIRContext &context, const std::string &path,
                                            const LoadOptions &options = {},
                                            std::vector<std::shared_ptr<MappedFile>> *files = nullptr);

} // namespace recast::io
