// From a model file to a Plan: binds sizes, infers types, folds constants, orders, chooses kernels, places buffers.
#pragma once
#include "runtime/plan/Plan.h"
#include <map>
#include <string>

namespace mlir {
class ModuleOp;
} // namespace mlir

namespace recast {

struct CompileOptions {
  /// Values of symbolic dimensions ("batch" -> 32).
  std::map<std::string, int64_t> dims = {};
  /// Types of graph inputs, where the caller knows them (from the data): they bind the symbols that the graph's input
  /// shapes name. Names are the graph's input names.
  std::map<std::string, TensorType> inputs = {};
  bool referenceOnly = false;
  /// What no library takes is generated (runtime/fusion) instead of run by the reference evaluator.
  bool regions = false;
  /// False: generated steps get no code. Such a plan has the memory of one with code, and does not run.
  bool generateCode = true;
  /// Operators with fewer elements are not worth code of their own.
  int64_t regionElems = 4096;
  /// False: every generated step does one operator. Results are the same to the bit.
  bool fuseRegions = true;
  /// Outputs take over the memory of inputs that nothing reads any more, new state that of the old. Results are the
  /// same either way.
  bool inPlace = true;
  std::string device = "cpu"; ///< "cpu" or "cuda".
  /// Of a CUDA plan: the compute capability that it is for, 90 for sm_90. Only products of 8-bit floats depend on it.
  int cudaArchitecture = 80;
  /// Of a CUDA plan: its generated kernels are there as host code, too, for the checking device.
  bool emulates = false;
};

/// CompileOptions::cudaArchitecture of "sm_90"; 0 where it is none that plans run on.
int cudaArchitectureOf(std::string_view name);

/// A graph input as the model declares it; a dimension that is not fixed is -1 and has a symbol, which may be empty.
struct InputInfo {
  std::string name;
  TensorType type;
  std::vector<std::string> symbols; ///< One per dimension.
  bool isState = false;
  bool hasDefault = false; ///< And is no state: a constant of the plan unless CompileOptions::inputs names it.
};

/// A loaded model: what a runner must know before it can bind sizes.
class Model {
public:
  /// Reads .onnx, .onnxtxt or .mlir; "-" is standard input.
  static Result<std::unique_ptr<Model>> load(const std::string &path);
  ~Model();
  /// All graph inputs. Those that are no state and have no default need a value from the caller.
  const std::vector<InputInfo> &inputs() const;
  const std::vector<std::string> &outputs() const;
  /// What loading found odd, and no error.
  const std::vector<std::string> &warnings() const;
  /// Compiles for one binding of sizes. The plan keeps alive what it needs of the model.
  Result<std::unique_ptr<Plan>> compile(const CompileOptions &options) const;

private:
  struct Impl;
  std::shared_ptr<const Impl> impl; ///< Plans share it: their constants may be views into the model's file.
  explicit Model(std::shared_ptr<const Impl> impl);
};

/// Compiles a module that is in memory already, as Model::compile does what it has loaded; the module does not change.
/// The plan is valid while the module's context is: its constants may be views of the module's. With regions,
/// `withoutRegions` becomes the plan in which every operator is a step.
Result<std::unique_ptr<Plan>> compileModule(mlir::ModuleOp module, const CompileOptions &options,
                                            std::unique_ptr<Plan> *withoutRegions = nullptr);

} // namespace recast
