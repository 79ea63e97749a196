// TensorProto to attribute: checks sizes, follows external data, leaves large data where it is.
#pragma once
#include "ir/io/MappedFile.h"
#include "ir/onnx/TensorData.h"
#include "llvm/ADT/StringMap.h"

namespace recast::io {

class TensorReader {
public:
  /// `model` is the file that tokens refer to; `folder` is where external data may lie.
  TensorReader(mlir::MLIRContext *context, std::shared_ptr<MappedFile> model, std::string folder)
      : context(context), model(std::move(model)), folder(std::move(folder)) {}

  /// Keeps the message's own name in the attribute unless `dropName`. An error names the tensor.
  llvm::Expected<onnx_ir::TensorAttr> read(const onnx::TensorProto &proto, bool dropName);
  /// Appends the files of external data that was read.
  void addFiles(std::vector<std::shared_ptr<MappedFile>> &files) const {
    for (const auto &entry : externalFiles)
      files.push_back(entry.second);
  }

private:
  llvm::Expected<llvm::ArrayRef<char>> external(const onnx::TensorProto &proto, uint64_t expectedBytes,
                                                std::shared_ptr<const void> &owner);
  mlir::MLIRContext *context;
  std::shared_ptr<MappedFile> model;
  std::string folder;
  llvm::StringMap<std::shared_ptr<MappedFile>> externalFiles;
};

} // namespace recast::io
