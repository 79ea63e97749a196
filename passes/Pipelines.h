// Named pipelines: from the options of recast-opt to a list of passes.
#pragma once
#include "mlir/Pass/PassManager.h"
#include "passes/checkpoint/Memory.h"
#include <limits>
#include <optional>
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
  int64_t opset = 0; ///< That the model is brought to, at least; 0: its own.
  std::string precision = "f32", policy;
  std::string lossScale; ///< none, dynamic or a number; empty: dynamic for f16, else none.
  double scaleInit = 65536, scaleGrowth = 2, scaleBackoff = 0.5, scaleMin = 0;
  double scaleMax = std::numeric_limits<double>::infinity();
  int64_t scaleInterval = 2000, scaleHysteresis = 1;
  std::string fp8Amax = "max", fp8NaN = "propagate";
  int64_t fp8History = 16, fp8Margin = 0; ///< As in the FP8 primer of Transformer Engine.
  std::string optimizer = "adamw";
  std::vector<std::string> optimizerSettings; ///< NAME=VALUE; the rest are torch.optim's defaults (step/Optimizers.h).
  std::vector<std::string> noDecay, lrScale, decayScale;
  std::optional<double> ema, clipNorm, clipValue;
  double clipNormType = 2;
  std::string adamForm = "pytorch"; ///< As insert-optimizer's option.
  std::vector<std::string> monitor; ///< Groups of parameters whose gradients are measured.
  int64_t accumulate = 1;           ///< Micro-batches a step.
  std::string normalize;            ///< tokens, samples or micro-batches; empty: the pass's choice.
  bool dataParallel = false;        ///< Ranks meet in one all-reduce a step.
  int64_t seed = 0;
  std::string memoryBudget, checkpoint;    ///< As insert-recomputation's options; both empty: nothing runs again.
  bool offload = false;                    ///< The policy auto may copy values to the host.
  double solveTime = 0;                    ///< Seconds for the policy auto; 0: a fixed effort.
  checkpoint::MeasureMemory measureMemory; ///< Compiles with the runtime; null: the passes' own figure counts.
  std::string costProfile;                 ///< A file that ir/cost reads; empty: the default profile.
};

/// Appends the passes. No pass at all where a forward is asked for unchanged.
void buildPipeline(mlir::OpPassManager &passes, const PipelineOptions &options);

} // namespace recast
