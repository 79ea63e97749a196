#include "passes/Pipelines.h"
#include "passes/Passes.h"

using namespace mlir;
namespace recast {

namespace {

void addGradients(OpPassManager &passes, const PipelineOptions &o) {
  ComputeGradientsOptions gradients;
  gradients.loss = o.loss;
  gradients.train.assign(o.train.begin(), o.train.end());
  gradients.freeze.assign(o.freeze.begin(), o.freeze.end());
  gradients.paddingIndex.assign(o.paddingIndex.begin(), o.paddingIndex.end());
  passes.addPass(createComputeGradients(gradients));
}

void addStep(OpPassManager &passes, const PipelineOptions &o) {
  std::string scale = !o.lossScale.empty() ? o.lossScale : o.precision == "f16" ? "dynamic" : "none";
  bool isDynamic = scale == "dynamic", isScaled = scale != "none";
  if (o.accumulate > 1) {
    NormalizeLossOptions normalize;
    normalize.loss = o.loss;
    normalize.microBatches = o.accumulate;
    normalize.by = o.normalize;
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
  passes.addPass(createCollectStatistics());
  if (o.accumulate > 1) {
    AccumulateMicroBatchesOptions accumulate;
    accumulate.microBatches = o.accumulate;
    passes.addPass(createAccumulateMicroBatches(accumulate));
  }
  passes.addPass(createUnscaleGradients());
  if (!o.monitor.empty()) {
    MonitorGradientsOptions monitor;
    monitor.groups.assign(o.monitor.begin(), o.monitor.end());
    monitor.type = o.precision;
    passes.addPass(createMonitorGradients(monitor));
  }
  ClipGradientsOptions clip;
  clip.maxNorm = o.clipNorm;
  clip.maxValue = o.clipValue;
  passes.addPass(createClipGradients(clip));
  InsertOptimizerOptions optimizer;
  optimizer.optimizer = o.optimizer;
  optimizer.lr = o.lr;
  optimizer.beta1 = o.beta1;
  optimizer.beta2 = o.beta2;
  optimizer.eps = o.eps;
  optimizer.weightDecay = o.weightDecay;
  optimizer.momentum = o.momentum;
  optimizer.nesterov = o.nesterov;
  optimizer.noDecay.assign(o.noDecay.begin(), o.noDecay.end());
  optimizer.adamForm = o.adamForm;
  passes.addPass(createInsertOptimizer(optimizer));
  if (isDynamic) {
    UpdateLossScaleOptions update;
    update.growth = o.scaleGrowth;
    update.backoff = o.scaleBackoff;
    update.interval = o.scaleInterval;
    update.min = o.scaleMin;
    update.max = o.scaleMax;
    passes.addPass(createUpdateLossScale(update));
  }
  passes.addPass(createFinishStep());
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
  if (o.isStep)
    return;
  if (o.emit == Emit::Step || o.emit == Emit::Gradient) {
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
    InsertRandomMasksOptions masks;
    masks.seed = o.seed;
    passes.addPass(createInsertRandomMasks(masks));
  }
  if (o.emit == Emit::Inference) {
    ToInferenceOptions inference;
    inference.loss = o.loss;
    passes.addPass(createToInference(inference));
  }
  if (o.precision != "f32") {
    AutocastOptions autocast;
    autocast.type = o.precision;
    autocast.policy = o.policy;
    passes.addPass(createAutocast(autocast));
  }
  if (o.emit == Emit::Gradient)
    addGradients(passes, o);
  if (o.emit == Emit::Step)
    addStep(passes, o);
}

} // namespace recast
