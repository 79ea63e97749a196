// The geometry that convolutions and pools share: a window that slides over up to three spatial axes.
#pragma once
#include "runtime/reference/Reference.h"
#include <array>

namespace recast::reference {

inline constexpr int kSpatialAxes = 3;
using Spatial = std::array<int64_t, kSpatialAxes>;

/// Output position o reads input positions o * stride - padBegin + k * dilation, 0 <= k < kernel, along each axis.
/// Tensors of fewer spatial axes have leading axes of size 1.
struct Window {
  Spatial in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1};
  Spatial padBegin{}, padEnd{};
  int rank = 0; ///< Spatial axes that are really there: the last `rank` ones.

  int64_t inElems() const { return in[0] * in[1] * in[2]; }
  int64_t outElems() const { return out[0] * out[1] * out[2]; }
  int64_t kernelElems() const { return kernel[0] * kernel[1] * kernel[2]; }
};

/// A convolution x[n,c,in] * w[m,c/group,kernel] -> y[n,m,out]. A transposed one is the same with x and y swapped.
struct Convolution {
  Window window;
  int64_t n = 0, c = 0, m = 0, group = 1;
};

/// The window of a convolution or pool step: strides, dilations, pads and auto_pad from its attributes.
Window windowOf(const Attributes &attrs, std::span<const int64_t> in, std::span<const int64_t> out,
                std::span<const int64_t> kernel);

// Of the steps with these operators; preconditions: their refusal below is "".
Convolution convOf(const StepSpec &spec);
Convolution convTransposeOf(const StepSpec &spec);
Convolution convGradInputOf(const StepSpec &spec);
Convolution convGradWeightOf(const StepSpec &spec);
/// MaxPool, AveragePool, LpPool; also recast's max_pool_grad and average_pool_grad (from dy to dx).
Window poolOf(const StepSpec &spec);

/// Reasons to refuse a step, "" where there is none.
std::string refuseConvolution(const StepSpec &spec);
std::string refusePool(const StepSpec &spec);

// Pool.cpp and ConvolutionResize.cpp: rows of convolutionEntries().
Status runMaxPool(const StepSpec &spec, const KernelArgs &args);
Status runAveragePool(const StepSpec &spec, const KernelArgs &args);
Status runLpPool(const StepSpec &spec, const KernelArgs &args);
Status runGlobalPool(const StepSpec &spec, const KernelArgs &args);
Status runMaxPoolGrad(const StepSpec &spec, const KernelArgs &args);
size_t maxPoolGradWorkspaceBytes(const StepSpec &spec);
Status runAveragePoolGrad(const StepSpec &spec, const KernelArgs &args);
std::string refuseGlobalPool(const StepSpec &spec);
Status runResize(const StepSpec &spec, const KernelArgs &args);
size_t resizeWorkspaceBytes(const StepSpec &spec);
std::string refuseResize(const StepSpec &spec);

} // namespace recast::reference
