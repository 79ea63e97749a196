// TrainingInfoProto: a training step as ONNX's standard writes it, beside the forward graph.
#pragma once
#include "onnx/onnx_pb.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/Support/Error.h"

namespace recast::io {

/// A model with training_info becomes a step model: initial values are set by `initialization`, then graph and
/// `algorithm` are one graph, what update_binding names are inputs with default values, and metadata_props says which
/// output updates which. An initialization may hold constants and random tensors; the draws depend on the node's
/// `seed`, or, without one, on the tensor's name. A model whose training_info has no algorithm only gets its initial
/// values.
llvm::Error joinTraining(onnx::ModelProto &model);

/// The inverse: what the loss depends on stays in the graph, the rest of the step becomes the algorithm of a
/// training_info, and state inputs become initializers with an update_binding. Messages keep their addresses.
llvm::Error splitTraining(onnx::ModelProto &model);

/// Puts the data into tensors of training_info whose raw data are tokens of `file` (WireFormat.h): for models that are
/// kept as they are.
void inlineTrainingTensors(onnx::ModelProto &model, llvm::ArrayRef<char> file);

} // namespace recast::io
