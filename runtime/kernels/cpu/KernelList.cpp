#include "runtime/kernels/cpu/OneDnn.h"
#include "runtime/reference/Reference.h"

namespace recast {
namespace {

/// In order of preference; the last takes every operator of the runtime.
constexpr KernelEntry kEntries[] = {
    {"onednn", onednn::create},
    {"reference", reference::create},
};

} // namespace

KernelChoice chooseCpuKernel(const StepSpec &spec, bool referenceOnly) {
  KernelChoice choice;
  for (const KernelEntry &entry : std::span(kEntries).subspan(referenceOnly ? std::size(kEntries) - 1 : 0)) {
    std::string refusal;
    if (auto kernel = entry.create(spec, refusal)) {
      choice.library = entry.library;
      choice.kernel = std::move(kernel);
      return choice;
    }
    choice.refusals.push_back(std::string(entry.library) + ": " + refusal);
  }
  return choice;
}

} // namespace recast
