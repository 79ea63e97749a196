#include "runtime/kernels/cuda/table/Choice.h"
#include "runtime/kernels/cuda/table/Matmul.h"
#include "runtime/reference/Reference.h"
#include <algorithm>

namespace recast::cuda {
namespace {

/// Operators of families that are not all region work.
constexpr std::string_view kRowOperators[] = {"LayerNormalization",
                                              "layer_norm_grad",
                                              "RMSNormalization",
                                              "rms_norm_grad",
                                              "GroupNormalization",
                                              "InstanceNormalization",
                                              "LpNormalization",
                                              "QuantizeLinear",
                                              "DequantizeLinear",
                                              "adamw",
                                              "adam",
                                              "nadam",
                                              "radam",
                                              "sgd",
                                              "adagrad",
                                              "rmsprop",
                                              "lion",
                                              "ema",
                                              "softmax_grad",
                                              "log_softmax_grad",
                                              "round_tf32",
                                              "reduce_to"};

bool isRegionWork(const StepSpec &spec) {
  if (std::ranges::find(kRowOperators, spec.op) != std::end(kRowOperators))
    return true;
  if (!spec.domain.empty() || spec.op == "Identity")
    return false;
  constexpr std::string_view kOrdered[] = {"ArgMax", "ArgMin", "TopK", "CumSum", "CumProd"};
  if (std::ranges::find(kOrdered, spec.op) != std::end(kOrdered))
    return false;
  auto holds = [&](std::span<const reference::Entry> entries) {
    return std::ranges::find(entries, spec.op, &reference::Entry::op) != entries.end();
  };
  return holds(reference::elementwiseEntries()) || holds(reference::reductionEntries());
}

} // namespace

std::unique_ptr<Kernel> createStandIn(const StepSpec &spec, std::string &refusal) {
  if (!isRegionWork(spec)) {
    refusal = spec.op + " is neither element-wise nor a reduction of rows";
    return nullptr;
  }
  for (const TensorType &output : spec.outputs)
    if (output.dtype == DType::F64 && output.elems() > 1) { // Scalars of schedules and norms stay.
      refusal = "f64 runs on the CPU only";
      return nullptr;
    }
  return reference::create(spec, refusal);
}

Choice choose(const StepSpec &spec) {
  Choice choice;
  std::string refusal;
  if (compile(spec, choice.program, refusal)) {
    bool isProduct = std::ranges::any_of(choice.program.launches, [](const Launch &l) { return l.kernel == kMatmul; });
    choice.library = isProduct ? "cublaslt" : "cuda";
    return choice;
  }
  choice.refusals.push_back("cuda: " + refusal);
  if (std::unique_ptr<Kernel> standIn = createStandIn(spec, refusal)) {
    choice.library = "generated";
    choice.program = Program();
    choice.program.workspaceBytes = standIn->workspaceBytes();
    choice.program.inPlace = standIn->inPlace();
    choice.program.mayFail = standIn->mayFail();
    return choice;
  }
  choice.refusals.push_back("generated: " + refusal);
  return choice;
}

} // namespace recast::cuda
