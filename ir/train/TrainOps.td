//===- TrainOps.td - dialect `train` ------------------------------------------===//
//
// What a training step needs and ONNX has no operator for. In files these are calls of model-local functions of the
// domain `recast`; each has a body in standard ONNX operators (Bodies*.cpp), so that any runtime can execute them, and a
// native kernel in recast's own runtime. A test holds both against each other.
//===----------------------------------------------------------------------===//
#ifndef RECAST_TRAIN_OPS
#define RECAST_TRAIN_OPS

include "ir/onnx/OnnxBase.td"

def Train_Dialect : Dialect {
  let name = "train";
  let cppNamespace = "::recast::train";
  let summary = "Gradients, loss scaling, clipping, optimizers";
  let dependentDialects = ["::recast::onnx_ir::ONNXDialect"];
  let useDefaultTypePrinterParser = 1;
}

def Train_ScaledType : TypeDef<Train_Dialect, "Scaled"> {
  let mnemonic = "scaled";
  let summary = "A gradient that still carries the loss scale";
  let description = [{
    Only `train.unscale` takes it. Clipping, norms and optimizers take plain tensors, so a graph that clips before it
    unscales does not verify.
  }];
  let parameters = (ins "::mlir::Type":$tensor);
  let assemblyFormat = "`<` $tensor `>`";
}

class Train_Op<string mnemonic, AutocastClass autocast, bit effects, list<Trait> traits = []>
    : Op<Train_Dialect, mnemonic, traits # !if(effects, []<Trait>, [Pure]) #
         [DeclareOpInterfaceMethods<ONNX_NodeInterface, ["inferTypes"]>]> {
  let arguments = (ins Variadic<AnyType>:$inputs);
  let results = (outs Variadic<AnyType>:$outputs);
  let assemblyFormat = "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)";
  let hasVerifier = 1;
  let extraClassDefinition = [{
    ::recast::onnx_ir::Facts $cppClass::facts() {
      return {::recast::onnx_ir::AutocastClass::}] # autocast.name # ", false, false, " # effects # [{};
    }
    bool $cppClass::inferTypes(::llvm::SmallVectorImpl<::mlir::Type> &types) {
      return ::recast::train::inferTypes(getOperation(), types);
    }
    ::mlir::LogicalResult $cppClass::verify() { return ::recast::train::verifyOp(getOperation()); }
  }];
}

// Gradients of operators. dy has the type of the output that it belongs to.
class Train_GradientOp<string mnemonic, AutocastClass autocast = Fp32> : Train_Op<mnemonic, autocast, 0>;

def Train_ReduceToOp : Train_GradientOp<"reduce_to"> {
  let summary = "(dy, shape) -> dx: sums dy over the axes along which `shape` was broadcast";
}
def Train_ConvGradInputOp : Train_GradientOp<"conv_grad_input", Low> {
  let summary = "(dy, w) -> dx of Conv; attributes of Conv with explicit pads, and input_spatial";
}
def Train_ConvGradWeightOp : Train_GradientOp<"conv_grad_weight", Low> {
  let summary = "(x, dy) -> dw of Conv; attributes of Conv with explicit pads, and kernel_shape";
}
def Train_MaxPoolGradOp : Train_GradientOp<"max_pool_grad", Neutral> {
  let summary = "(dy, x) -> dx: the first maximum of each window in row-major order gets dy";
}
def Train_AveragePoolGradOp : Train_GradientOp<"average_pool_grad"> {
  let summary = "(dy) -> dx; attributes of AveragePool with explicit pads, and input_spatial";
}
def Train_LayerNormGradOp : Train_GradientOp<"layer_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale, dbias); axis, epsilon";
}
def Train_RmsNormGradOp : Train_GradientOp<"rms_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale); axis, epsilon";
}
def Train_BatchNormGradOp : Train_GradientOp<"batch_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale, dbias) with the batch's statistics (population variance); epsilon";
}
def Train_SoftmaxGradOp : Train_GradientOp<"softmax_grad"> {
  let summary = "(dy, y) -> dx = y * (dy - sum(dy * y)) over `axis`";
}
def Train_LogSoftmaxGradOp : Train_GradientOp<"log_softmax_grad"> {
  let summary = "(dy, y) -> dx = dy - exp(y) * sum(dy) over `axis`";
}
def Train_CrossEntropyGradOp : Train_GradientOp<"cross_entropy_grad"> {
  let summary = "(dloss, scores, labels, weights?) -> dscores of SoftmaxCrossEntropyLoss; reduction, ignore_index";
}
def Train_NllLossGradOp : Train_GradientOp<"nll_loss_grad"> {
  let summary = "(dloss, log_prob, labels, weights?) -> dlog_prob of NegativeLogLikelihoodLoss";
}
def Train_GatherGradOp : Train_GradientOp<"gather_grad"> {
  let summary = "(dy, indices, shape) -> dx: sums dy over repeated indices, in order; axis";
}
def Train_SliceGradOp : Train_GradientOp<"slice_grad", Neutral> {
  let summary = "(dy, shape, starts, ends, axes?, steps?) -> dx: zeros, and dy at the sliced places";
}
def Train_PadGradOp : Train_GradientOp<"pad_grad"> {
  let summary = "(dy, shape, pads, axes?) -> dx of Pad; mode";
}

// Draws from a counter-based generator: the same key and offset give the same mask, however often it is computed.
def Train_DropoutMaskOp : Train_Op<"dropout_mask", Never, 1> {
  let summary = "(rng_key, shape, ratio) -> mask: true where the uniform number is at least ratio; offset";
  let description = "Generator: squares32 (Widynski 2020, arXiv:2004.06278); see docs/random.md.";
}

def Train_WindowSumOp : Train_Op<"window_sum", Fp32, 0> {
  let summary = "(x) -> x summed over the micro-batches of the step: what a loss is divided by; x itself with one";
}
def Train_ScaleLossOp : Train_Op<"scale_loss", Fp32, 0> {
  let summary = "(loss, loss_scale) -> loss * loss_scale: what the backward starts from";
}
def Train_MarkScaledOp : Train_Op<"mark_scaled", Never, 0> {
  let summary = "(gradient) -> the same gradient, typed as scaled; leaves no trace in files";
}
def Train_UnscaleOp : Train_Op<"unscale", Fp32, 0> {
  let summary = "(g..., loss_scale) -> (g / loss_scale..., found_inf): checks the scaled gradients, then unscales";
}
def Train_CheckFiniteOp : Train_Op<"check_finite", Fp32, 0> {
  let summary = "(g...) -> found_inf: true where any gradient holds a non-finite value";
}
def Train_GradNormOp : Train_Op<"grad_norm", Fp32, 0> {
  let summary = "(g...) -> the 2-norm over all gradients";
}
def Train_GradStatsOp : Train_Op<"grad_stats", Fp32, 0> {
  let summary = "(g..., tiny) -> (2-norm, largest |g|, number of non-finite elements, fraction with |g| < tiny)";
}
def Train_ClipGradNormOp : Train_Op<"clip_grad_norm", Fp32, 0> {
  let summary = "(g..., max_norm) -> (g * min(1, max_norm / (norm + 1e-6))..., norm before clipping)";
}
def Train_ClipGradValueOp : Train_Op<"clip_grad_value", Fp32, 0> {
  let summary = "(g..., bound) -> gradients clamped to [-bound, bound]";
}
def Train_AdamWOp : Train_Op<"adamw", Fp32, 0> {
  let summary = "(skip, param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay) -> new (param, exp_avg, exp_avg_sq)";
  let description = "Decoupled weight decay (Loshchilov and Hutter 2019), the formulas of torch.optim.AdamW.";
}
def Train_AdamOp : Train_Op<"adam", Fp32, 0> {
  let summary = "As adamw, with weight decay added to the gradient (torch.optim.Adam)";
}
def Train_SgdOp : Train_Op<"sgd", Fp32, 0> {
  let summary = "(skip, param, grad, momentum_buffer?, step, lr, momentum, dampening, weight_decay) -> new (param, momentum_buffer?); nesterov";
}
def Train_UpdateLossScaleOp : Train_Op<"update_loss_scale", Never, 0> {
  let summary = "(found_inf, loss_scale, good_steps, growth, backoff, interval, min, max) -> new (loss_scale, good_steps)";
}
def Train_KeepIfOp : Train_Op<"keep_if", Never, 0> {
  let summary = "(skip, old, new) -> skip ? old : new";
}
def Train_RoundTf32Op : Train_Op<"round_tf32", Never, 0> {
  let summary = "(x) -> x, f32, rounded to 10 mantissa bits, to nearest even: an operand of a product in tf32";
}
def Train_BarrierOp : Train_Op<"barrier", Neutral, 1> {
  let summary = "(x...) -> x...: nothing is merged or moved across it";
}

#endif
