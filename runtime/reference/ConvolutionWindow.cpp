#include "runtime/reference/ConvolutionWindow.h"
#include "runtime/reference/Loops.h"

namespace recast::reference {
namespace {

/// list[i], or the fallback where the attribute is absent.
int64_t at(std::span<const int64_t> list, size_t i, int64_t fallback) { return i < list.size() ? list[i] : fallback; }

std::span<const int64_t> spatial(const TensorType &type) { return std::span<const int64_t>(type.dims).subspan(2); }

std::string checkWindow(const Window &w) {
  for (int d = 0; d < kSpatialAxes; ++d)
    if (w.stride[d] < 1 || w.dilation[d] < 1 || w.kernel[d] < 1)
      return "strides, dilations and kernel sizes below 1";
  return "";
}

std::string checkRank(const TensorType &type) {
  return type.rank() < 3 || type.rank() > 2 + kSpatialAxes
             ? std::to_string(type.rank() - 2) + " spatial axes are not supported (1 to 3 are)"
             : "";
}

std::string checkTypes(const StepSpec &spec) {
  DType type = spec.inputs[0].dtype;
  if (!isFloat(type))
    return std::string(name(type)) + " is not supported";
  for (const TensorType &input : spec.inputs)
    if (input.present() && input.dtype != type)
      return "operands of different types";
  return "";
}

} // namespace

Window windowOf(const Attributes &attrs, std::span<const int64_t> in, std::span<const int64_t> out,
                std::span<const int64_t> kernel) {
  Window w;
  size_t rank = in.size();
  w.rank = static_cast<int>(rank);
  auto strides = attrs.intsView("strides"), dilations = attrs.intsView("dilations"), pads = attrs.intsView("pads");
  std::string_view autoPad = attrs.stringView("auto_pad", "NOTSET");
  bool same = autoPad == "SAME_UPPER" || autoPad == "SAME_LOWER";
  for (size_t i = 0; i < rank; ++i) {
    size_t d = kSpatialAxes - rank + i;
    w.in[d] = in[i], w.out[d] = out[i], w.kernel[d] = kernel[i];
    w.stride[d] = at(strides, i, 1), w.dilation[d] = at(dilations, i, 1);
    if (same) {
      int64_t total = (out[i] - 1) * w.stride[d] + (kernel[i] - 1) * w.dilation[d] + 1 - in[i];
      total = std::max<int64_t>(total, 0);
      w.padBegin[d] = autoPad == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.padEnd[d] = total - w.padBegin[d];
    } else if (autoPad != "VALID") {
      w.padBegin[d] = at(pads, i, 0), w.padEnd[d] = at(pads, i + rank, 0);
    }
  }
  return w;
}

Convolution convOf(const StepSpec &spec) {
  const TensorType &x = spec.inputs[0], &w = spec.inputs[1], &y = spec.outputs[0];
  return {windowOf(spec.attrs, spatial(x), spatial(y), spatial(w)), x.dims[0], x.dims[1], w.dims[0],
          spec.attrs.getInt("group", 1)};
}

Convolution convTransposeOf(const StepSpec &spec) {
  const TensorType &x = spec.inputs[0], &w = spec.inputs[1], &y = spec.outputs[0];
  Convolution conv{windowOf(spec.attrs, spatial(y), spatial(x), spatial(w)), x.dims[0], y.dims[1], x.dims[1],
                   spec.attrs.getInt("group", 1)};
  std::string_view autoPad = spec.attrs.stringView("auto_pad", "NOTSET");
  bool same = autoPad == "SAME_UPPER" || autoPad == "SAME_LOWER";
  if (spec.attrs.intsView("output_shape").empty() && !same)
    return conv;
  // The operator's text: total = stride (in - 1) + output_padding + ((kernel - 1) dilation + 1) - output_shape, of
  // which SAME_UPPER puts the smaller half at the beginning and every other mode the larger one.
  auto outputPadding = spec.attrs.intsView("output_padding");
  Window &win = conv.window;
  for (int i = 0; i < win.rank; ++i) {
    int d = kSpatialAxes - win.rank + i;
    int64_t total = win.stride[d] * (win.out[d] - 1) + at(outputPadding, static_cast<size_t>(i), 0) +
                    (win.kernel[d] - 1) * win.dilation[d] + 1 - win.in[d];
    total = std::max<int64_t>(total, 0);
    win.padBegin[d] = autoPad == "SAME_UPPER" ? total / 2 : total - total / 2;
    win.padEnd[d] = total - win.padBegin[d];
  }
  return conv;
}

Convolution convGradInputOf(const StepSpec &spec) {
  const TensorType &dy = spec.inputs[0], &w = spec.inputs[1], &dx = spec.outputs[0];
  return {windowOf(spec.attrs, spatial(dx), spatial(dy), spatial(w)), dy.dims[0], dx.dims[1], dy.dims[1],
          spec.attrs.getInt("group", 1)};
}

Convolution convGradWeightOf(const StepSpec &spec) {
  const TensorType &x = spec.inputs[0], &dy = spec.inputs[1], &dw = spec.outputs[0];
  return {windowOf(spec.attrs, spatial(x), spatial(dy), spatial(dw)), x.dims[0], x.dims[1], dy.dims[1],
          spec.attrs.getInt("group", 1)};
}

Window poolOf(const StepSpec &spec) {
  bool gradient = spec.domain == "recast";
  const TensorType &in = gradient ? spec.outputs[0] : spec.inputs[0];
  const TensorType &out = gradient ? spec.inputs[0] : spec.outputs[0];
  return windowOf(spec.attrs, spatial(in), spatial(out), spec.attrs.intsView("kernel_shape"));
}

std::string refuseConvolution(const StepSpec &spec) {
  if (std::string why = checkTypes(spec); !why.empty())
    return why;
  if (std::string why = checkRank(spec.inputs[0]); !why.empty())
    return why;
  Convolution conv = spec.op == "Conv"              ? convOf(spec)
                     : spec.op == "ConvTranspose"   ? convTransposeOf(spec)
                     : spec.op == "conv_grad_input" ? convGradInputOf(spec)
                                                    : convGradWeightOf(spec);
  if (conv.group < 1 || conv.c % conv.group || conv.m % conv.group)
    return "group does not divide the channels";
  return checkWindow(conv.window);
}

std::string refusePool(const StepSpec &spec) {
  DType type = spec.inputs[0].dtype;
  bool smallInteger = spec.op == "MaxPool" && (type == DType::I8 || type == DType::U8);
  if (!isFloat(type) && !smallInteger)
    return std::string(name(type)) + " is not supported";
  if (std::string why = checkRank(spec.inputs[0]); !why.empty())
    return why;
  if (static_cast<int64_t>(spec.attrs.intsView("kernel_shape").size()) != spec.inputs[0].rank() - 2)
    return "kernel_shape does not fit the spatial axes";
  return checkWindow(poolOf(spec));
}

} // namespace recast::reference
