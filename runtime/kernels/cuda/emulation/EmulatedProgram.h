// Runs a step's Program by the emulation. A recast::Kernel, so that what tests and compares CPU kernels takes it.
#pragma once
#include "runtime/kernels/cuda/emulation/Emulation.h"
#include "runtime/kernels/cuda/table/KernelTable.h"
#include <functional>
#include <memory>

namespace recast::cuda::emulation {

/// The host form of a kernel, or null.
const Kernel *find(std::string_view name);
/// Every kernel that there is.
std::span<const Kernel> kernels();

/// One launch with its addresses: the arguments are complete, and the ranges say what they point at.
struct BoundLaunch {
  const Kernel *kernel = nullptr;
  int64_t blocks = 1;
  int threads = 1;
  std::vector<std::byte> args;
  std::vector<Range> ranges;
};
/// Where an operand of the step lies: its bytes and what to call it. data == nullptr where it is absent.
struct Place {
  std::string name;
  void *data = nullptr;
  size_t bytes = 0;
};
/// Fills in the addresses. `placeOf(operand)` gives the place of a whole input, output, workspace or fault.
Result<BoundLaunch> bind(const Launch &launch, const std::function<Place(const Operand &)> &placeOf);

/// What executes a launch; with `reversed` threads and blocks from the last to the first.
using Run = std::function<Status(const BoundLaunch &bound, bool reversed)>;
/// The emulation.
Status runBound(const BoundLaunch &bound, bool reversed);

/// Null, with a refusal, where no kernel takes the step.
std::unique_ptr<recast::Kernel> create(const StepSpec &spec, std::string &refusal, Run run = runBound);

} // namespace recast::cuda::emulation
