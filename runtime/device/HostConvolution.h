#pragma once
#include "runtime/kernels/cuda/table/Convolution.h"

namespace recast::device {

/// cuDNN's convolution on the host, summed in f32 and rounded once. Precondition: brokenRule(call) is "".
void hostConvolution(const cuda::ConvolutionCall &call);

} // namespace recast::device
