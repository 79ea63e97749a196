// Named pipelines: from the options of recast-opt to a list of passes.
#pragma once
#include "mlir/Pass/PassManager.h"
#include <string>
#include <vector>

namespace recast {

/// What the result holds.
enum class Emit { Step, Gradient, Forward, Inference };

/// The options of recast-opt that shape the graph; names and meanings are those of the tool's contract.
struct PipelineOptions {
  Emit emit = Emit::Step;
  bool isStep = false; ///< The model is a training step already: it is brought into form, and nothing is added.
  std::string loss;
  std::vector<std::string> train, freeze, dims, paddingIndex;
  std::string dtype; ///< Empty: as in the model.
  std::string precision = "f32", policy;
  std::string lossScale; ///< none, dynamic or a number; empty: dynamic for f16, else none.
  double scaleInit = 65536, scaleGrowth = 2, scaleBackoff = 0.5, scaleMin = 0, scaleMax = 3.402823466e+38;
  int64_t scaleInterval = 2000;
  std::string optimizer = "adamw";
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weightDecay = 0, momentum = 0;
  bool nesterov = false;
  std::vector<std::string> noDecay;
  std::string adamForm = "pytorch"; ///< As insert-optimizer's option.
  double clipNorm = 0, clipValue = 0;
  std::vector<std::string> monitor; ///< Groups of parameters whose gradients are measured.
  int64_t accumulate = 1; ///< Micro-batches a step.
  std::string normalize;  ///< tokens, samples or micro-batches; empty: the pass's choice.
  int64_t seed = 0;
};

/// Appends the passes. No pass at all where a forward is asked for unchanged.
void buildPipeline(mlir::OpPassManager &passes, const PipelineOptions &options);

} // namespace recast
