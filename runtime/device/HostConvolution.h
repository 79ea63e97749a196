#pragma once
#include "runtime/kernels/cuda/table/Convolution.h"

namespace recast::device {

/// cuDNN's convolution on the host, summed in double and rounded once, as hostMatmul. Precondition: brokenRule(call) is
/// "".
void hostConvolution(const cuda::ConvolutionCall &call);

} // namespace recast::device
