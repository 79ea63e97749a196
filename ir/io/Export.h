// IR to ModelProto.
#pragma once
#include "ir/onnx/Dialect.h"
#include "onnx/onnx_pb.h"
#include <google/protobuf/arena.h>
#include <memory>
#include <vector>

namespace recast::io {

/// A model whose large tensors are tokens: (index into `tensors`, 0). The bytes live as long as the module.
struct ExportedModel {
  std::unique_ptr<google::protobuf::Arena> arena; ///< Holds the proto: taking a large one apart takes long.
  onnx::ModelProto *proto = nullptr;
  std::vector<llvm::ArrayRef<char>> tensors;
  /// Where the bytes of each token came from: the message that holds it (for moving data into a file of its own).
  std::vector<onnx::TensorProto *> holders;
  bool hasExternal = false; ///< Some tensors refer to the source's external data.
};

/// `keepExternal`: tensors that came from external data refer to it again; otherwise their data is put into the model.
mlir::FailureOr<ExportedModel> exportModel(mlir::ModuleOp module, bool keepExternal);

} // namespace recast::io
