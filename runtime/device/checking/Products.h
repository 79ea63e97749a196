// Products as cuBLASLt would run them, on the host.
#pragma once
#include "runtime/device/Device.h"

namespace recast::checking {

/// "" or why cuBLASLt would refuse the product, or what it would touch beyond `accesses`: A, B, C in this order.
std::string refuse(const MatMul &product, std::span<const Access> accesses);
/// Plain loops: sums in f64, rounded once. Precondition: not refused.
void run(const MatMul &product);

} // namespace recast::checking
