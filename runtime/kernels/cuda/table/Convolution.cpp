#include "runtime/kernels/cuda/table/Convolution.h"
#include <algorithm>
#include <climits>

namespace recast::cuda {
namespace {

constexpr size_t kSmallWorkspace = size_t(1) << 20, kLargeWorkspace = size_t(32) << 20;
constexpr int64_t kManyProducts = int64_t(1) << 24;

int64_t elemsOf(const Axes &axes) { return axes[0] * axes[1] * axes[2]; }
bool isAligned(const void *address, size_t bytes) { return reinterpret_cast<uintptr_t>(address) % bytes == 0; }

/// cudnnGetConvolutionNdForwardOutputDim():
/// outputDim = 1 + (inputDim + 2 pad - (((filterDim - 1) dilation) + 1)) / convolutionStride.
int64_t outputDim(const WindowArgs &w, int axis) {
  int64_t room = w.in[axis] + 2 * w.padBegin[axis] - ((w.kernel[axis] - 1) * w.dilation[axis] + 1);
  return room < 0 ? 0 : 1 + room / w.stride[axis];
}

/// cudnnSetConvolutionNdDescriptor(): pads are no less than 0, strides and dilations greater than 0. Of the output,
/// cudnnConvolutionForward() wants the dimensions above.
std::string brokenWindowRule(const WindowArgs &w) {
  for (int axis = 0; axis < 3; ++axis) {
    if (w.in[axis] < 1 || w.out[axis] < 1 || w.kernel[axis] < 1)
      return "a dimension is less than 1";
    if (w.stride[axis] < 1 || w.dilation[axis] < 1)
      return "a stride or dilation is less than 1";
    if (w.padBegin[axis] < 0)
      return "padding is less than 0";
    if (int64_t wanted = outputDim(w, axis); w.out[axis] != wanted)
      return "it pads both ends of an axis alike: padded by " + std::to_string(w.padBegin[axis]) + ", " +
             std::to_string(w.in[axis]) + " elements have " + std::to_string(wanted) + " outputs, and not " +
             std::to_string(w.out[axis]);
  }
  return "";
}

} // namespace

int spatialAxes(const WindowArgs &w) {
  return w.in[0] == 1 && w.kernel[0] == 1 && w.out[0] == 1 && w.padBegin[0] == 0 ? 2 : 3;
}

ConvolutionDims dimsOf(const ConvolutionCall &call) {
  auto dims = [&](int64_t outer, int64_t channels, const Axes &spatial) {
    std::vector<int> all = {static_cast<int>(outer), static_cast<int>(channels)};
    for (int axis = 3 - spatialAxes(call.window); axis < 3; ++axis)
      all.push_back(static_cast<int>(spatial[axis]));
    return all;
  };
  return {dims(call.n, call.c, call.window.in), dims(call.m, call.c / call.group, call.window.kernel),
          dims(call.n, call.m, call.window.out)};
}

size_t bytesOf(const std::vector<int> &dims, DType type) {
  size_t bytes = byteSize(type);
  for (int dim : dims)
    bytes *= static_cast<size_t>(dim);
  return bytes;
}

size_t workspaceFor(const ConvolutionCall &call) {
  const WindowArgs &w = call.window;
  int64_t channels = call.c / call.group;
  // In floating point: nothing overflows, and near the bound either answer will do.
  double products =
      static_cast<double>(call.n * call.m * elemsOf(w.out)) * static_cast<double>(channels * elemsOf(w.kernel));
  size_t bytes = products < static_cast<double>(kManyProducts) ? kSmallWorkspace : kLargeWorkspace;
  if (call.type == DType::F32 && !call.tf32)
    return bytes;
  auto copy = [&](int64_t outer, int64_t channels, const Axes &spatial) {
    return static_cast<size_t>(outer * ((channels + 7) / 8 * 8) * elemsOf(spatial)) * byteSize(call.type);
  };
  return bytes + copy(call.n, call.c, w.in) + copy(call.m, channels, w.kernel) + copy(call.n, call.m, w.out);
}

std::string brokenRule(const ConvolutionCall &call) {
  // cudnnConvolutionForward(), "Supported configurations": those with sums in f32.
  if (call.type != DType::F32 && call.type != DType::F16 && call.type != DType::BF16)
    return "tensors of " + std::string(name(call.type));
  if (call.tf32 && call.type != DType::F32)
    return "tf32 products of " + std::string(name(call.type));
  if (call.n < 1 || call.c < 1 || call.m < 1 || call.group < 1)
    return "a dimension is less than 1";
  // cudnnSetConvolutionGroupCount().
  if (call.c % call.group || call.m % call.group)
    return std::to_string(call.group) + " groups do not divide " + std::to_string(call.c) + " and " +
           std::to_string(call.m) + " channels";
  if (std::string rule = brokenWindowRule(call.window); !rule.empty())
    return rule;
  // cudnnSetTensorNdDescriptor(): no more than 2 Giga-elements.
  for (double elems : {double(call.n) * double(call.c) * double(elemsOf(call.window.in)),
                       double(call.m) * double(call.c / call.group) * double(elemsOf(call.window.kernel)),
                       double(call.n) * double(call.m) * double(elemsOf(call.window.out))})
    if (elems > INT_MAX)
      return "a tensor of more than 2^31 - 1 elements";
  for (int axis = 0; axis < 3; ++axis)
    for (int64_t value : {call.window.stride[axis], call.window.dilation[axis], call.window.padBegin[axis]})
      if (value > INT_MAX)
        return "a stride, dilation or padding of more than 2^31 - 1";
  // "Tensor Core Operations": operands of tensor cores are aligned to 128 bits.
  for (const void *address : {call.a, call.b, static_cast<const void *>(call.result)})
    if (!isAligned(address, 16))
      return "an operand is not aligned to 16 bytes";
  if (call.workspaceBytes && !isAligned(call.workspace, 16))
    return "the workspace is not aligned to 16 bytes";
  return "";
}

} // namespace recast::cuda
