//===- Passes.td - the passes of recast -----------------------------------------===//
#ifndef RECAST_PASSES
#define RECAST_PASSES

include "mlir/Pass/PassBase.td"

class Recast_Pass<string name> : Pass<name, "::mlir::ModuleOp"> {
  let dependentDialects = ["::recast::onnx_ir::ONNXDialect", "::recast::train::TrainDialect"];
}

def BindDimensions : Recast_Pass<"bind-dimensions"> {
  let summary = "Give symbolic dimensions fixed sizes";
  let description = [{
    `dims=batch=8`: every `batch` in the types of graph inputs becomes 8, and types are inferred anew.
    A name that no input has is an error that lists the symbols.
  }];
  let options = [ListOption<"dims", "dims", "std::string", "NAME=N, N a size in elements">];
}

def ConvertDtype : Recast_Pass<"convert-dtype"> {
  let summary = "Change the floating-point type of the whole model";
  let description = [{
    Inputs, initializers, constants and the `to` of casts that are f16, bf16, f32 or f64 take the new type. In f64, scalar
    constants take the number that they were before the file rounded them (ir/onnx/IntendedValue.h) and rotary tables
    are computed anew (RotaryTable.h); parameters, and constants that data is compared with, keep their values exactly.
  }];
  let options = [Option<"type", "type", "std::string", /*default=*/"\"f32\"", "f32 or f64">];
  let statistics = [Statistic<"numTensors", "tensors", "Tensors converted">];
}

def ReadOrtTraining : Recast_Pass<"read-ort-training"> {
  let summary = "Take the forward graph and the parameters out of a training graph of ONNX Runtime";
  let description = [{
    ```
    loss = com.microsoft.SoftmaxCrossEntropyLossInternal(FusedMatMul(x, w), labels, , -100)
    w_grad.accumulation.out = InPlaceAccumulatorV2(buffer, w_grad, reset)
                            ->
    loss = SoftmaxCrossEntropyLoss(MatMul(x, w), labels) {ignore_index = -100}; w is a parameter
    ```
    Reads the artifacts of onnxruntime-training and graphs that ORTModule has optimised: inputs with a gradient output
    `<name>_grad` are the parameters; the loss is an output, or goes into YieldOp. The backward is dropped (recast builds
    its own), the forward's operators of com.microsoft and org.pytorch.aten become standard ones, and the opset is
    raised where a node (LayerNormalization at opset 15) needs it. Parameters without values start as zeros, with a
    warning. Other graphs are left alone.
  }];
  let statistics = [Statistic<"numParameters", "parameters", "Parameters of the training graph">];
}

def ExpandPreviewTraining : Recast_Pass<"expand-preview-training"> {
  let summary = "Replace the operators of ai.onnx.preview.training by standard ones";
  let description = [{
    ```
    dw = Gradient(w, x) {xs = ["w"], zs = ["x"], y = "loss"}          dw = ... the backward of loss
    w_new, v_new = Momentum(R, T, w, dw, v) {alpha, beta, ...}   ->   w_new = w - R * (alpha * v + beta * dw) ...
    ```
    Gradient differentiates the graph between xs and y; where its inputs are other tensors than xs and zs name, a copy
    of that graph for these. Adam, Adagrad and Momentum become what their documentation says
    (ir/onnx/PreviewOptimizers.h). Also under the misspelt domain `ai.onnx.preview`.
  }];
  let statistics = [
    Statistic<"numGradients", "gradients", "Gradient nodes replaced">,
    Statistic<"numOptimizers", "optimizers", "Optimizer nodes replaced">,
  ];
}

def PrepareTraining : Recast_Pass<"prepare-training"> {
  let summary = "Bring a forward graph into the form that the training passes expect";
  let description = [{
    Initializers that are also graph inputs (the form of IR version 3) become initializers only; what the file declared
    about types is dropped. Tensors that go through sequences of known length (SplitToSequence, SequenceAt) go around
    them. Calls of local functions, and operators without a gradient rule that ONNX defines by a
    function body (Attention, GroupNormalization), are replaced by their bodies between parameters and loss. Warns about a BatchNormalization in inference form between a parameter and the loss: its
    statistics would never be updated.
  }];
  let options = [Option<"loss", "loss", "std::string", "", "Name of the loss output; empty: the only scalar float output">];
}

def InsertRandomNumbers : Recast_Pass<"insert-random-numbers"> {
  let summary = "Draw dropout masks and noise from a key in the state";
  let description = [{
    ```
    y = Dropout(x, ratio, true)     mask = train.dropout_mask(rng_key, Shape(x), ratio)
                            ->      y = Where(mask, x / (1 - ratio), 0)
    y = RandomUniformLike(x)    ->  y = train.random_uniform(rng_key, Shape(x)) * (high - low) + low
    ```
    RandomNormal, RandomUniform, their forms with Like and Bernoulli draw in the same way. `rng_key` becomes a state input
    that grows by one a step: each step has numbers of its own, and the same state gives the same ones again, on any
    runtime. Dropout in inference form, or with an unknown ratio or mode, stays. An attribute `seed` has no effect.
  }];
  let options = [
    Option<"seed", "seed", "int64_t", "0", "Initial key">,
    Option<"dataParallel", "data-parallel", "bool", "false", "Each rank draws numbers of its own">,
  ];
  let statistics = [Statistic<"numDraws", "draws", "Operators replaced that draw">];
}

def ComputeGradients : Recast_Pass<"compute-gradients"> {
  let summary = "Build the backward graph: outputs grad.<parameter> of the loss";
  let description = [{
    ```
    loss = f(w)                     loss = f(w)
                            ->      grad.w = df/dw
    ```
    Starts from the scaled loss where insert-loss-scale ran before; the gradients then have the type !train.scaled.
    Operators that cannot be differentiated are all reported before anything is changed.
  }];
  let options = [
    Option<"loss", "loss", "std::string", "", "Name of the loss output; empty: the only scalar float output">,
    ListOption<"train", "train", "std::string", "Globs of tensors to differentiate; none: the default choice">,
    ListOption<"freeze", "freeze", "std::string", "Globs of parameters to leave out">,
    ListOption<"paddingIndex", "padding-index", "std::string",
               "GLOB=N: row N of embedding tables, which look-ups give no gradient; GLOB=none: every row has one; "
               "tables not named: the row that alone holds only zeros">,
  ];
  let statistics = [Statistic<"numParameters", "parameters", "Parameters that have a gradient">];
}

def NormalizeLoss : Recast_Pass<"normalize-loss"> {
  let summary = "Divide the loss by one count over all micro-batches of the step";
  let description = [{
    ```
    loss = SoftmaxCrossEntropyLoss(scores, labels)            total = train.window_sum(number of labels that count)
           {reduction = "mean", ignore_index = -100}   ->     loss = SoftmaxCrossEntropyLoss {"sum"} / total
    ```
    Then the sum of the micro-batches' losses is the loss of the one large batch, and so are the gradients. Follows sums,
    differences and constant factors from the loss to its terms. A term that is a mean over samples, or that does not
    depend on the batch, is divided by the number of micro-batches; a quotient by something that only data decides (the
    sum of a mask) gets the window's divisor; a plain sum stays.
  }];
  let options = [
    Option<"loss", "loss", "std::string", "", "Name of the loss output; empty: the only scalar float output">,
    Option<"microBatches", "micro-batches", "int64_t", "1", "Micro-batches in a step">,
    Option<"by", "by", "std::string", "", "tokens, samples or micro-batches; empty: tokens where the loss counts them, "
           "else samples">,
    ListOption<"train", "train", "std::string", "Globs of tensors that are trained; none: the default choice">,
    ListOption<"freeze", "freeze", "std::string", "Globs of parameters that are not">,
    Option<"dataParallel", "data-parallel", "bool", "false", "Refuse losses that ranks cannot average with one count">,
  ];
  let statistics = [Statistic<"numTerms", "terms", "Terms of the loss that were weighted">];
}

def CollectStatistics : Recast_Pass<"collect-statistics"> {
  let summary = "Make the running statistics of BatchNormalization state";
}

def AccumulateMicroBatches : Recast_Pass<"accumulate-micro-batches"> {
  let summary = "Compute the gradients of several micro-batches one after another, and sum them in fp32";
  let description = [{
    ```
    x: [B, ...]                     x: [K, B, ...]
    grad.w = f(w, x)         ->     sum.w = Scan(zeros, x) { sum + f(w, x_k) }
    ```
    What depends on no micro-batch (casts of parameters) stays outside and is computed once. Running statistics and the
    random key are carried from micro-batch to micro-batch. `train.window_sum` becomes a Scan of its own, before.
  }];
  let options = [Option<"microBatches", "micro-batches", "int64_t", "1", "Micro-batches in a step">];
  let statistics = [
    Statistic<"numInside", "inside", "Nodes computed for each micro-batch">,
    Statistic<"numOutside", "outside", "Nodes computed once a step">,
  ];
}

def ReduceAcrossRanks : Recast_Pass<"reduce-across-ranks"> {
  let summary = "Sum what the ranks have computed, once a step, and divide it by one count over all of them";
  let description = [{
    ```
    grad.w, loss, tokens   ->   all = train.all_reduce(grad.w * tokens, loss * tokens, tokens, ...)
                                grad.w = all.0 / all.2, loss = all.1 / all.2
    ```
    The one point of a step where ranks meet. A rank's mean counts as much as it has tokens, or, where the loss counts
    samples, as much as every other's; sums stay sums. Running statistics become the mean over the ranks, and an amax
    the largest. Found_inf, skip and scale follow from the sums, and so are the same everywhere.
  }];
  let statistics = [Statistic<"numGradients", "gradients", "Gradients that are reduced">];
}

def InsertLossScale : Recast_Pass<"insert-loss-scale"> {
  let summary = "Multiply the loss by a loss scale before the backward starts from it";
  let description = [{
    ```
    loss                            loss, scaled = train.scale_loss(loss, loss_scale)
    ```
    `loss_scale` becomes a state input. Must run before compute-gradients.
  }];
  let options = [
    Option<"loss", "loss", "std::string", "", "Name of the loss output; empty: the only scalar float output">,
    Option<"init", "init", "double", "65536", "Initial scale">,
  ];
}

def UnscaleGradients : Recast_Pass<"unscale-gradients"> {
  let summary = "Check gradients for non-finite values, and take the loss scale off them";
  let description = [{
    Scaled gradients pass `train.unscale`, which checks them before the multiply; unscaled ones `train.check_finite`.
    Every gradient goes through the one check, whose result is the output `found_inf`.
  }];
}

def MonitorGradients : Recast_Pass<"monitor-gradients"> {
  let summary = "Measure gradients by group: outputs to watch";
  let description = [{
    For each glob, over the gradients of the parameters that it matches, unscaled and before clipping:
    `grad_norm.<glob>` (2-norm), `grad_amax.<glob>` (largest magnitude), `grad_nonfinite.<glob>` (elements that are
    infinite or NaN) and `grad_underflow.<glob>` (the fraction of elements that, scaled, are below the smallest normal
    number of the gradient's low type, and lose digits or vanish there). The group `each` is one for every parameter.
  }];
  let options = [
    ListOption<"groups", "groups", "std::string", "Globs on parameters, or each">,
    Option<"type", "type", "std::string", "\"f32\"", "f32, bf16 or f16: the type in which the backward runs">,
  ];
}

def ClipGradients : Recast_Pass<"clip-gradients"> {
  let summary = "Clip gradients by global norm or by value, and measure their norm";
  let description = [{
    The output `grad_norm` is the norm over all unscaled gradients before clipping; it is there without clipping too.
  }];
  let options = [
    Option<"maxNorm", "max-norm", "double", "-1", "Largest global norm; negative: no clipping by norm">,
    Option<"normType", "norm-type", "double", "2", "Order of the norm, at least 1 (inf: the largest absolute value)">,
    Option<"maxValue", "max-value", "double", "-1", "Largest absolute value; negative: no clipping by value">,
  ];
}

def InsertOptimizer : Recast_Pass<"insert-optimizer"> {
  let summary = "Update the parameters: state inputs, optimizer operators, outputs <name>.next";
  let description = [{
    Parameters, moments, the step count and the learning rate become state inputs with their initial values. Where
    `found_inf` is true every update is skipped, running statistics of BatchNormalization included. With `ema` there is
    a state `<parameter>.ema`, which follows the new value of the parameter.
  }];
  let options = [
    Option<"optimizer", "optimizer", "std::string", "\"adamw\"", "A name of the table in step/Optimizers.cpp">,
    ListOption<"settings", "settings", "std::string", "NAME=VALUE; others have torch.optim's defaults">,
    ListOption<"noDecay", "no-decay", "std::string", "Globs of parameters without weight decay">,
    ListOption<"lrScale", "lr-scale", "std::string", "GLOB=FACTOR of the learning rate; the first match counts">,
    ListOption<"decayScale", "decay-scale", "std::string", "GLOB=FACTOR of the weight decay; the first match counts">,
    Option<"ema", "ema", "double", "-1", "Decay of the moving average of the parameters; negative: none">,
    Option<"adamForm", "adam-form", "std::string", "\"pytorch\"",
           "pytorch; transformers: epsilon is added before the bias is corrected, and the decay follows the update; "
           "transformers-uncorrected: that without bias correction">,
  ];
  let statistics = [Statistic<"numUpdates", "updates", "Parameters updated">];
}

def UpdateLossScale : Recast_Pass<"update-loss-scale"> {
  let summary = "Grow or lower the dynamic loss scale after the step";
  let options = [
    Option<"growth", "growth", "double", "2", "Factor after `interval` good steps in a row">,
    Option<"backoff", "backoff", "double", "0.5", "Factor after a step with a non-finite gradient">,
    Option<"interval", "interval", "int64_t", "2000", "Good steps before the scale grows">,
    Option<"min", "min", "double", "0", "The least that it backs off to">,
    Option<"max", "max", "double", "std::numeric_limits<double>::infinity()", "The most that it grows to">,
    Option<"hysteresis", "hysteresis", "int64_t", "1", "Overflows since it last could have grown before it backs off">,
  ];
}

def FinishStep : Recast_Pass<"finish-step"> {
  let summary = "Order the outputs of a step model and record which output updates which state input";
}

def Autocast : Recast_Pass<"autocast"> {
  let summary = "Insert casts so that products run in a low-precision type";
  let description = [{
    Products take their inputs in the low type and sum in fp32; reductions, norms, losses and exponentials stay in fp32;
    operators of several inputs run in the widest type among them. One cast for each value and type.
  }];
  let options = [
    Option<"type", "type", "std::string", "\"bf16\"", "bf16 or f16">,
    Option<"policy", "policy", "std::string", "", "cuda or cpu (PyTorch's lists), or a YAML file of rules before them">,
    ListOption<"train", "train", "std::string", "Globs of tensors that are trained, numbers too">,
  ];
  let statistics = [
    Statistic<"numCasts", "casts", "Casts inserted">,
    Statistic<"numLow", "low", "Nodes that run in the low type">,
  ];
}

def RaiseOpset : Recast_Pass<"raise-opset"> {
  let summary = "Bring the model to a later opset";
  let description = [{
    Reductions get their axes as an input, Split the number of its outputs, and so on, from opset 13 on; operators that
    only allow more types stay as they are. An operator whose meaning changes otherwise is an error that names the node.
  }];
  let options = [Option<"opset", "opset", "int64_t", "21",
                        "Version of ONNX's default domain to reach; 0: 14 where a BatchNormalization trains, else none">];
}

def ChooseFp8Products : Recast_Pass<"choose-fp8-products"> {
  let summary = "Mark the matrix products that run in fp8";
  let description = [{
    Every MatMul and Gemm that autocast has put into the low type, less the first and the last product between inputs
    and outputs, products with a size that is known and no multiple of 16, and those that a rule of the policy names. Each product
    that is left out gets a remark. Runs after autocast and before compute-gradients, which marks the products of a
    gradient as their product.
  }];
  let options = [Option<"policy", "policy", "std::string", "", "YAML file of autocast; rules by name keep products out">];
  let statistics = [
    Statistic<"numProducts", "products", "Products chosen">,
    Statistic<"numLeftOut", "left-out", "Products left out">,
  ];
}

def QuantizeProducts : Recast_Pass<"quantize-products"> {
  let summary = "Quantise the inputs of the marked products to fp8";
  let description = [{
    ```
    y = MatMul(x, w)        q, amax = train.quantize_fp8(x, x.fp8_scale)
                            xd = DequantizeLinear(q, 1 / x.fp8_scale)
                        ->  ... the same of w
                            y = Cast(MatMul(xd, wd))
    ```
    E4M3FN for values of the forward, and for gradients where scales are finer than one for the tensor; else E5M2 for
    gradients. One quantisation for each tensor and tiling. With the recipe `delayed` the scale is state; with the others
    `train.quantize_fp8_tiles` finds it from the tensor itself.
  }];
  let options = [
    Option<"recipe", "recipe", "std::string", "\"delayed\"", "delayed, current, row, block or mx">,
    Option<"keepsState", "keeps-state", "bool", "true", "false: the recipe delayed scales as current">,
    Option<"history", "history", "int64_t", "16", "Steps that an amax history covers">,
  ];
  let statistics = [Statistic<"numTensors", "tensors", "Tensors quantised">];
}

def UpdateFp8Scales : Recast_Pass<"update-fp8-scales"> {
  let summary = "Shift the amax histories and derive the fp8 scales of the next step";
  let options = [
    Option<"algorithm", "algorithm", "std::string", "\"max\"", "max or most_recent">,
    Option<"margin", "margin", "int64_t", "0", "Powers of two to stay below the largest number">,
    Option<"nan", "nan", "std::string", "\"propagate\"", "propagate: a NaN keeps the scale; ignore: it counts as 0">,
  ];
}

def RoundProducts : Recast_Pass<"round-products"> {
  let summary = "Round the factors of products to tf32";
  let description = [{
    ```
    y = MatMul(x, w)                y = MatMul(train.round_tf32(x), train.round_tf32(w))
    ```
    For the operators that the policy puts into class low, gradients too: runs after compute-gradients. One rounding for
    each value; sums and results stay in f32.
  }];
  let options = [
    Option<"policy", "policy", "std::string", "", "cuda or cpu (PyTorch's lists), or a YAML file of rules before them">,
  ];
  let statistics = [Statistic<"numRounded", "rounded", "Values rounded">];
}

def ToInference : Recast_Pass<"to-inference"> {
  let summary = "Cut the loss, and bring BatchNormalization and Dropout into inference form";
  let options = [Option<"loss", "loss", "std::string", "", "Name of the loss output; empty: the only scalar float output">];
}

def OrderForMemory : Recast_Pass<"order-for-memory"> {
  let summary = "Bring operators into an order that needs less memory";
  let description = [{
    ```
    w16 = Cast(w)                   y = MatMul(x, v)
    y = MatMul(x, v)         ->     w16 = Cast(w)
    z = MatMul(y, w16)              z = MatMul(y, w16)
    ```
    In the main graph and in the body of the Scan over micro-batches. Operators with effects keep their order, and no
    value changes. The graph stays as it is where no order is better.
  }];
  let options = [
    Option<"isOptional", "optional", "bool", "false",
           "Leave alone, and say nothing of, models whose memory cannot be planned and those of over 10,000 operators">,
  ];
  let statistics = [Statistic<"savedBytes", "saved-bytes", "Bytes that the arena has lost">];
}

def InsertRecomputation : Recast_Pass<"insert-recomputation"> {
  let summary = "Run forward operators again where the backward needs their results, instead of keeping these";
  let description = [{
    ```
    h = Relu(x)                     h = Relu(x)
    ...                             ...
    dw = MatMul(h, dy)      ->      x.retained = train.barrier(x, dy)
                                    h.recompute = Relu(x.retained)
                                    dw = MatMul(h.recompute, dy)
    ```
    The barrier keeps other passes and runtimes from merging both runs and from moving the second one ahead of `dy`.
    With `offload`, a value may also go to the host's memory (`train.offload`, right after it is computed) and come back
    (`train.fetch`) where that costs less than what computes it again, or where nothing may. Values stay the same bit for
    bit. Works on the main graph, or on the body of the Scan over micro-batches. Without a
    budget and with a policy other than auto, the graph stays as it is where the policy would lower nothing.
  }];
  let options = [
    Option<"budget", "budget", "std::string", "", "Size of the arena: 2GiB, 500MB, 60% (of what it takes now), min">,
    Option<"policy", "policy", "std::string", "\"auto\"",
           "auto: fits the budget for the least time; none; every-N, N operators; sqrt; selective: cheap operators "
           "only; or GLOB,...: names of operators and values that are kept">,
    Option<"solveTime", "solve-time", "double", "0", "Seconds for auto; 0: a fixed effort, with one result everywhere">,
    Option<"costProfile", "cost-profile", "std::string", "",
           "Speed of the device that times are estimated for, as recast-opt --calibrate wrote it; empty: the default">,
    Option<"offload", "offload", "bool", "false", "Values may be copied to the host's memory and back, with policy auto">,
  ];
  let statistics = [Statistic<"numRepeated", "repeated", "Operators that run again">,
                    Statistic<"numOffloaded", "offloaded", "Values that go to the host's memory">];
}

def VerifyTraining : Recast_Pass<"verify-training"> {
  let summary = "Check the rules of mixed precision and accumulation by dataflow";
  let description = [{
    Changes nothing; each finding is an error that names the rule and the chain of nodes. Rules and broken examples are
    in docs/verify.md.
  }];
  let options = [ListOption<"except", "except", "std::string", "Names of rules that the step may break">];
}

#endif
