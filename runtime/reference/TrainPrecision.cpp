// round_tf32: operands of products as tensor cores read them.
#include "runtime/reference/TrainKernels.h"
#include <bit>

namespace recast::reference {
namespace {

/// To nearest even on 10 of 23 mantissa bits; a carry out of the mantissa raises the exponent, up to infinity.
float roundTf32(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u)
    return x; // infinities and NaN
  bits += 0xfffu + (bits >> 13 & 1);
  return std::bit_cast<float>(bits & ~0x1fffu);
}

Status runRoundTf32(const StepSpec &spec, const KernelArgs &args) {
  const float *x = args.inputs[0].as<float>();
  float *y = args.outputs[0].as<float>();
  parallelFor(args.outputs[0].elems(), kGrain, [=](int64_t begin, int64_t end) {
    RECAST_ELEMENTWISE_LOOP
    for (int64_t i = begin; i < end; ++i)
      y[i] = roundTf32(x[i]);
  });
  return Status::success();
}

std::string refuse(const StepSpec &spec) {
  return spec.inputs[0].dtype == DType::F32 ? "" : unsupported(spec.inputs[0].dtype);
}

} // namespace

std::span<const Entry> precisionEntries() {
  static const Entry entries[] = {{"recast", "round_tf32", 1, 1, runRoundTf32, nullptr, refuse, elementwise}};
  return entries;
}

} // namespace recast::reference
