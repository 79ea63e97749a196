// Pools, in ONNX's layout.
#include "runtime/kernels/Parallel.h"
#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/reference/ConvolutionWindow.h"
#include <atomic>

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

Window windowOf(const StepSpec &spec) {
  if (spec.op == "GlobalAveragePool") {
    if (spec.inputs[0].rank() < 3 || spec.inputs[0].rank() > 2 + reference::kSpatialAxes)
      throw Refusal{"1 to 3 spatial axes are supported"};
    auto in = std::span<const int64_t>(spec.inputs[0].dims).subspan(2);
    return reference::windowOf({}, in, std::span<const int64_t>(spec.outputs[0].dims).subspan(2), in);
  }
  if (std::string why = reference::refusePool(spec); !why.empty())
    throw Refusal{why};
  return reference::poolOf(spec);
}

dnnl::memory::desc descOf(const TensorType &type) { return plain(type.dims, type.dtype); }

/// True if a float tensor of 2 or 4 bytes an element has a NaN: an integer comparison, which vectorises.
template <typename Unit> bool hasNaN(const Unit *x, int64_t count, Unit infinity) {
  constexpr Unit kMagnitude = static_cast<Unit>(~Unit(0)) >> 1;
  std::atomic<bool> found = false;
  parallelFor(count, 65536, [&](int64_t begin, int64_t end) {
    bool any = false;
    for (int64_t i = begin; i < end; ++i)
      any |= static_cast<Unit>(x[i] & kMagnitude) > infinity;
    if (any)
      found.store(true, std::memory_order_relaxed);
  });
  return found;
}

bool hasNaN(const TensorRef &x) {
  if (x.dtype == DType::F32)
    return hasNaN<uint32_t>(x.as<uint32_t>(), x.elems(), 0x7f800000);
  return hasNaN<uint16_t>(x.as<uint16_t>(), x.elems(), x.dtype == DType::BF16 ? 0x7f80 : 0x7c00);
}

/// oneDNN's maximum drops NaN, which must reach the loss and the overflow check: then the reference evaluator runs.
class MaxPool : public Kernel {
public:
  MaxPool(const StepSpec &spec, std::unique_ptr<Program> program) : spec(spec), program(std::move(program)) {}
  size_t workspaceBytes() const override { return program->workspaceBytes(); }
  bool mayFail() const override { return false; }
  Status run(const KernelArgs &args) override {
    return hasNaN(args.inputs[0]) ? reference::runMaxPool(spec, args) : program->run(args);
  }

private:
  StepSpec spec;
  std::unique_ptr<Program> program;
};

std::unique_ptr<Program> makeForward(const StepSpec &spec, dnnl::algorithm algorithm) {
  commonType(spec);
  auto x = descOf(spec.inputs[0]), y = descOf(spec.outputs[0]);
  auto descriptor = forward(problemOf(spec, windowOf(spec), algorithm), x, y, dnnl::prop_kind::forward_inference);
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  program->add(dnnl::pooling_forward(descriptor), {{DNNL_ARG_SRC, {input(0), x}}, {DNNL_ARG_DST, {output(0), y}}});
  return program;
}

} // namespace

std::unique_ptr<Kernel> makeMaxPool(const StepSpec &spec) {
  if (spec.outputs.size() > 1 && spec.outputs[1].present())
    throw Refusal{"the output Indices"};
  return std::make_unique<MaxPool>(spec, makeForward(spec, dnnl::algorithm::pooling_max));
}

std::unique_ptr<Kernel> makeAveragePool(const StepSpec &spec) { return makeForward(spec, averageAlgorithm(spec)); }

std::unique_ptr<Kernel> makeMaxPoolGrad(const StepSpec &spec) {
  commonType(spec);
  auto dy = descOf(spec.inputs[0]), x = descOf(spec.inputs[1]);
  Problem p = problemOf(spec, windowOf(spec), dnnl::algorithm::pooling_max);
  // The maxima's places come from the forward direction, which is cheap to repeat.
  auto places = forward(p, x, dy, dnnl::prop_kind::forward_training);
  dnnl::pooling_backward::primitive_desc descriptor(engine(), p.algorithm, x, dy, p.strides, p.kernel, p.dilations,
                                                    p.padBegin, p.padEnd, places, attributes());
  requireOptimised(places);
  requireOptimised(descriptor);
  auto program = std::make_unique<Program>(spec);
  Operand y = program->temporary(dy), workspace = program->temporary(places.workspace_desc());
  program->add(dnnl::pooling_forward(places),
               {{DNNL_ARG_SRC, {input(1), x}}, {DNNL_ARG_DST, y}, {DNNL_ARG_WORKSPACE, workspace}});
  program->add(
      dnnl::pooling_backward(descriptor),
      {{DNNL_ARG_DIFF_DST, {input(0), dy}}, {DNNL_ARG_DIFF_SRC, {output(0), x}}, {DNNL_ARG_WORKSPACE, workspace}});
  return program;
}

std::unique_ptr<Kernel> makeAveragePoolGrad(const StepSpec &spec) {
  commonType(spec);
  auto dy = descOf(spec.inputs[0]), dx = descOf(spec.outputs[0]);
  Problem p = problemOf(spec, windowOf(spec), averageAlgorithm(spec));
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
