// Pools, in ONNX's layout.
#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/reference/ConvolutionWindow.h"

namespace recast::onednn {
namespace {

using Dims = dnnl::memory::dims;
using reference::Window;

struct Problem {
  dnnl::algorithm algorithm;
  Dims strides, kernel, dilations, padBegin, padEnd;
};

Problem problemOf(const StepSpec &spec, const Window &win, dnnl::algorithm algorithm) {
  Problem p{algorithm, {}, {}, {}, {}, {}};
  for (int d = reference::kSpatialAxes - win.rank; d < reference::kSpatialAxes; ++d) {
    int64_t read = (win.out[d] - 1) * win.stride[d] + (win.kernel[d] - 1) * win.dilation[d] + 1;
    int64_t padEnd = read - win.in[d] - win.padBegin[d];
    // With ceil_mode the last window passes the padding's end; an average must not count what lies beyond.
    if (algorithm == dnnl::algorithm::pooling_avg_include_padding && padEnd > win.padEnd[d])
      throw Refusal{"an average over padding with a window that passes its end"};
    p.strides.push_back(win.stride[d]);
    p.kernel.push_back(win.kernel[d]);
    p.dilations.push_back(win.dilation[d] - 1);
    p.padBegin.push_back(win.padBegin[d]);
    p.padEnd.push_back(padEnd);
  }
  return p;
}

dnnl::algorithm averageAlgorithm(const StepSpec &spec) {
  return spec.attrs.getInt("count_include_pad", 0) ? dnnl::algorithm::pooling_avg_include_padding
                                                   : dnnl::algorithm::pooling_avg_exclude_padding;
}

dnnl::pooling_forward::primitive_desc forward(const Problem &p, const dnnl::memory::desc &x,
                                              const dnnl::memory::desc &y, dnnl::prop_kind kind) {
  return {engine(), kind, p.algorithm, x, y, p.strides, p.kernel, p.dilations, p.padBegin, p.padEnd, attributes()};
}

Window globalWindow(const StepSpec &spec) {
  auto in = std::span<const int64_t>(spec.inputs[0].dims).subspan(2);
  return reference::windowOf({}, in, std::span<const int64_t>(spec.outputs[0].dims).subspan(2), in);
}

} // namespace

std::unique_ptr<Kernel> makePool(const StepSpec &spec) {
  if (spec.outputs.size() > 1 && spec.outputs[1].present())
    throw Refusal{"the output Indices"};
  int64_t rank = spec.inputs[0].rank();
  if (rank < 3 || rank > 5)
    throw Refusal{std::to_string(rank - 2) + " spatial axes are not supported"};
  auto x = plain(spec.inputs[0].dims, spec.inputs[0].dtype), y = plain(spec.outputs[0].dims, spec.outputs[0].dtype);
  Window win = spec.op == "GlobalAveragePool" ? globalWindow(spec) : reference::poolOf(spec);
  Problem p = problemOf(spec, win, spec.op == "MaxPool" ? dnnl::algorithm::pooling_max : averageAlgorithm(spec));
  auto descriptor = forward(p, x, y, dnnl::prop_kind::forward_inference);
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  program->add(dnnl::pooling_forward(descriptor), {{DNNL_ARG_SRC, {input(0), x}}, {DNNL_ARG_DST, {output(0), y}}});
  return program;
}

std::unique_ptr<Kernel> makeAveragePoolGrad(const StepSpec &spec) {
  auto dy = plain(spec.inputs[0].dims, spec.inputs[0].dtype), dx = plain(spec.outputs[0].dims, spec.outputs[0].dtype);
  Problem p = problemOf(spec, reference::poolOf(spec), averageAlgorithm(spec));
  dnnl::pooling_backward::primitive_desc descriptor(
      engine(), p.algorithm, dx, dy, p.strides, p.kernel, p.dilations, p.padBegin, p.padEnd,
      forward(p, dx, dy, dnnl::prop_kind::forward_training), attributes());
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  program->add(dnnl::pooling_backward(descriptor),
               {{DNNL_ARG_DIFF_DST, {input(0), dy}}, {DNNL_ARG_DIFF_SRC, {output(0), dx}}});
  return program;
}

} // namespace recast::onednn
