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

// Each says what it costs: `let work`, and `let flops` where it computes (see OnnxBase.td).
class Train_Op<string mnemonic, AutocastClass autocast, bit effects, list<Trait> traits = []>
    : Op<Train_Dialect, mnemonic, traits # !if(effects, []<Trait>, [Pure]) #
         [DeclareOpInterfaceMethods<ONNX_NodeInterface, ["inferTypes"]>]> {
  let arguments = (ins Variadic<AnyType>:$inputs);
  let results = (outs Variadic<AnyType>:$outputs);
  let assemblyFormat = "`(` $inputs `)` attr-dict `:` functional-type($inputs, $outputs)";
  let hasVerifier = 1;
  WorkClass work = UnknownWork;
  int flops = 0;
  let extraClassDefinition = [{
    ::recast::onnx_ir::Facts $cppClass::facts() {
      return {::recast::onnx_ir::AutocastClass::}] # autocast.name # ", false, false, " # effects #
      ", ::recast::onnx_ir::Work::" # work.name # ", " # flops # [{};
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
  let work = ReductionWork; let flops = 1;
}
def Train_ConvGradInputOp : Train_GradientOp<"conv_grad_input", Low> {
  let summary = "(dy, w) -> dx of Conv; attributes of Conv with explicit pads, and input_spatial";
  let work = ConvolutionWork;
}
def Train_ConvGradWeightOp : Train_GradientOp<"conv_grad_weight", Low> {
  let summary = "(x, dy) -> dw of Conv; attributes of Conv with explicit pads, and kernel_shape";
  let work = ConvolutionWork;
}
def Train_MaxPoolGradOp : Train_GradientOp<"max_pool_grad", Neutral> {
  let summary = "(dy, x) -> dx: the first maximum of each window in row-major order gets dy";
  let work = ReductionWork; let flops = 1;
}
def Train_AveragePoolGradOp : Train_GradientOp<"average_pool_grad"> {
  let summary = "(dy) -> dx; attributes of AveragePool with explicit pads, and input_spatial";
  let work = ReductionWork; let flops = 1;
}
def Train_LayerNormGradOp : Train_GradientOp<"layer_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale, dbias); axis, epsilon";
  let work = ReductionWork; let flops = 14;
}
def Train_RmsNormGradOp : Train_GradientOp<"rms_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale); axis, epsilon";
  let work = ReductionWork; let flops = 10;
}
def Train_BatchNormGradOp : Train_GradientOp<"batch_norm_grad"> {
  let summary = "(dy, x, scale) -> (dx, dscale, dbias) with the batch's statistics (population variance); epsilon";
  let work = ReductionWork; let flops = 13;
}
def Train_SoftmaxGradOp : Train_GradientOp<"softmax_grad"> {
  let summary = "(dy, y) -> dx = y * (dy - sum(dy * y)) over `axis`";
  let work = ReductionWork; let flops = 4;
}
def Train_LogSoftmaxGradOp : Train_GradientOp<"log_softmax_grad"> {
  let summary = "(dy, y) -> dx = dy - exp(y) * sum(dy) over `axis`";
  let work = ReductionWork; let flops = 15;
}
def Train_CrossEntropyGradOp : Train_GradientOp<"cross_entropy_grad"> {
  let summary = "(dloss, scores, labels, weights?) -> dscores of SoftmaxCrossEntropyLoss; reduction, ignore_index";
  let work = ReductionWork; let flops = 17;
}
def Train_NllLossGradOp : Train_GradientOp<"nll_loss_grad"> {
  let summary = "(dloss, log_prob, labels, weights?) -> dlog_prob of NegativeLogLikelihoodLoss";
  let work = MoveWork;
}
def Train_GatherGradOp : Train_GradientOp<"gather_grad"> {
  let summary = "(dy, indices, shape) -> dx: sums dy over repeated indices, in order; axis";
  let work = ReductionWork; let flops = 1;
}
def Train_SliceGradOp : Train_GradientOp<"slice_grad", Neutral> {
  let summary = "(dy, shape, starts, ends, axes?, steps?) -> dx: zeros, and dy at the sliced places";
  let work = MoveWork;
}
def Train_PadGradOp : Train_GradientOp<"pad_grad"> {
  let summary = "(dy, shape, pads, axes?) -> dx of Pad; mode";
  let work = MoveWork;
}

// Draws from a counter-based generator: the same key and offset give the same mask, however often it is computed.
def Train_DropoutMaskOp : Train_Op<"dropout_mask", Never, 1> {
  let summary = "(rng_key, shape, ratio) -> mask: true where the uniform number is at least ratio; offset";
  let work = ElementwiseWork; let flops = 20;
  let description = "Generator: squares32 (Widynski 2020, arXiv:2004.06278); see docs/random.md.";
}

def Train_RandomUniformOp : Train_Op<"random_uniform", Never, 1> {
  let summary = "(rng_key, shape) -> u: f32 numbers in [0, 1), multiples of 2^-24; offset";
  let work = ElementwiseWork; let flops = 20;
  let description = "Generator: squares32 (Widynski 2020, arXiv:2004.06278); see docs/random.md.";
}

def Train_WindowSumOp : Train_Op<"window_sum", Fp32, 0> {
  let summary = "(x) -> x summed over the micro-batches of the step: what a loss is divided by; x itself with one";
  let work = ElementwiseWork; let flops = 1;
}
// Data parallel: one process computes what these do on its own; the runtime takes their place where there are several.
def Train_AllReduceOp : Train_Op<"all_reduce", Never, 1> {
  let summary = "(x...) -> x summed over the ranks, of the operands from number `maxima` on the largest; x itself with one";
  let work = ElementwiseWork; let flops = 1;
  let description = "Every rank gets the same bits. A NaN is the largest number. Where `maxima` is left out all are sums.";
}
def Train_RankOp : Train_Op<"rank", Never, 1> {
  let summary = "() -> the number of this process among those that train together, i64; 0 with one";
  let work = NothingWork;
}
def Train_ScaleLossOp : Train_Op<"scale_loss", Fp32, 0> {
  let summary = "(loss, loss_scale) -> loss * loss_scale: what the backward starts from";
  let work = ElementwiseWork; let flops = 1;
}
def Train_MarkScaledOp : Train_Op<"mark_scaled", Never, 0> {
  let summary = "(gradient) -> the same gradient, typed as scaled; leaves no trace in files";
  let work = NothingWork;
}
def Train_UnscaleOp : Train_Op<"unscale", Fp32, 0> {
  let summary = "(g..., loss_scale) -> (g / loss_scale..., found_inf): checks the scaled gradients, then unscales";
  let work = ElementwiseWork; let flops = 2;
}
def Train_CheckFiniteOp : Train_Op<"check_finite", Fp32, 0> {
  let summary = "(g...) -> found_inf: true where any gradient holds a non-finite value";
  let work = ReductionWork; let flops = 1;
}
def Train_GradNormOp : Train_Op<"grad_norm", Fp32, 0> {
  let summary = "(g...) -> the norm over all gradients, of the order norm_type (default 2)";
  let work = ReductionWork; let flops = 2;
}
def Train_GradStatsOp : Train_Op<"grad_stats", Fp32, 0> {
  let summary = "(g..., tiny) -> (2-norm, largest |g|, number of non-finite elements, fraction with |g| < tiny)";
  let work = ReductionWork; let flops = 5;
}
def Train_ClipGradNormOp : Train_Op<"clip_grad_norm", Fp32, 0> {
  let summary = "(g..., max_norm) -> (g * min(1, max_norm / (norm + 1e-6))..., norm before clipping); norm_type";
  let work = ElementwiseWork; let flops = 3;
}
def Train_ClipGradValueOp : Train_Op<"clip_grad_value", Fp32, 0> {
  let summary = "(g..., bound) -> gradients clamped to [-bound, bound]";
  let work = ElementwiseWork; let flops = 2;
}
// Optimizers. `skip` keeps every old value. Numbers are f64 scalars, `step` counts from 1. State that is left out has no
// result; the results follow the order of the operands that they replace.
def Train_AdamWOp : Train_Op<"adamw", Fp32, 0> {
  let summary = "(skip, param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay, max_exp_avg_sq?) -> new (param, exp_avg, exp_avg_sq, max_exp_avg_sq?)";
  let work = ElementwiseWork; let flops = 20;
  let description = [{
    Decoupled weight decay (Loshchilov and Hutter 2019), the formulas of torch.optim.AdamW; `max_exp_avg_sq` is there with
    amsgrad (Reddi, Kale and Kumar 2018).
  }];
}
def Train_AdamOp : Train_Op<"adam", Fp32, 0> {
  let summary = "As adamw, with weight decay added to the gradient (torch.optim.Adam)";
  let work = ElementwiseWork; let flops = 21;
}
def Train_NAdamOp : Train_Op<"nadam", Fp32, 0> {
  let summary = "(skip, param, grad, exp_avg, exp_avg_sq, mu_product, step, lr, beta1, beta2, eps, weight_decay, momentum_decay) -> new (param, exp_avg, exp_avg_sq, mu_product); decoupled_weight_decay";
  let work = ElementwiseWork; let flops = 25;
  let description = "Dozat 2016, the formulas of torch.optim.NAdam; `mu_product` is an f32 scalar, as there.";
}
def Train_RAdamOp : Train_Op<"radam", Fp32, 0> {
  let summary = "(skip, param, grad, exp_avg, exp_avg_sq, step, lr, beta1, beta2, eps, weight_decay) -> new (param, exp_avg, exp_avg_sq); decoupled_weight_decay";
  let work = ElementwiseWork; let flops = 23;
  let description = "Liu et al. 2020 (arXiv:1908.03265), the formulas of torch.optim.RAdam.";
}
def Train_AdagradOp : Train_Op<"adagrad", Fp32, 0> {
  let summary = "(skip, param, grad, sum, step, lr, lr_decay, eps, weight_decay) -> new (param, sum)";
  let work = ElementwiseWork; let flops = 13;
  let description = "Duchi, Hazan and Singer 2011, the formulas of torch.optim.Adagrad.";
}
def Train_RmsPropOp : Train_Op<"rmsprop", Fp32, 0> {
  let summary = "(skip, param, grad, square_avg, grad_avg?, momentum_buffer?, lr, alpha, eps, weight_decay, momentum) -> new (param, square_avg, grad_avg?, momentum_buffer?)";
  let work = ElementwiseWork; let flops = 18;
  let description = "The formulas of torch.optim.RMSprop; `grad_avg` is there where it is centered.";
}
def Train_LionOp : Train_Op<"lion", Fp32, 0> {
  let summary = "(skip, param, grad, exp_avg, lr, beta1, beta2, weight_decay) -> new (param, exp_avg)";
  let work = ElementwiseWork; let flops = 9;
  let description = "Chen et al. 2023 (arXiv:2302.06675), algorithm 2.";
}
def Train_SgdOp : Train_Op<"sgd", Fp32, 0> {
  let summary = "(skip, param, grad, momentum_buffer?, step, lr, momentum, dampening, weight_decay) -> new (param, momentum_buffer?); nesterov";
  let work = ElementwiseWork; let flops = 6;
}
def Train_EmaOp : Train_Op<"ema", Fp32, 0> {
  let summary = "(skip, average, param, step, decay) -> the average moved towards the new parameter; the first step copies it";
  let work = ElementwiseWork; let flops = 3;
  let description = "torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).";
}
def Train_UpdateLossScaleOp : Train_Op<"update_loss_scale", Never, 0> {
  let summary = "(found_inf, loss_scale, good_steps, growth, backoff, interval, min, max, hysteresis_left?, hysteresis?) -> new (loss_scale, good_steps, hysteresis_left?)";
  let work = ElementwiseWork; let flops = 8;
  let description = [{
    torch.amp.GradScaler, with ONNX Runtime's bounds and Megatron's hysteresis: the scale backs off only at the
    `hysteresis`-th overflow since it last could have grown, and at each one after that.
  }];
}

// fp8: docs/fp8.md. Elements are E4M3FN or E5M2, as the attribute `to` (a TensorProto.DataType) says.
def Train_QuantizeFp8Op : Train_Op<"quantize_fp8", Never, 0> {
  let summary = "(x, scale) -> (q, amax): q = x * scale, rounded and saturated; amax is the largest |x|; to";
  let work = ElementwiseWork; let flops = 5;
}
def Train_QuantizeFp8TilesOp : Train_Op<"quantize_fp8_tiles", Never, 0> {
  let summary = "(x) -> (q, scale_inv): as quantize_fp8, each tile with a scale from its own amax; to, tile, rule, scale_type";
  let work = ElementwiseWork; let flops = 5;
  let description = [{
    `tile`: the size of a tile along each dimension, 0 for the whole dimension; the last tile of a dimension may be
    smaller. `rule`: `exact` (largest / amax), `pow2` (the largest power of two that does not saturate) or `mx_floor` (OCP
    Microscaling Formats v1.0, 6.3). `scale_inv` holds the inverses of the scales, one a tile, in f32 or E8M0
    (`scale_type`); it is a scalar where there is one tile by definition.
  }];
}
def Train_DequantizeFp8Op : Train_Op<"dequantize_fp8", Never, 0> {
  let summary = "(q, scale_inv) -> q * scale_inv in f32; tile";
  let work = ElementwiseWork; let flops = 1;
}
def Train_UpdateAmaxOp : Train_Op<"update_amax", Never, 0> {
  let summary = "(skip, amax_history, scale, amax) -> new (amax_history, scale); to, algorithm, margin, nan";
  let work = ElementwiseWork; let flops = 4;
  let description = [{
    Delayed scaling as in Transformer Engine. Entry 0 of the history is that of the current step and 0 between steps, the
    last one that of the step before. `algorithm`: `max` over the history or `most_recent`; the scale becomes
    largest / that / 2^margin, and stays where that is 0 or infinite. `nan`: a NaN in the history keeps the scale
    (`propagate`) or counts as 0 (`ignore`).
  }];
}
def Train_KeepIfOp : Train_Op<"keep_if", Never, 0> {
  let summary = "(skip, old, new) -> skip ? old : new";
  let work = ElementwiseWork; let flops = 1;
}
def Train_RoundTf32Op : Train_Op<"round_tf32", Never, 0> {
  let summary = "(x) -> x, f32, rounded to 10 mantissa bits, to nearest even: an operand of a product in tf32";
  let work = ElementwiseWork; let flops = 4;
}
def Train_BarrierOp : Train_Op<"barrier", Neutral, 1> {
  let summary = "(x..., after...) -> x...: nothing is merged across it or moved from behind it ahead of `after`";
  let description = [{
    The body hides x from optimisers: a Reshape to its own shape, computed with a number of the last operand. Values pass
    as they are.
  }];
  let work = NothingWork;
}
// With effects, so that nothing merges copies or moves them.
def Train_OffloadOp : Train_Op<"offload", Neutral, 1> {
  let summary = "(x) -> h: a copy of x in the host's memory, for train.fetch; elsewhere an identity";
  let work = MoveWork;
}
def Train_FetchOp : Train_Op<"fetch", Neutral, 1> {
  let summary = "(h) -> x: what train.offload has put into the host's memory, back in the device's; elsewhere an identity";
  let work = MoveWork;
}

#endif
