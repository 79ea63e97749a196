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

Problem problemOf(const Convolution &conv, DType type) {
  const Window &win = conv.window;
  Problem p;
  p.type = type;
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

bool hasBias(const StepSpec &spec) { return spec.inputs.size() > 2 && spec.inputs[2].present(); }

std::unique_ptr<Kernel> conv(const StepSpec &spec, const Problem &p) {
  auto descriptor = forward(p, hasBias(spec));
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand x = program->inLayout(program->load(0, p.x, p.type), descriptor.src_desc());
  Operand w = program->inLayout(program->load(1, p.w, p.type), descriptor.weights_desc());
  Operand y = program->target(descriptor.dst_desc(), p.y);
  std::vector<std::pair<int, Operand>> arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}};
  if (hasBias(spec))
    arguments.push_back({DNNL_ARG_BIAS, program->load(2, std::array{p.y[1]}, p.type)});
  program->add(dnnl::convolution_forward(descriptor), std::move(arguments));
  program->store(y, p.y);
  return program;
}

/// The operator's x and y are y and x of the convolution that it transposes; oneDNN wants the output channels of w
/// first, which is a matter of strides.
std::unique_ptr<Kernel> convTranspose(const StepSpec &spec, const Problem &p) {
  Dims w = p.w, strides = plain(p.w, p.type).get_strides();
  size_t outer = p.w.size() - p.strides.size() - 2;
  std::swap(w[outer], w[outer + 1]);
  std::swap(strides[outer], strides[outer + 1]);
  // oneDNN adds a 16-bit bias slowly, and to sums that it has rounded already: we add it to f32 sums.
  bool biasInside = hasBias(spec) && p.type == DType::F32, biasAfter = hasBias(spec) && !biasInside;
  auto xAny = anyLayout(p.y, p.type), wAny = anyLayout(w, p.type);
  auto yAny = anyLayout(p.x, biasAfter ? DType::F32 : p.type);
  constexpr auto kKind = dnnl::prop_kind::forward_training;
  constexpr auto kAlgorithm = dnnl::algorithm::deconvolution_direct;
  dnnl::deconvolution_forward::primitive_desc descriptor;
  if (biasInside)
    descriptor = {engine(), kKind,     kAlgorithm,  xAny,       wAny,     plain(std::array{p.x[1]}, p.type),
                  yAny,     p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
  else
    descriptor = {engine(),  kKind,       kAlgorithm, xAny,     wAny,        yAny,
                  p.strides, p.dilations, p.padBegin, p.padEnd, attributes()};
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand x = program->inLayout(program->load(0, p.y, p.type), descriptor.src_desc());
  Operand weights = program->load(1, p.w, p.type);
  weights.desc = {w, dataType(p.type), strides};
  weights = program->inLayout(weights, descriptor.weights_desc());
  Operand y = program->target(descriptor.dst_desc(), p.x);
  std::vector<std::pair<int, Operand>> arguments = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, y}};
  if (biasInside)
    arguments.push_back({DNNL_ARG_BIAS, program->load(2, std::array{p.x[1]}, p.type)});
  program->add(dnnl::deconvolution_forward(descriptor), std::move(arguments));
  program->store(y, p.x, biasAfter ? 2 : -1);
  return program;
}

std::unique_ptr<Kernel> convGradInput(const StepSpec &spec, const Problem &p) {
  dnnl::convolution_backward_data::primitive_desc descriptor(
      engine(), dnnl::algorithm::convolution_direct, anyLayout(p.x, p.type), anyLayout(p.w, p.type),
      anyLayout(p.y, p.type), p.strides, p.dilations, p.padBegin, p.padEnd, forward(p, false), attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand dy = program->inLayout(program->load(0, p.y, p.type), descriptor.diff_dst_desc());
  Operand w = program->inLayout(program->load(1, p.w, p.type), descriptor.weights_desc());
  Operand dx = program->target(descriptor.diff_src_desc(), p.x);
  program->add(dnnl::convolution_backward_data(descriptor),
               {{DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DIFF_SRC, dx}});
  program->store(dx, p.x);
  return program;
}

std::unique_ptr<Kernel> convGradWeight(const StepSpec &spec, const Problem &p) {
  dnnl::convolution_backward_weights::primitive_desc descriptor(
      engine(), dnnl::algorithm::convolution_direct, anyLayout(p.x, p.type), anyLayout(p.w, p.type),
      anyLayout(p.y, p.type), p.strides, p.dilations, p.padBegin, p.padEnd, forward(p, false), attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand x = program->inLayout(program->load(0, p.x, p.type), descriptor.src_desc());
  Operand dy = program->inLayout(program->load(1, p.y, p.type), descriptor.diff_dst_desc());
  Operand dw = program->target(descriptor.diff_weights_desc(), p.w);
  program->add(dnnl::convolution_backward_weights(descriptor),
               {{DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_WEIGHTS, dw}});
  program->store(dw, p.w);
  return program;
}

/// `shapes` reads the step, `make` builds it in one element type.
std::unique_ptr<Kernel> makeConvolution(const StepSpec &spec, Convolution (*shapes)(const StepSpec &),
                                        std::unique_ptr<Kernel> (*make)(const StepSpec &, const Problem &)) {
  if (std::string why = reference::refuseConvolution(spec); !why.empty())
    throw Refusal{why};
  Convolution convolution = shapes(spec);
  return preferOwnType(spec, [&](DType type) { return make(spec, problemOf(convolution, type)); });
}

} // namespace

std::unique_ptr<Kernel> makeConv(const StepSpec &spec) { return makeConvolution(spec, reference::convOf, conv); }
std::unique_ptr<Kernel> makeConvTranspose(const StepSpec &spec) {
  return makeConvolution(spec, reference::convTransposeOf, convTranspose);
}
std::unique_ptr<Kernel> makeConvGradInput(const StepSpec &spec) {
  return makeConvolution(spec, reference::convGradInputOf, convGradInput);
}
std::unique_ptr<Kernel> makeConvGradWeight(const StepSpec &spec) {
  return makeConvolution(spec, reference::convGradWeightOf, convGradWeight);
}

} // namespace recast::onednn
