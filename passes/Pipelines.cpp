#include "passes/Pipelines.h"
#include "passes/checkpoint/Passes.h"

using namespace mlir;
namespace recast {

namespace {

// The recipe of an fp8 preset; "" of other presets.
std::string fp8Recipe(const PipelineOptions &o) {
  llvm::StringRef preset = o.precision;
  if (preset == "mxfp8")
    return "mx";
  return preset.consume_front("fp8-") ? preset.str() : "";
}

void addQuantisation(OpPassManager &passes, const PipelineOptions &o) {
  if (fp8Recipe(o).empty())
    return;
  QuantizeProductsOptions options;
  options.recipe = fp8Recipe(o);
  options.keepsState = o.emit == Emit::Step;
  options.history = o.fp8History;
  passes.addPass(createQuantizeProducts(options));
}

void addGradients(OpPassManager &passes, const PipelineOptions &o) {
  ComputeGradientsOptions gradients;
  gradients.loss = o.loss;
  gradients.train.assign(o.train.begin(), o.train.end());
  gradients.freeze.assign(o.freeze.begin(), o.freeze.end());
  gradients.paddingIndex.assign(o.paddingIndex.begin(), o.paddingIndex.end());
  passes.addPass(createComputeGradients(gradients));
  addQuantisation(passes, o);
}

// Products of the backward too: after the gradients.
void addRounding(OpPassManager &passes, const PipelineOptions &o) {
  if (o.precision != "tf32")
    return;
  RoundProductsOptions rounding;
  rounding.policy = o.policy;
  passes.addPass(createRoundProducts(rounding));
}

// After everything that changes memory.
void addMemoryPasses(OpPassManager &passes, const PipelineOptions &o) {
  if (o.memoryBudget.empty() && o.checkpoint.empty()) {
    OrderForMemoryOptions order;
    order.isOptional = true;
    if (!o.isStep) // A finished step comes back as it is.
      passes.addPass(createOrderForMemory(order, o.measureMemory));
    return;
  }
  InsertRecomputationOptions recomputation;
  recomputation.budget = o.memoryBudget;
  recomputation.policy = o.checkpoint.empty() ? "auto" : o.checkpoint;
  recomputation.solveTime = o.solveTime;
  recomputation.costProfile = o.costProfile;
  recomputation.offload = o.offload;
  passes.addPass(createInsertRecomputation(recomputation, o.measureMemory));
}

void addStep(OpPassManager &passes, const PipelineOptions &o) {
  std::string scale = !o.lossScale.empty() ? o.lossScale : o.precision == "f16" ? "dynamic" : "none";
  bool isDynamic = scale == "dynamic", isScaled = scale != "none";
  if (o.accumulate > 1 || o.dataParallel) {
    NormalizeLossOptions normalize;
    normalize.loss = o.loss;
    normalize.microBatches = o.accumulate;
    normalize.by = o.normalize;
    normalize.dataParallel = o.dataParallel;
    normalize.train.assign(o.train.begin(), o.train.end());
    normalize.freeze.assign(o.freeze.begin(), o.freeze.end());
    passes.addPass(createNormalizeLoss(normalize));
  }
  if (isScaled) {
    InsertLossScaleOptions options;
    options.loss = o.loss;
    options.init = isDynamic ? o.scaleInit : std::stod(scale);
    passes.addPass(createInsertLossScale(options));
  }
  addGradients(passes, o);
  addRounding(passes, o);
  passes.addPass(createCollectStatistics());
  if (o.accumulate > 1) {
    AccumulateMicroBatchesOptions accumulate;
    accumulate.microBatches = o.accumulate;
    passes.addPass(createAccumulateMicroBatches(accumulate));
  }
  if (o.dataParallel)
    passes.addPass(createReduceAcrossRanks());
  passes.addPass(createUnscaleGradients());
  if (!o.monitor.empty()) {
    MonitorGradientsOptions monitor;
    monitor.groups.assign(o.monitor.begin(), o.monitor.end());
    monitor.type = o.precision;
    passes.addPass(createMonitorGradients(monitor));
  }
  ClipGradientsOptions clip;
  clip.maxNorm = o.clipNorm.value_or(-1);
  clip.normType = o.clipNormType;
  clip.maxValue = o.clipValue.value_or(-1);
  passes.addPass(createClipGradients(clip));
  InsertOptimizerOptions optimizer;
  optimizer.optimizer = o.optimizer;
  optimizer.settings.assign(o.optimizerSettings.begin(), o.optimizerSettings.end());
  optimizer.noDecay.assign(o.noDecay.begin(), o.noDecay.end());
  optimizer.lrScale.assign(o.lrScale.begin(), o.lrScale.end());
  optimizer.decayScale.assign(o.decayScale.begin(), o.decayScale.end());
  optimizer.ema = o.ema.value_or(-1);
  optimizer.adamForm = o.adamForm;
  passes.addPass(createInsertOptimizer(optimizer));
  if (fp8Recipe(o) == "delayed") {
    UpdateFp8ScalesOptions fp8;
    fp8.algorithm = o.fp8Amax;
    fp8.margin = o.fp8Margin;
    fp8.nan = o.fp8NaN;
    passes.addPass(createUpdateFp8Scales(fp8));
  }
  if (isDynamic) {
    UpdateLossScaleOptions update;
    update.growth = o.scaleGrowth;
    update.backoff = o.scaleBackoff;
    update.interval = o.scaleInterval;
    update.min = o.scaleMin;
    update.max = o.scaleMax;
    update.hysteresis = o.scaleHysteresis;
    passes.addPass(createUpdateLossScale(update));
  }
  passes.addPass(createFinishStep());
  addMemoryPasses(passes, o);
  VerifyTrainingOptions verify;
  if ((o.accumulate > 1 || o.dataParallel) && (o.normalize == "samples" || o.normalize == "micro-batches"))
    verify.except.push_back("mean-of-means"); // Asked for, and warned of by normalize-loss.
  passes.addPass(createVerifyTraining(verify));
}

} // namespace

void buildPipeline(OpPassManager &passes, const PipelineOptions &o) {
  if (o.emit != Emit::Forward) {
    passes.addPass(createReadOrtTraining());
    passes.addPass(createExpandPreviewTraining());
  }
  if (!o.dims.empty()) {
    BindDimensionsOptions dims;
    dims.dims.assign(o.dims.begin(), o.dims.end());
    passes.addPass(createBindDimensions(dims));
  }
  if (o.isStep) {
    addMemoryPasses(passes, o);
    return;
  }
  if (o.emit == Emit::Step || o.emit == Emit::Gradient) {
    RaiseOpsetOptions raise;
    raise.opset = 0; // Only for the training form of BatchNormalization.
    passes.addPass(createRaiseOpset(raise));
    PrepareTrainingOptions prepare;
    prepare.loss = o.loss;
    passes.addPass(createPrepareTraining(prepare));
  }
  if (!o.dtype.empty()) {
    ConvertDtypeOptions dtype;
    dtype.type = o.dtype;
    passes.addPass(createConvertDtype(dtype));
  }
  if (o.emit == Emit::Step) {
    InsertRandomNumbersOptions draws;
    draws.seed = o.seed;
    draws.dataParallel = o.dataParallel;
    passes.addPass(createInsertRandomNumbers(draws));
  }
  if (o.emit == Emit::Inference) {
    ToInferenceOptions inference;
    inference.loss = o.loss;
    passes.addPass(createToInference(inference));
  }
  std::string fp8 = fp8Recipe(o);
  int64_t needed = fp8.empty() ? 0 : fp8 == "mx" ? 24 : 21; // E8M0; blocks in DequantizeLinear
  if (needed || o.opset) {
    RaiseOpsetOptions raise;
    raise.opset = std::max(needed, o.opset);
    passes.addPass(createRaiseOpset(raise));
  }
  if (o.precision == "bf16" || o.precision == "f16" || !fp8.empty()) {
    AutocastOptions autocast;
    autocast.type = fp8.empty() ? o.precision : "bf16";
    autocast.policy = o.policy;
    autocast.train.assign(o.train.begin(), o.train.end());
    passes.addPass(createAutocast(autocast));
  }
  if (!fp8.empty()) {
    ChooseFp8ProductsOptions choose;
    choose.policy = o.policy;
    passes.addPass(createChooseFp8Products(choose));
    if (o.emit == Emit::Forward || o.emit == Emit::Inference)
      addQuantisation(passes, o);
  }
  if (o.emit == Emit::Gradient)
    addGradients(passes, o);
  if (o.emit == Emit::Step)
    addStep(passes, o);
  else
    addRounding(passes, o);
  if (o.emit == Emit::Gradient)
    addMemoryPasses(passes, o);
}

} // namespace recast
