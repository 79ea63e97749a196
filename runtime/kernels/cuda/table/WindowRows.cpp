// Convolutions, poolings and batch normalisation. cuDNN has the convolutions whose padding it can do, and plain kernels
// for machines without it; all else is plain kernels. The geometry is the CPU's
// (runtime/reference/ConvolutionWindow.h).
#include "runtime/kernels/cuda/source/Window.h"
#include "runtime/kernels/cuda/table/Convolution.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include "runtime/plan/DType.h"
#include "runtime/reference/ConvolutionWindow.h"
#include <algorithm>

namespace recast::cuda {
namespace {

constexpr int64_t kNewest = INT64_MAX;

WindowArgs windowArgs(const reference::Window &w) {
  WindowArgs args;
  auto set = [](Axes &to, const reference::Spatial &from) { std::ranges::copy(from, to.values); };
  set(args.in, w.in), set(args.out, w.out), set(args.kernel, w.kernel), set(args.stride, w.stride);
  set(args.dilation, w.dilation), set(args.padBegin, w.padBegin), set(args.padEnd, w.padEnd);
  return args;
}

std::string refuseType(const TensorType &type) {
  return !isFloat(type.dtype) || type.dtype == DType::F64 ? unsupported(type.dtype) : "";
}

/// A convolution of the library, with its bias afterwards. `plain` becomes what runs where there is no such library.
void callLibrary(Program &program, const ConvolutionCall &call, bool hasBias, LaunchOf<ConvolutionArgs> &plain) {
  Program other;
  plain.into(other);
  program.plain = std::move(other.launches);
  Operand scratch = program.reserve(call.workspaceBytes);
  LaunchOf<ConvolutionCall>(std::string(kConvolution), call)
      .read(&ConvolutionCall::a, input(0))
      .read(&ConvolutionCall::b, input(1))
      .write(&ConvolutionCall::result, output(0))
      .write(&ConvolutionCall::workspace, scratch)
      .grid(1, 1)
      .into(program);
  if (!hasBias)
    return;
  const WindowArgs &w = call.window;
  bool isTransposed = call.of == ConvolutionResult::Input;
  const Axes &plane = isTransposed ? w.in : w.out;
  BiasArgs bias{.y = nullptr,
                .bias = nullptr,
                .planes = call.n * (isTransposed ? call.c : call.m),
                .channels = isTransposed ? call.c : call.m,
                .elems = plane[0] * plane[1] * plane[2]};
  LaunchOf<BiasArgs>("add_bias" + typeSuffix(call.type), bias)
      .update(&BiasArgs::y, output(0))
      .read(&BiasArgs::bias, input(2))
      .grid(blocksFor(bias.planes * bias.elems))
      .into(program);
}

/// `of` gives the geometry; a bias may be input 2.
template <reference::Convolution (*of)(const StepSpec &), ConvolutionResult result>
std::string compileConvolution(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseType(spec.inputs[0]); !refusal.empty())
    return refusal;
  if (std::string refusal = reference::refuseConvolution(spec); !refusal.empty())
    return refusal;
  reference::Convolution conv = of(spec);
  const TensorType &to = spec.outputs[0];
  if (to.elems() == 0)
    return "";
  if (!spec.inputs[0].elems() || !spec.inputs[1].elems())
    return "an operand is empty";
  constexpr const char *kNames[] = {"conv", "conv_grad_input", "conv_grad_weight"};
  LaunchOf<ConvolutionArgs> plain(kNames[static_cast<int>(result)] + typeSuffix(to.dtype),
                                  {.window = windowArgs(conv.window),
                                   .a = nullptr,
                                   .b = nullptr,
                                   .bias = nullptr,
                                   .result = nullptr,
                                   .n = conv.n,
                                   .c = conv.c,
                                   .m = conv.m,
                                   .group = conv.group});
  plain.read(&ConvolutionArgs::a, input(0)).read(&ConvolutionArgs::b, input(1));
  bool hasBias = has(spec.inputs, 2) && (spec.op == "Conv" || spec.op == "ConvTranspose");
  if (hasBias)
    plain.read(&ConvolutionArgs::bias, input(2));
  constexpr bool isWeight = result == ConvolutionResult::Weight;
  plain.write(&ConvolutionArgs::result, output(0))
      .grid(isWeight ? std::min<int64_t>(to.elems(), 8192) : blocksFor(to.elems()),
            isWeight ? threadsToReduce(conv.n * conv.window.outElems()) : kBlockThreads);
  ConvolutionCall call{};
  call.window = windowArgs(conv.window);
  call.n = conv.n, call.c = conv.c, call.m = conv.m, call.group = conv.group;
  call.type = to.dtype, call.of = result;
  call.tf32 = spec.attrs.getInt(kTf32, 0) != 0;
  call.workspaceBytes = workspaceFor(call);
  if (std::string rule = brokenRule(call); rule.empty()) {
    callLibrary(program, call, hasBias, plain);
  } else {
    program.refusals.push_back("cudnn: " + rule);
    plain.into(program);
  }
  return "";
}

double normOf(const StepSpec &spec) { return spec.attrs.getFloat("p", static_cast<double>(spec.attrs.getInt("p", 2))); }

template <PoolKind kind> std::string compilePool(const StepSpec &spec, Program &program) {
  if (std::string refusal = refuseType(spec.inputs[0]); !refusal.empty())
    return refusal;
  if (std::string refusal = reference::refusePool(spec); !refusal.empty())
    return refusal;
  const TensorType &y = spec.outputs[0];
  if (y.elems() == 0)
    return "";
  LaunchOf<PoolArgs> launch("pool" + typeSuffix(y.dtype),
                            {.window = windowArgs(reference::poolOf(spec)),
                             .x = nullptr,
                             .y = nullptr,
                             .indices = nullptr,
                             .planes = y.dims[0] * y.dims[1],
                             .p = normOf(spec),
                             .kind = kind,
                             .countsPadding = spec.attrs.getInt("count_include_pad", 0) != 0,
                             .isColumnMajor = spec.attrs.getInt("storage_order", 0) != 0});
  launch.read(&PoolArgs::x, input(0)).write(&PoolArgs::y, output(0));
  if (has(spec.outputs, 1))
    launch.write(&PoolArgs::indices, output(1));
  launch.grid(blocksFor(y.elems())).into(program);
  return "";
}

template <PoolKind kind> std::string compileGlobalPool(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0], &y = spec.outputs[0];
  if (std::string refusal = refuseType(x); !refusal.empty())
    return refusal;
  if (x.rank() < 2)
    return "an input without channels";
  if (y.elems())
    LaunchOf<GlobalPoolArgs>(
        "global_pool" + typeSuffix(x.dtype),
        {.x = nullptr, .y = nullptr, .elems = product(x.dims, 2, x.rank()), .p = normOf(spec), .kind = kind})
        .read(&GlobalPoolArgs::x, input(0))
        .write(&GlobalPoolArgs::y, output(0))
        .grid(y.elems(), threadsToReduce(product(x.dims, 2, x.rank())))
        .into(program);
  return "";
}

template <bool isMax> std::string compilePoolGrad(const StepSpec &spec, Program &program) {
  const TensorType &dy = spec.inputs[0], &dx = spec.outputs[0];
  if (std::string refusal = refuseType(dy); !refusal.empty())
    return refusal;
  if (std::string refusal = reference::refusePool(spec); !refusal.empty())
    return refusal;
  if (dx.elems() == 0 || dy.elems() == 0)
    return dx.elems() == 0 ? "" : "the gradient is empty";
  PoolGradArgs args{.window = windowArgs(reference::poolOf(spec)),
                    .x = nullptr,
                    .dy = nullptr,
                    .winners = nullptr,
                    .dx = nullptr,
                    .planes = dx.dims[0] * dx.dims[1],
                    .countsPadding = spec.attrs.getInt("count_include_pad", 0) != 0};
  Operand winners;
  if (isMax) {
    winners = program.reserve(static_cast<size_t>(dy.elems()) * sizeof(int64_t));
    LaunchOf<PoolGradArgs>("max_pool_winners" + typeSuffix(dx.dtype), args)
        .read(&PoolGradArgs::x, input(1))
        .write(&PoolGradArgs::winners, winners)
        .grid(blocksFor(dy.elems()))
        .into(program);
  }
  LaunchOf<PoolGradArgs> launch((isMax ? "max_pool_grad" : "average_pool_grad") + typeSuffix(dx.dtype), args);
  launch.read(&PoolGradArgs::dy, input(0)).write(&PoolGradArgs::dx, output(0));
  if (isMax)
    launch.read(&PoolGradArgs::winners, winners);
  launch.grid(blocksFor(dx.elems())).into(program);
  return "";
}

/// Batch, channels and elements a channel of [N, C, d1, ...].
template <typename Args> void setLayout(Args &args, const TensorType &x) {
  args.batch = x.dims[0];
  args.channels = x.rank() > 1 ? x.dims[1] : 1;
  args.inner = product(x.dims, 2, x.rank());
}
int code(std::span<const TensorType> types, size_t i) { return has(types, i) ? static_cast<int>(types[i].dtype) : 0; }

std::string compileBatchNorm(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[0];
  if (std::string refusal = refuseType(x); !refusal.empty())
    return refusal;
  bool trains = spec.version >= 14 && spec.attrs.getInt("training_mode", 0) != 0;
  if ((!trains && (has(spec.outputs, 1) || has(spec.outputs, 2))) || x.rank() < 1)
    return "running statistics need training_mode = 1";
  if (spec.version < 9 && spec.attrs.getInt("spatial", 1) == 0)
    return "spatial = 0 is not supported";
  BatchNormArgs args{};
  setLayout(args, x);
  args.epsilon = spec.attrs.getFloat("epsilon", 1e-5);
  args.momentum = spec.attrs.getFloat("momentum", 0.9);
  args.scaleType = code(spec.inputs, 1), args.biasType = code(spec.inputs, 2);
  args.meanType = code(spec.inputs, 3), args.varianceType = code(spec.inputs, 4);
  args.newMeanType = code(spec.outputs, 1), args.newVarianceType = code(spec.outputs, 2);
  args.trains = trains;
  if (x.elems() == 0)
    return "the input is empty";
  for (size_t i = 1; i < 5; ++i)
    if (spec.inputs[i].elems() != args.channels)
      return "there are not as many parameters as channels";
  LaunchOf<BatchNormArgs> launch("batch_norm" + typeSuffix(x.dtype), args);
  launch.read(&BatchNormArgs::x, input(0))
      .read(&BatchNormArgs::scale, input(1))
      .read(&BatchNormArgs::bias, input(2))
      .read(&BatchNormArgs::mean, input(3))
      .read(&BatchNormArgs::variance, input(4))
      .write(&BatchNormArgs::y, output(0));
  if (has(spec.outputs, 1))
    launch.write(&BatchNormArgs::newMean, output(1));
  if (has(spec.outputs, 2))
    launch.write(&BatchNormArgs::newVariance, output(2));
  launch.grid(args.channels, threadsToReduce(args.batch * args.inner)).into(program);
  return "";
}

std::string compileBatchNormGrad(const StepSpec &spec, Program &program) {
  const TensorType &x = spec.inputs[1];
  if (std::string refusal = refuseType(x); !refusal.empty())
    return refusal;
  BatchNormGradArgs args{};
  setLayout(args, x);
  args.epsilon = spec.attrs.getFloat("epsilon", 1e-5);
  args.scaleType = code(spec.inputs, 2);
  args.dscaleType = code(spec.outputs, 1), args.dbiasType = code(spec.outputs, 2);
  if (x.elems() == 0 || spec.inputs[2].elems() != args.channels)
    return "the input is empty, or there are not as many parameters as channels";
  LaunchOf<BatchNormGradArgs> launch("batch_norm_grad" + typeSuffix(x.dtype), args);
  launch.read(&BatchNormGradArgs::dy, input(0))
      .read(&BatchNormGradArgs::x, input(1))
      .read(&BatchNormGradArgs::scale, input(2));
  if (has(spec.outputs, 0))
    launch.write(&BatchNormGradArgs::dx, output(0));
  if (has(spec.outputs, 1))
    launch.write(&BatchNormGradArgs::dscale, output(1));
  if (has(spec.outputs, 2))
    launch.write(&BatchNormGradArgs::dbias, output(2));
  launch.grid(args.channels, threadsToReduce(args.batch * args.inner)).into(program);
  return "";
}

} // namespace

std::span<const Row> windowRows() {
  static constexpr Row rows[] = {
      {"", "Conv", 1, kNewest, compileConvolution<reference::convOf, ConvolutionResult::Output>},
      {"", "ConvTranspose", 1, kNewest, compileConvolution<reference::convTransposeOf, ConvolutionResult::Input>},
      {"recast", "conv_grad_input", 1, 1, compileConvolution<reference::convGradInputOf, ConvolutionResult::Input>},
      {"recast", "conv_grad_weight", 1, 1, compileConvolution<reference::convGradWeightOf, ConvolutionResult::Weight>},
      {"", "MaxPool", 1, kNewest, compilePool<PoolKind::Max>},
      {"", "AveragePool", 1, kNewest, compilePool<PoolKind::Average>},
      {"", "LpPool", 1, kNewest, compilePool<PoolKind::Lp>},
      {"", "GlobalMaxPool", 1, kNewest, compileGlobalPool<PoolKind::Max>},
      {"", "GlobalAveragePool", 1, kNewest, compileGlobalPool<PoolKind::Average>},
      {"", "GlobalLpPool", 1, kNewest, compileGlobalPool<PoolKind::Lp>},
      {"recast", "max_pool_grad", 1, 1, compilePoolGrad<true>},
      {"recast", "average_pool_grad", 1, 1, compilePoolGrad<false>},
      {"", "BatchNormalization", 1, kNewest, compileBatchNorm},
      {"recast", "batch_norm_grad", 1, 1, compileBatchNormGrad},
  };
  return rows;
}

} // namespace recast::cuda
