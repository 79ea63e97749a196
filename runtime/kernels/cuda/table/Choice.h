// Which library runs a step on CUDA: the list that the compiler chooses from.
#pragma once
#include "runtime/kernels/cuda/table/KernelTable.h"

namespace recast::cuda {

/// As KernelChoice: "cublaslt" and "cuda" have a program. "generated" has none: the step is element-wise or reduces
/// rows, which regions compile; until they do, the checking device computes it on the host.
struct Choice {
  std::string library; ///< "" where every entry refused.
  Program program;
  std::vector<std::string> refusals;
};
Choice choose(const StepSpec &spec);

/// The host's kernel of a step that `choose` calls generated.
std::unique_ptr<Kernel> createStandIn(const StepSpec &spec, std::string &refusal);

} // namespace recast::cuda
