#include "runtime/session/NonFinite.h"
#include <algorithm>
#include <limits>

namespace recast {

namespace {

std::string describe(const NonFiniteCount &count) {
  std::string text = count.nans ? std::to_string(count.nans) + " NaN" : "";
  if (count.infinities)
    text += (count.nans ? " and " : "") + std::to_string(count.infinities) +
            (count.infinities == 1 ? " infinity" : " infinities");
  return text + ", the first at element " + std::to_string(count.first);
}

NonFiniteCount census(const TensorRef &tensor) {
  NonFiniteCount result;
  result.add(tensor);
  return result;
}

bool isTakenOver(const TensorRef &input, std::span<const TensorRef> outputs) {
  return std::ranges::any_of(outputs,
                             [&](const TensorRef &output) { return output.data && output.data == input.data; });
}

} // namespace

void NonFiniteCount::add(const TensorRef &tensor) {
  if (!tensor.present() || !isFloat(tensor.dtype) || !tensor.data)
    return;
  dispatchFloat(tensor.dtype, [&]<typename T>() {
    for (int64_t i = 0, count = tensor.elems(); i < count; ++i) {
      double value = static_cast<double>(tensor.as<T>()[i]);
      if (std::isfinite(value))
        continue;
      if (first < 0) {
        first = i;
        firstValue = value;
      }
      (std::isnan(value) ? nans : infinities)++;
    }
  });
}

void NonFiniteSearch::begin(const Executor &executor) {
  found.clear();
  const Plan &plan = executor.plan();
  for (size_t i = 0; i < plan.buffers.size() && found.size() < kMostFindings; ++i) {
    Place place = plan.buffers[i].place;
    if (place != Place::Input && place != Place::State)
      continue;
    if (NonFiniteCount held = census(executor.tensor(static_cast<int>(i))); held.first >= 0)
      found.push_back(std::string(place == Place::Input ? "the input '" : "the state '") + plan.buffers[i].name +
                      "' holds " + describe(held));
  }
}

void NonFiniteSearch::observe(const StepEvent &event) {
  // A node with bodies only passes on what its bodies' nodes have been asked about.
  const Step &step = event.plan.steps[event.step];
  if (found.size() >= kMostFindings || !step.bodies.empty())
    return;
  if (event.isBegin) {
    overwritten = {};
    for (const TensorRef &input : event.inputs)
      if (isTakenOver(input, event.outputs))
        overwritten.add(input);
    return;
  }
  for (size_t i = 0; i < event.outputs.size(); ++i) {
    NonFiniteCount made = census(event.outputs[i]);
    if (made.first < 0)
      continue;
    NonFiniteCount given = overwritten;
    for (const TensorRef &input : event.inputs)
      if (!isTakenOver(input, event.outputs))
        given.add(input);
    // NaN may come of a mask's infinities; after a finding, more likely of what was found.
    bool isNew = !given.nans && (!given.infinities || (made.nans && found.empty()));
    if (!isNew)
      return;
    found.push_back("node '" + step.spec.name + "' (" + step.spec.op + ") made '" +
                    event.plan.buffers[static_cast<size_t>(step.outputs[i])].name + "' non-finite from " +
                    (given.infinities ? "infinities" : "finite inputs") + ": " + describe(made) + " of " +
                    std::to_string(event.outputs[i].elems()) + " (" + std::string(name(event.outputs[i].dtype)) + ")");
    return;
  }
}

std::vector<std::string> NonFiniteSearch::findings(const Executor &executor) const {
  bool isHarmed = false;
  for (const Output &output : executor.plan().outputs) {
    TensorRef tensor = executor.tensor(output.buffer);
    isHarmed |= census(tensor).first >= 0;
    if (output.name.starts_with("found_inf") && tensor.dtype == DType::Bool && tensor.elems() == 1)
      isHarmed |= *tensor.as<bool>();
  }
  return isHarmed ? found : std::vector<std::string>();
}

} // namespace recast
