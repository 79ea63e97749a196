// What the training passes tell each other about the graph, kept in the attribute `train.step` of onnx.graph.
#pragma once
#include "ir/onnx/Builder.h"
#include "llvm/ADT/DenseSet.h"
#include <string>
#include <vector>

namespace recast::step {

/// A tensor with a delayed fp8 scale.
struct Fp8Tensor {
  std::string history, scale; ///< State inputs.
  std::string amax;           ///< Value: the largest magnitude seen in this step, over micro-batches if there are any.
  int64_t format;             ///< TensorProto.DataType; FLOAT8E5M2 for gradients.
};

struct StepInfo {
  std::string loss;      ///< Output that is the loss, as users watch it.
  std::string objective; ///< Value that the backward starts from: the loss, or the scaled loss.
  std::string lossScale; ///< State input; empty without loss scaling.
  std::string foundInf;  ///< Value that is true where a gradient is not finite; empty before the check exists.
  std::string skip;      ///< Value that is true where the step must be skipped; empty before the check exists.
  std::string tokens;    ///< What the loss of the step is divided by; empty where that is no count.
  std::string reduction; ///< How the losses of parts of the batch make one: "mean", "sum", or the mean over "tokens".
  std::vector<std::string> parameters;                    ///< In the graph's order.
  std::vector<std::string> gradients;                     ///< Graph outputs, one a parameter.
  std::vector<std::pair<std::string, std::string>> state; ///< State input and the value that it becomes.
  /// State input and the value that it becomes unless the step is skipped: running statistics.
  std::vector<std::pair<std::string, std::string>> pending;
  std::vector<std::string> metrics; ///< Values to show after every step.
  /// Names of docs/step-model.md that the model has given to something else already, and what stands for them.
  std::vector<std::pair<std::string, std::string>> renamed;

  std::vector<Fp8Tensor> fp8;

  static StepInfo of(onnx_ir::GraphOp graph);
  void store(onnx_ir::GraphOp graph) const;
};

/// A graph under construction: finds values by name, adds inputs and outputs.
class StepGraph {
public:
  explicit StepGraph(mlir::ModuleOp module);

  onnx_ir::GraphOp graph;
  StepInfo info;
  onnx_ir::NameScope names;
  onnx_ir::TypeInference types;
  onnx_ir::NodeBuilder b;

  /// The value of the graph (not of bodies) that is called `name`; null if there is none.
  static mlir::Value findIn(onnx_ir::GraphOp graph, llvm::StringRef name);
  /// The same from an index that is built once and follows the changes made through this object.
  mlir::Value find(llvm::StringRef name);
  /// The inputs that a caller must give, those without a default value. Precondition: this object has added none yet.
  llvm::SmallVector<mlir::BlockArgument> batchInputs();
  void addOutput(mlir::Value value);
  /// Replaces all outputs.
  void setOutputs(llvm::ArrayRef<mlir::Value> values);
  llvm::SmallVector<mlir::Value> outputs();

  /// The name of a value, of inputs added by this object too (the graph's own record is written by finish()).
  std::string name(mlir::Value value);

  /// `name` or, where that is taken, `name` with a suffix, which is recorded: for state and metrics.
  std::string claim(llvm::StringRef name);
  /// A new graph input with a default value, called `name` or, where that is taken, `name` with a suffix.
  mlir::Value addState(llvm::StringRef name, onnx_ir::TensorAttr initial);
  /// The same with one value, normally 0, in every element.
  mlir::Value addFilled(llvm::StringRef name, mlir::RankedTensorType type, double value = 0);
  /// Turns an initializer into a graph input of the same name, with its data as default value.
  mlir::Value promote(onnx_ir::InitializerOp initializer);
  /// Records that `input` becomes `next` after the step; `next` gets the name `<input>.next`.
  void update(mlir::Value input, mlir::Value next);
  /// Gives a value a name of its own: through an Identity where it has users that know it by another, or is an input.
  mlir::Value named(mlir::Value value, llvm::StringRef name);

  /// The gradient of each parameter, in the order of info.parameters.
  llvm::SmallVector<mlir::Value> gradients();
  /// Puts others in their place among the outputs.
  void setGradients(llvm::ArrayRef<mlir::Value> values);
  /// Writes everything back. Call once, at the end of a pass.
  void finish();

private:
  mlir::Value addInput(llvm::StringRef name, onnx_ir::TensorAttr initial, mlir::Type type);
  llvm::StringMap<mlir::Value> index; ///< Empty until find() is called.
  /// Inputs added since the start, in order: one write at the end instead of one each keeps passes linear.
  llvm::SmallVector<std::pair<std::string, onnx_ir::TensorAttr>> added;
  /// One tensor a type and (bits of a) value: moments share their initial data.
  llvm::DenseMap<std::pair<mlir::Type, uint64_t>, onnx_ir::TensorAttr> fills;
};

/// True where `op`, or an operation in one of its bodies, reads one of the values.
bool readsAny(mlir::Operation *op, const llvm::DenseSet<mlir::Value> &values);

} // namespace recast::step
