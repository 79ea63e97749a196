// Conversions that involve the 8-bit floats: Cast, and what kernels of several families need.
#pragma once
#include "runtime/reference/Loops.h"

namespace recast::reference {

/// out[i] = x[at + i] for i < n; types wider than float are rounded.
void loadFloats(const TensorRef &x, int64_t at, int64_t n, float *out);

/// Cast where x or y is an 8-bit float; attributes `saturate` and `round_mode`.
void castFloat8(const StepSpec &spec, const TensorRef &x, const TensorRef &y);

} // namespace recast::reference
