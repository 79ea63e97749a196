// Values of an initialization graph (TrainingInfoProto).
#pragma once
#include "onnx/onnx_pb.h"
#include "llvm/ADT/StringMap.h"
#include "llvm/Support/Error.h"
#include <string>

namespace recast::io {

/// Evaluates graphs without inputs that hold constants, copies and filled or random tensors (Constant, Identity,
/// ConstantOfShape, RandomNormal, RandomUniform), which is what an initialization consists of. ONNX leaves the
/// generator open: draws here are the same each time (up to the last bit of log and cos) and differ
/// from tensor to tensor.
class InitialValues {
public:
  explicit InitialValues(const onnx::GraphProto &graph);
  /// An error names the node that is none of these.
  llvm::Expected<onnx::TensorProto> evaluate(const std::string &name) const;

private:
  llvm::Expected<onnx::TensorProto> evaluate(const std::string &name, int depth) const;
  llvm::StringMap<const onnx::NodeProto *> producers;
  llvm::StringMap<const onnx::TensorProto *> initializers;
};

} // namespace recast::io
