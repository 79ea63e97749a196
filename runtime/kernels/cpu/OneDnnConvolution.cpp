// Convolutions and their gradients. oneDNN chooses the inner layouts; tensors are reordered in the workspace.
#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/reference/ConvolutionWindow.h"

namespace recast::onednn {
namespace {

using Dims = dnnl::memory::dims;
using reference::Convolution;
using reference::Window;

/// A convolution in oneDNN's terms; x and y are those of the forward direction.
struct Problem {
  Dims x, w, y, strides, dilations, padBegin, padEnd;
  DType type;
};

Problem problemOf(const StepSpec &spec, const Convolution &conv) {
  const Window &win = conv.window;
  Problem p;
  p.type = spec.outputs[0].dtype;
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != p.type)
      throw Refusal{"operands of different types"};
  p.x = {conv.n, conv.c};
  p.y = {conv.n, conv.m};
  p.w = conv.group == 1 ? Dims{conv.m, conv.c} : Dims{conv.group, conv.m / conv.group, conv.c / conv.group};
  for (int d = reference::kSpatialAxes - win.rank; d < reference::kSpatialAxes; ++d) {
    p.x.push_back(win.in[d]);
    p.y.push_back(win.out[d]);
    p.w.push_back(win.kernel[d]);
    p.strides.push_back(win.stride[d]);
    p.dilations.push_back(win.dilation[d] - 1);
    p.padBegin.push_back(win.padBegin[d]);
    // The end of the padding follows from the sizes: what stays unread there does not matter.
    int64_t read = (win.out[d] - 1) * win.stride[d] + (win.kernel[d] - 1) * win.dilation[d] + 1;
    p.padEnd.push_back(read - win.in[d] - win.padBegin[d]);
  }
  return p;
}

dnnl::convolution_forward::primitive_desc forward(const Problem &p, bool bias) {
  auto x = anyLayout(p.x, p.type), w = anyLayout(p.w, p.type), y = anyLayout(p.y, p.type);
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  if (!bias)
    return {engine(), kKind, kAlgorithm, x, w, y, p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
  auto b = plain(std::array{p.y[1]}, p.type);
  return {engine(), kKind, kAlgorithm, x, w, b, y, p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
}

} // namespace

std::unique_ptr<Kernel> makeConv(const StepSpec &spec) {
  Problem p = problemOf(spec, reference::convOf(spec));
  bool hasBias = spec.inputs.size() > 2 && spec.inputs[2].present();
  auto descriptor = forward(p, hasBias);
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand x = program->inLayout({input(0), plain(p.x, p.type)}, descriptor.src_desc());
  Operand w = program->inLayout({input(1), plain(p.w, p.type)}, descriptor.weights_desc());
  Operand to{output(0), plain(p.y, p.type)};
  Operand y = to.desc == descriptor.dst_desc() ? to : program->temporary(descriptor.dst_desc());
  std::vector<std::pair<int, Operand>> arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (hasBias)
    arguments.push_back({DNNL_ARG_BIAS, {input(2), descriptor.bias_desc()}});
  program->add(dnnl::convolution_forward(descriptor), std::move(arguments));
  program->copy(y, to);
  return program;
}

std::unique_ptr<Kernel> makeConvTranspose(const StepSpec &spec) {
  // The operator's x and y are y and x of the convolution that it transposes; oneDNN wants the output channels of w
  // first, which is a matter of strides.
  Problem p = problemOf(spec, reference::convTransposeOf(spec));
  Dims w = p.w, strides = plain(p.w, p.type).get_strides();
  size_t outer = p.w.size() - p.strides.size() - 2;
  std::swap(w[outer], w[outer + 1]);
  std::swap(strides[outer], strides[outer + 1]);
  bool hasBias = spec.inputs.size() > 2 && spec.inputs[2].present();
  auto any = [&](const Dims &dims) { return anyLayout(dims, p.type); };
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::deconvolution_direct;
  dnnl::deconvolution_forward::primitive_desc descriptor;
  if (hasBias)
    descriptor = {engine(), kKind,     kAlgorithm,  any(p.y),   any(w),   plain(std::array{p.x[1]}, p.type),
                  any(p.x), p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
  else
    descriptor = {engine(),  kKind,       kAlgorithm, any(p.y), any(w),      any(p.x),
                  p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand from = program->inLayout({input(0), plain(p.y, p.type)}, descriptor.src_desc());
  Operand weights = program->inLayout({input(1), {w, dataType(p.type), strides}}, descriptor.weights_desc());
  Operand to{output(0), plain(p.x, p.type)};
  Operand y = to.desc == descriptor.dst_desc() ? to : program->temporary(descriptor.dst_desc());
  std::vector<std::pair<int, Operand>> arguments = {
      {DNNL_ARG_SRC, from}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}};
  if (hasBias)
    arguments.push_back({DNNL_ARG_BIAS, {input(2), descriptor.bias_desc()}});
  program->add(dnnl::deconvolution_forward(descriptor), std::move(arguments));
  program->copy(y, to);
  return program;
}

std::unique_ptr<Kernel> makeConvGradInput(const StepSpec &spec) {
  Problem p = problemOf(spec, reference::convGradInputOf(spec));
  dnnl::convolution_backward_data::primitive_desc descriptor(
      engine(), dnnl::algorithm::convolution_direct, anyLayout(p.x, p.type), anyLayout(p.w, p.type),
      anyLayout(p.y, p.type), p.strides, p.dilations, p.padBegin, p.padEnd, forward(p, false), attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand dy = program->inLayout({input(0), plain(p.y, p.type)}, descriptor.diff_dst_desc());
  Operand w = program->inLayout({input(1), plain(p.w, p.type)}, descriptor.weights_desc());
  Operand to{output(0), plain(p.x, p.type)};
  Operand dx = to.desc == descriptor.diff_src_desc() ? to : program->temporary(descriptor.diff_src_desc());
  program->add(dnnl::convolution_backward_data(descriptor),
               {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}});
  program->copy(dx, to);
  return program;
}

std::unique_ptr<Kernel> makeConvGradWeight(const StepSpec &spec) {
  Problem p = problemOf(spec, reference::convGradWeightOf(spec));
  dnnl::convolution_backward_weights::primitive_desc descriptor(
      engine(), dnnl::algorithm::convolution_direct, anyLayout(p.x, p.type), anyLayout(p.w, p.type),
      anyLayout(p.y, p.type), p.strides, p.dilations, p.padBegin, p.padEnd, forward(p, false), attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand x = program->inLayout({input(0), plain(p.x, p.type)}, descriptor.src_desc());
  Operand dy = program->inLayout({input(1), plain(p.y, p.type)}, descriptor.diff_dst_desc());
  Operand to{output(0), plain(p.w, p.type)};
  Operand dw = to.desc == descriptor.diff_weights_desc() ? to : program->temporary(descriptor.diff_weights_desc());
  program->add(dnnl::convolution_backward_weights(descriptor),
               {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw}});
  program->copy(dw, to);
  return program;
}

} // namespace recast::onednn
