// What the files of optimizers share. Scalars are doubles, as in PyTorch; tensors are computed in their own type,
// 16-bit types in float; one pass over memory. Where `skip` is true the old values are kept bit for bit.
#pragma once
#include "runtime/reference/TrainKernels.h"
#include <initializer_list>

namespace recast::reference {

/// Bytes per element bound these loops, so a range needs fewer elements than usual.
inline constexpr int64_t kUpdateGrain = kGrain / 2;

// The tables that optimizerEntries() concatenates.
std::span<const Entry> adamEntries();     ///< TrainOptimizerAdam.cpp
std::span<const Entry> gradientEntries(); ///< TrainOptimizerGradient.cpp

/// Calls update.operator()<T, G>() with the types of the parameter and of its gradient, unless the step is skipped:
/// then output k becomes input state[k], and absent inputs have no output.
template <typename Update>
Status updateUnlessSkipped(const KernelArgs &args, std::initializer_list<size_t> state, Update &&update) {
  if (*args.inputs[0].as<bool>()) {
    size_t output = 0;
    for (size_t i : state)
      if (present(args.inputs, i))
        copyTensor(args.inputs[i], args.outputs[output++]);
    return Status::success();
  }
  dispatchFloat(args.inputs[1].dtype, [&]<typename T>() {
    dispatchFloat(args.inputs[2].dtype, [&]<typename G>() { update.template operator()<T, G>(); });
  });
  return Status::success();
}

/// For Entry::inPlace: the new state lies where the old one does. Outputs are numbered as in updateUnlessSkipped.
template <size_t... state> std::vector<InPlace> updatesState(const StepSpec &spec) {
  std::vector<InPlace> all;
  size_t output = 0;
  for (size_t input : {state...})
    if (present(std::span(spec.inputs), input))
      for (InPlace pair : fittingPairs(spec, {{output++, input}}))
        all.push_back(pair);
  return all;
}

/// State tensors [3, end) have the parameter's type; the gradient may have another one. "" where all fits.
std::string refuseUpdate(const StepSpec &spec, size_t end);
/// The same, with counts of operands and results.
std::string refuseUpdate(const StepSpec &spec, size_t end, size_t inputs, size_t outputs);

} // namespace recast::reference
