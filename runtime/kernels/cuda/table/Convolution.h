// Convolutions and their gradients, which cuDNN runs: what a call is, and the library's rules. A convolution is a
// launch of the kernel kConvolution whose arguments are a ConvolutionCall.
#pragma once
#include "runtime/kernels/cuda/source/Window.h"
#include "runtime/plan/DType.h"
#include <string>
#include <vector>

namespace recast::cuda {

inline constexpr std::string_view kConvolution = "cudnn.convolution";

/// What a call computes of y[n,m,out] = conv(x[n,c,in], w[m,c/group,kernel]).
enum class ConvolutionResult : int {
  Output, ///< y from x and w.
  Input,  ///< The gradient of x from that of y and w; also a transposed convolution of y.
  Weight, ///< The gradient of w from x and that of y.
};

/// All tensors are dense and of one type; sums are f32. The library pads both ends of an axis by window.padBegin.
struct ConvolutionCall {
  const void *a, *b; ///< What is multiplied, in the order above.
  void *result, *workspace;
  WindowArgs window;
  int64_t n, c, m, group;
  size_t workspaceBytes;
  DType type;
  ConvolutionResult of;
  bool tf32; ///< Operands of type f32 are multiplied as tf32.
};

/// The tensors of a call as the library has them: two spatial axes, or three where the first of three is more than 1.
struct ConvolutionDims {
  std::vector<int> x, w, y;
  const std::vector<int> &a(ConvolutionResult of) const { return of == ConvolutionResult::Input ? y : x; }
  const std::vector<int> &b(ConvolutionResult of) const { return of == ConvolutionResult::Weight ? y : w; }
  const std::vector<int> &result(ConvolutionResult of) const {
    return of == ConvolutionResult::Output ? y : of == ConvolutionResult::Input ? x : w;
  }
};

/// Spatial axes that the library sees: the last 2 or all 3.
int spatialAxes(const WindowArgs &window);
/// Precondition: brokenRule(call) is "".
ConvolutionDims dimsOf(const ConvolutionCall &call);
/// Bytes of a tensor of these dimensions.
size_t bytesOf(const std::vector<int> &dims, DType type);

/// Workspace that a plan has for a call. The library says what an algorithm takes only where there is a device, so this
/// is a rule from shapes alone: 1 MiB for indices and partial sums, 32 MiB from 2^24 products on; for tensor cores
/// (all but plain f32) also a copy of each tensor with channels last and a multiple of 8, the layout that they read.
size_t workspaceFor(const ConvolutionCall &call);

/// The rule of cuDNN that a call breaks; "" where it breaks none. Addresses are looked at where they are not null.
std::string brokenRule(const ConvolutionCall &call);

} // namespace recast::cuda
