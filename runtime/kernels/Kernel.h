// What a kernel is, and the ordered lists that the compiler chooses from.
#pragma once
#include "runtime/plan/Attributes.h"
#include "runtime/plan/Status.h"
#include "runtime/plan/Tensor.h"
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace recast {

/// Everything that is known about a step before it runs.
struct StepSpec {
  std::string name;    ///< The ONNX node's name (or that of its first output): errors carry it.
  std::string domain;  ///< "" for the default domain of ONNX, "recast" for the operators of dialect train.
  std::string op;      ///< "MatMul", "adamw", ...
  int64_t version = 0; ///< The operator's since_version, not the model's opset.
  Attributes attrs;    ///< As in the node; absent attributes are absent (kernels apply the schema's default).
  std::vector<TensorType> inputs, outputs;
  /// Per input: its value where it is a constant of the plan, else data == nullptr. Valid while the plan is compiled
  /// and prepared; a kernel that wants it later copies it.
  std::vector<TensorRef> constants;
};

/// An output that may lie in an input's memory, where both have as many bytes.
struct InPlace {
  size_t output = 0, input = 0;
};

/// The buffers of one execution. Outputs never overlap inputs, except as Kernel::inPlace() allows.
struct KernelArgs {
  std::span<const TensorRef> inputs, outputs;
  std::span<std::byte> workspace; ///< Kernel::workspaceBytes() bytes, aligned to 64.
};

/// A step made ready to run. `run` allocates nothing after its first call and is called by one thread at a time.
class Kernel {
public:
  virtual ~Kernel() = default;
  virtual size_t workspaceBytes() const { return 0; }
  /// Which outputs may take over which inputs' memory. Any choice of pairs may hold in one run in which no output comes
  /// twice; an input may be there more than once under other numbers only if all of those are pairs of the output.
  /// Results are the same to the bit.
  virtual std::vector<InPlace> inPlace() const { return {}; }
  /// False where run() succeeds whatever values its inputs hold.
  virtual bool mayFail() const { return true; }
  /// An error names the step (StepSpec::name) and, where one is to blame, the value.
  virtual Status run(const KernelArgs &args) = 0;
};

/// One entry of a kernel list. `create` returns null and fills `refusal` (a reason, "f64 is not supported") where the
/// entry cannot take the step.
struct KernelEntry {
  std::string_view library; ///< "onednn", "reference", ...
  std::unique_ptr<Kernel> (*create)(const StepSpec &spec, std::string &refusal);
};

/// A chosen kernel, and why the earlier ones in the list were not chosen.
struct KernelChoice {
  std::string library;
  std::unique_ptr<Kernel> kernel; ///< Null where every entry refused.
  std::vector<std::string> refusals;
};

/// Library kernels first, the reference evaluator last. `referenceOnly` leaves only the last.
KernelChoice chooseCpuKernel(const StepSpec &spec, bool referenceOnly);

} // namespace recast
