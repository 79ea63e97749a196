#include "runtime/reference/TrainOptimizer.h"

namespace recast::reference {

std::string refuseUpdate(const StepSpec &spec, size_t end) {
  if (spec.inputs[0].dtype != DType::Bool)
    return "skip is " + std::string(name(spec.inputs[0].dtype));
  for (size_t i : {size_t(1), size_t(2)})
    if (!isFloat(spec.inputs[i].dtype))
      return unsupported(spec.inputs[i].dtype);
  for (size_t i = 3; i < end; ++i)
    if (present(spec.inputs, i) && spec.inputs[i].dtype != spec.inputs[1].dtype)
      return "state of " + std::string(name(spec.inputs[i].dtype)) + " for a parameter of " +
             std::string(name(spec.inputs[1].dtype));
  return "";
}

std::string refuseUpdate(const StepSpec &spec, size_t end, size_t inputs, size_t outputs) {
  if (spec.inputs.size() != inputs || spec.outputs.size() != outputs)
    return "it has " + std::to_string(inputs) + " inputs, " + std::to_string(outputs) + " outputs";
  return refuseUpdate(spec, end);
}

std::span<const Entry> optimizerEntries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    for (std::span<const Entry> part : {adamEntries(), gradientEntries()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return entries;
}

} // namespace recast::reference
