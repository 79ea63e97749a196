#pragma once
#include "runtime/kernels/cuda/table/Matmul.h"

namespace recast::device {

/// cuBLASLt's product on the host, summed in double and rounded once. Precondition: brokenRule(args) is "".
void hostMatmul(const cuda::MatmulArgs &args);

} // namespace recast::device
