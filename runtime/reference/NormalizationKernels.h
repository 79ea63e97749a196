// What the files of normalizationEntries() share.
#pragma once
#include "runtime/reference/Loops.h"
#include "runtime/reference/Reference.h"

namespace recast::reference {

/// The mean and the population variance of a group of elements, in two passes in double.
struct Moments {
  double mean = 0, variance = 0;
};

/// The type in which elements are normalised once the statistics are known: double, but float for the 16-bit types,
/// whose own rounding is four thousand times coarser.
template <typename T> using Arithmetic = std::conditional_t<sizeof(T) == 2, float, double>;

/// term(0) + ... + term(count - 1) in double, in eight interleaved sums, which the compiler vectorises.
template <typename Term> double laneSum(int64_t count, Term &&term) {
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    for (int64_t lane = 0; lane < 8; ++lane)
      lanes[lane] += term(i + lane);
  for (; i < count; ++i)
    lanes[i % 8] += term(i);
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) + ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/// The moments of `count` contiguous elements.
template <typename T> Moments momentsOf(const T *x, int64_t count) {
  Moments moments;
  double elements = static_cast<double>(count);
  moments.mean = laneSum(count, [&](int64_t i) -> double { return load(x[i]); }) / elements;
  moments.variance = laneSum(count,
                             [&](int64_t i) {
                               double difference = load(x[i]) - moments.mean;
                               return difference * difference;
                             }) /
                     elements;
  return moments;
}

Status runBatchNorm(const StepSpec &spec, const KernelArgs &args);
std::string refusesBatchNorm(const StepSpec &spec);
Status runBatchNormGrad(const StepSpec &spec, const KernelArgs &args);

Status runLayerNorm(const StepSpec &spec, const KernelArgs &args);
Status runRmsNorm(const StepSpec &spec, const KernelArgs &args);
Status runLayerNormGrad(const StepSpec &spec, const KernelArgs &args);
Status runRmsNormGrad(const StepSpec &spec, const KernelArgs &args);
size_t layerNormGradWorkspaceBytes(const StepSpec &spec);
/// LayerNormalization has one type; the scale of RMSNormalization may have another, which is then the output's.
std::string refusesLayerNorm(const StepSpec &spec);
std::string refusesLayerNormGrad(const StepSpec &spec);

} // namespace recast::reference
